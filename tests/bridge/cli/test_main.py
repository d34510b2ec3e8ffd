"""The command: `publish` and `rollback`, and how every command ends."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata

import numpy as np
import pytest

import bridge
from bridge import diff
from bridge.cli.main import main
from tests.bridge.serving import conftest as batch_model

exported, saved = batch_model.exported, batch_model.saved  # fixtures


def test_publish_and_roll_back(saved, tmp_path, capsys):
    base = tmp_path / "sine"
    arguments = ["publish", str(saved), str(base), "--warmup", "1,8", "--batching", "1,8"]
    xla = ["--operations", "xla"]
    assert main([*arguments, *xla]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == [f"version 1: {base / '1'}", "2 warmup records"]
    command, container = printed[2:4]
    assert command.startswith(
        f"tensorflow_model_server --rest_api_port=8501 --model_config_file={base}/models.config"
    )
    assert " --xla_cpu_compilation_enabled=true  # cpu, from TensorFlow Serving 2." in command
    assert container.startswith("docker run ")
    assert container.endswith(" --xla_cpu_compilation_enabled=true")
    assert main(["publish", str(saved), str(base), "--version", "7", "--name", "m", *xla]) == 0
    printed = capsys.readouterr().out.splitlines()
    first, command, container, suggested, again, facts, signature = printed
    assert suggested.endswith('publish it with operations="tensorflow"')
    assert again.startswith("serving_default compiles again for each new size of ")
    assert first == f"version 7: {base / '7'}"
    for line in (command, container):
        assert f"--model_name=m --model_base_path={base} --xla_cpu_compilation_enabled" in line
    assert "of weights, readable from TensorFlow " in facts
    assert signature.startswith("serving_default(")
    assert main(["rollback", str(base), "--keep", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[:6] == [
        f"version 8: {base / '8'}",
        "a copy of version 1",
        "differences from the version that was served before:",
        "  other files beside the model, such as warmup records",
        "2 warmup records",
        "removed: 1",
    ]
    assert main(["rollback", str(base), "--to", "7", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["version"], found["copy_of"], found["removed"]) == (9, 7, [])


def test_what_is_wrong_is_said(saved, tmp_path, capsys):
    assert main(["publish", str(tmp_path / "nowhere"), str(tmp_path / "base")]) == 2
    assert "has no saved_model.pb" in capsys.readouterr().err
    assert main(["rollback", str(tmp_path / "base")]) == 2
    assert "has the versions none" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["publish", str(saved), str(tmp_path), "--warmup", "1;8"])
    assert "'1;8' is not a list of batch sizes such as 1,8,32" in capsys.readouterr().err


def test_the_version():
    assert bridge.__version__ == metadata.version("jax-tf-bridge")


def test_a_command_that_is_interrupted(saved, capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(diff, "read_one_version", interrupt)
    assert main(["diff", str(saved), str(saved)]) == 130
    assert capsys.readouterr().err == "jax-tf-bridge: interrupted\n"


@pytest.mark.parametrize("arguments", [["inspect"], ["inspect", "--html", "-"], ["passes"]])
def test_a_pipe_that_is_closed(saved, arguments):
    name, *options = arguments
    command = [sys.executable, "-m", "bridge", name, str(saved), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""


def test_the_home_folder(saved, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(saved.parent))
    page = tmp_path / "page.html"
    assert main(["inspect", f"~/{saved.name}", "--html", str(page)]) == 0
    capsys.readouterr()
    assert main(["inspect", str(saved), "--html", "-"]) == 0
    assert capsys.readouterr().out.startswith(page.read_text()[:100])
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["inspect", str(saved), "--html=~/again.html"]) == 0
    assert (tmp_path / "again.html").is_file()


def test_options_have_the_names_of_the_command(saved, tmp_path, capsys):
    target = tmp_path / "target"
    target.mkdir()
    assert main(["retarget", str(saved), str(target)]) == 2
    assert "--overwrite" in (error := capsys.readouterr().err)
    assert "overwrite=True" not in error
    assert main(["retarget", str(saved), str(tmp_path / "new"), "--platforms", "abacus"]) == 2
    assert "platforms=" not in capsys.readouterr().err


class TestWeights:
    """`update` and `publish --weights`."""

    @pytest.fixture
    def weights(self, tmp_path):
        np.savez(tmp_path / "new.npz", **{"model/w": batch_model.PARAMS["w"] + 1})
        np.savez(tmp_path / "flat.npz", w=batch_model.PARAMS["w"] + 2)
        return tmp_path

    def test_update(self, saved, weights, capsys):
        out, params = str(weights / "out"), str(weights / "flat.npz")
        assert main(["update", str(saved), "--params", params, "--to", out]) == 0
        assert "new values for 1 of 1 variable" in capsys.readouterr().out.splitlines()
        command = ["update", out, "--params", str(weights / "new.npz"), "--params-key", "model"]
        assert main([*command, "--params-separator", "/", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["path"], found["updated"], found["kept"]) == (out, ["w"], [])
        new = bridge.load(out).params["w"]
        np.testing.assert_array_equal(new, batch_model.PARAMS["w"] + 1)
        assert main(["update", str(saved), "--params", params, "--to", out]) == 2
        assert "exists. To do: pass --overwrite to replace it" in capsys.readouterr().err
        assert main(["update", str(saved), "--params", params, "--to", out, "--overwrite"]) == 0

    def test_publish(self, saved, weights, capsys):
        base, params = str(weights / "base"), str(weights / "flat.npz")
        # Options may stand between the arguments.
        assert main(["publish", str(saved), "--warmup", "1", base]) == 0
        for command in (["--weights", params, base], [base, "--weights", params]):
            assert main(["publish", *command]) == 0
        assert "unchanged: the newest version has this program" in capsys.readouterr().out
        assert main(["publish", base, "--weights", params, "--force"]) == 0
        assert main(["publish", str(saved), "--weights", params, base, "--json"]) == 0
        *_, last = capsys.readouterr().out.split("\n{")
        assert json.loads("{" + last)["version"] == 4
        with pytest.raises(SystemExit, match="2"):
            main(["publish", base])
        assert "MODEL or --weights is required" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ([], "the following arguments are required: --params"),
            (["--params", "x.npz", "--nothing"], "unrecognized arguments: --nothing"),
        ],
    )
    def test_wrong_options(self, saved, capsys, arguments, said):
        with pytest.raises(SystemExit, match="2"):
            main(["update", str(saved), *arguments])
        assert said in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("file", "said"),
        [
            ("nowhere.npz", "No such file"),
            ("new.npz", "no variable: 'model/w'"),
            ("words.txt", "is a .txt file; expected .npz"),
        ],
    )
    def test_wrong_weights(self, saved, weights, capsys, file, said):
        (weights / "words.txt").write_text("a")
        assert main(["update", str(saved), "--params", str(weights / file)]) == 2
        assert said in capsys.readouterr().err
