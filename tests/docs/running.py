"""Runs the blocks of a page in the current folder, and compares what they print."""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import textwrap
import tomllib
from pathlib import Path

from bridge.cli.main import main
from tests.docs.blocks import read_page

ROOT = Path(__file__).parents[2]
# The file of a block in an error, without the folder of this run.
_FILES = re.compile(r"(?:(?:/[\w.-]+)*/)?block_\d+\.py")
_TARGETS = re.compile(r"^(\w+):", re.MULTILINE)
_CHECKER = doctest.OutputChecker()
# Addresses and times differ between runs, and so does what follows an ellipsis.
_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def run_page(path: Path, *, write: bool = False) -> int:
    """Run every block of a page, and return how many were run.

    Args:
        path: the page.
        write: whether what the blocks print now is written into the page.

    Raises:
        AssertionError: a block fails, or prints something else than the page says.
    """
    text = path.read_text()
    runner = _Runner(path, write=write)
    try:
        for block in read_page(text).blocks:
            runner.run(block)
    finally:
        _forget_modules(Path.cwd())
    for (begin, end), printed in reversed(runner.differ):
        text = f"{text[:begin]}{printed}{text[end:]}"
    if runner.differ:
        path.write_text(text)
    return runner.count


def _forget_modules(folder):
    """Drop the modules of a page, since that of another one may have the same name."""
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(folder):
            del sys.modules[name]


class _Runner:
    """The names of the last Python block, and what the last block printed."""

    def __init__(self, path, *, write):
        self.write = write
        self.differ = []
        self.page = path.relative_to(ROOT)
        self.names = {}
        self.printed = ""
        self.count = 0

    def run(self, block):
        where = f"{self.page}, line {block.line}"
        if "file" in block.directives:
            Path(block.directives["file"]).write_text(block.code)
        if "not run" in block.directives:
            return
        if "output" in block.directives:
            self._compare(block, where)
        elif block.language == "python":
            self._run(block, where, lambda: self._python(block))
        elif block.language == "shell":
            self._run(block, where, lambda: _shell(block, where))

    def _run(self, block, where, run):
        printed = io.StringIO()
        wanted = block.directives.get("raises")
        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                run()
        except Exception as error:
            names = [kind.__name__ for kind in type(error).__mro__]
            if wanted not in names:
                message = f"{where}: {type(error).__name__}: {error}"
                raise AssertionError(f"{message}\n{printed.getvalue()}") from error
            message = f"{type(error).__name__}: {error}"
            printed.write("\n".join(map(_wrap, _without_places(message).splitlines())) + "\n")
        else:
            assert wanted is None, f"{where}: no {wanted}"
        # Tables end in spaces.
        lines = _without_places(printed.getvalue()).splitlines()
        self.printed = "".join(f"{line.rstrip()}\n" for line in lines)
        self.count += 1

    def _python(self, block):
        if "continues" not in block.directives:
            self.names = {"__name__": "page"}
        # A file, so that errors and exports have its lines.
        path = Path(f"block_{block.line}.py").absolute()
        path.write_text(block.code)
        exec(compile(block.code, str(path), "exec"), self.names)

    def _compare(self, block, where):
        same = _CHECKER.check_output(block.code, self.printed, _OPTIONS)
        if self.write and not same:
            self.differ.append((block.span, self.printed))
            return
        assert same, f"{where}: printed was\n{self.printed}\nand the page has\n{block.code}"


def _without_places(text):
    """Return what is printed without the folder of this run and the names of its files."""
    return _FILES.sub("example.py", text.replace(f"{Path.cwd()}{os.sep}", ""))


def _wrap(line):
    return textwrap.fill(line, 96, break_long_words=False, break_on_hyphens=False)


def _shell(block, where):
    """Run the commands of this package and of TensorFlow; others must at least be right."""
    lines = block.code.replace("\\\n", " ").splitlines()
    commands = [words for line in lines if (words := shlex.split(line, comments=True))]
    wanted = [0] * (len(commands) - 1) + [int(block.directives.get("exit", 0))]
    for command, status in zip(commands, wanted, strict=True):
        match command:
            case ["jax-tf-bridge", *arguments] | ["python", "-m", "bridge", *arguments]:
                found = _command(arguments)
                assert found == status, f"{where}: {shlex.join(command)} ended with {found}"
            case ["make", target, *_]:
                assert target in _TARGETS.findall((ROOT / "Makefile").read_text()), where
            case ["pip", "install", *packages]:
                unknown = [extra for text in packages for extra in _extras(text)]
                assert not unknown, f"{where}: {unknown}"
            case ["saved_model_cli", *_]:
                print(_tool(command))
            case ["cd", _] | ["curl", *_]:  # of a server, which the tests do not have
                pass
            case _:
                raise AssertionError(f"{where}: {shlex.join(command)} is none that pages may have")


def _command(arguments):
    try:
        return main(arguments)
    except SystemExit as ended:
        return ended.code


def _tool(command):
    """Return what a program of TensorFlow's prints, which is beside the interpreter."""
    program = Path(sysconfig.get_path("scripts"), command[0])
    done = subprocess.run(
        [program, *command[1:]], capture_output=True, text=True, check=True, env=os.environ
    )
    return done.stdout


def _extras(package):
    """Return the extras of this distribution that a requirement names and that it does not have."""
    named = re.search(r"(?:^\.|jax-tf-bridge)\[([\w,-]+)\]", package)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = project["optional-dependencies"]
    return [extra for extra in (named[1].split(",") if named else ()) if extra not in known]
