"""The source distribution and the wheel, built as `pip` builds them, of what git would commit.

The build backend is that of this environment where it is new enough for pyproject.toml; otherwise
it is installed into a temporary folder, pinned by constraints.txt.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

from tests.policy.source import ROOT

_HOOK = """
import sys
from setuptools import build_meta
print("built", getattr(build_meta, "build_" + sys.argv[1])(sys.argv[2]))
"""


def build(target: Path, source: Path = ROOT) -> tuple[Path, Path]:
    """Write the source distribution, and the wheel that is built of it, into a folder.

    Args:
        target: the folder, which is made if need be.
        source: a checkout, or an unpacked source distribution.
    """
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        tree, unpacked = Path(temporary, "tree"), Path(temporary, "unpacked")
        copy_tree(source, tree)
        sdist = run_backend(tree, "sdist", target)
        with tarfile.open(sdist) as archive:
            archive.extractall(unpacked, filter="data")
        (inner,) = unpacked.iterdir()
        return sdist, run_backend(inner, "wheel", target)


def copy_tree(source: Path, target: Path) -> None:
    """Copy what git has and would add; everything where there is no git."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=source,
        capture_output=True,
        check=False,
    )
    if listed.returncode != 0:
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(".*", "build", "dist"))
        return
    for name in sorted(filter(None, os.fsdecode(listed.stdout).split("\0"))):
        if (source / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / name, target / name)


def run_backend(tree: Path, kind: str, target: Path) -> Path:
    """Build `sdist` or `wheel` of a folder; return its path in the target."""
    with tempfile.TemporaryDirectory() as backend:
        environment = {**os.environ, "PYTHONPATH": backend}
        if not _has_backend(tree):
            _pip("install", "--target", backend, *_requirements(tree), tree=tree)
        done = subprocess.run(
            [sys.executable, "-c", _HOOK, kind, str(target.resolve())],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(f"building the {kind} failed:\n{done.stdout}{done.stderr}")
    return target / done.stdout.splitlines()[-1].removeprefix("built ")


def _requirements(tree: Path) -> list[str]:
    return list(tomllib.loads((tree / "pyproject.toml").read_text())["build-system"]["requires"])


def _has_backend(tree: Path) -> bool:
    """Return whether this environment has all that pyproject.toml asks for, such as setuptools."""
    for requirement in _requirements(tree):
        name, _, wanted = requirement.partition(">=")
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return False
        if int(re.split(r"\D", found)[0]) < int(wanted):
            return False
    return True


def _pip(*arguments: str, tree: Path) -> None:
    constraints = str(tree / "constraints.txt")
    subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", *arguments, "--constraint", constraints],
        check=True,
    )
