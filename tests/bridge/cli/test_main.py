"""`jax-tf-bridge publish` and `rollback`."""

from __future__ import annotations

import json

import pytest

from bridge.cli.main import main
from tests.bridge.serving import conftest as batch_model

exported, saved = batch_model.exported, batch_model.saved  # fixtures


def test_publish_and_roll_back(saved, tmp_path, capsys):
    base = tmp_path / "sine"
    arguments = ["publish", str(saved), str(base), "--warmup", "1,8", "--batching", "1,8"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == [f"version 1: {base / '1'}", "2 warmup records"]
    assert printed[2].startswith(
        f"tensorflow_model_server --model_config_file={base}/models.config"
    )
    assert main(["publish", str(saved), str(base), "--version", "7", "--name", "m"]) == 0
    assert capsys.readouterr().out == f"version 7: {base / '7'}\n"
    assert main(["rollback", str(base), "--keep", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"version 8: {base / '8'}",
        "a copy of version 1",
        "2 warmup records",
        "removed: 1",
    ]
    assert main(["rollback", str(base), "--to", "7", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["version"], found["copy_of"], found["removed"]) == (9, 7, [])


def test_what_is_wrong_is_said(saved, tmp_path, capsys):
    assert main(["publish", str(tmp_path / "nowhere"), str(tmp_path / "base")]) == 1
    assert "has no saved_model.pb" in capsys.readouterr().err
    assert main(["rollback", str(tmp_path / "base")]) == 1
    assert "has the versions none" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["publish", str(saved), str(tmp_path), "--warmup", "1;8"])
    assert "'1;8' is no list of batch sizes such as 1,8,32" in capsys.readouterr().err
