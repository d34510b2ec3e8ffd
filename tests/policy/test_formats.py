"""A format of files is looked up."""

from __future__ import annotations

import subprocess
import sys

from tests.policy.source import ROOT


def test_a_format_is_one_line_of_the_registry(tmp_path):
    """A format from elsewhere has its command and its report, for one line in the list."""
    (tmp_path / "elsewhere.py").write_text(
        "from dataclasses import replace\n"
        "from bridge.formats.file_format import ConvertCommand\n"
        "from bridge.formats.exported_format import EXPORTED\n"
        "EVERY = replace(EXPORTED, name='a file of elsewhere',\n"
        "    recognises=lambda path, head: path.endswith('.els'),\n"
        "    inspect=lambda path: 'a report', convert=print,\n"
        "    command=ConvertCommand('elsewhere', '.els', {'depth': {'type': int}}))\n"
    )
    code = (
        "from bridge.formats import format_registry as registry\n"
        "registry.FORMATS = ('elsewhere:EVERY', *registry.FORMATS)\n"
        "import bridge, pathlib\n"
        "from bridge.cli.main import main\n"
        "pathlib.Path('f.els').write_text('x')\n"
        "print(bridge.inspect('f.els'))\n"
        "print(main(['elsewhere', 'f.bin', 'out.els', '--depth', '3']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report, request, *_ = done.stdout.splitlines()
    assert report == "a report"
    assert "options={'depth': 3}" in request
