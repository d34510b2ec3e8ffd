"""The revision of the source code that a file belongs to, with git or without it."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_MAX_WAIT_SECONDS = 30.0
_MAX_LINKS = 10


@dataclass(frozen=True, slots=True)
class Revision:
    """A commit, and whether the checkout is the same.

    Attributes:
        commit: the hash.
        changed: whether files of the commit are different on the disk, or the file in question is
            none of them; None where git is not installed.
    """

    commit: str
    changed: bool | None


def read_revision(file: Path) -> Revision | None:
    """Return the commit that is checked out where a file or folder is; None where there is none.

    >>> import os
    >>> read_revision(Path(os.sep)) is None
    True
    """
    file = file.resolve()
    folder = file if file.is_dir() else file.parent
    root = next((place for place in (folder, *folder.parents) if (place / ".git").exists()), None)
    if root is None:
        return None
    if (commit := _ask(root, "rev-parse", "--verify", "HEAD")) is not None:
        tracked = _ask(root, "status", "--porcelain", "--untracked-files=no")
        own = _ask(root, "status", "--porcelain", "--", str(file))
        known = tracked is not None and own is not None
        return Revision(commit.strip(), bool(tracked or own) if known else None)
    head = _read_head(root / ".git")
    return None if head is None else Revision(head, None)


def _ask(root: Path, *arguments: str) -> str | None:
    """Return the output of git; None where it is not installed, or refuses."""
    if (git := shutil.which("git")) is None:
        return None
    # Without its locks, since others may be at work in the same checkout.
    command = [git, "--no-optional-locks", "-C", str(root), *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=_MAX_WAIT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _read_head(git: Path) -> str | None:
    """Return the commit that HEAD leads to (https://git-scm.com/docs/gitrepository-layout)."""
    try:
        if git.is_file():  # of a worktree or a submodule
            text = git.read_text().strip()
            git = (git.parent / text.removeprefix("gitdir: ")).resolve()
        shared = git / "commondir"
        common = (git / shared.read_text().strip()).resolve() if shared.is_file() else git
        text = (git / "HEAD").read_text().strip()
        for _ in range(_MAX_LINKS):
            if not text.startswith("ref: "):
                break
            text = _read_reference(common, text.removeprefix("ref: "))
    except (OSError, UnicodeDecodeError):
        return None
    return text if _COMMIT.fullmatch(text) else None


def _read_reference(git: Path, name: str) -> str:
    if (git / name).is_file():
        return (git / name).read_text().strip()
    packed = git / "packed-refs"
    lines = packed.read_text().splitlines() if packed.is_file() else []
    return next((line.split(" ", 1)[0] for line in lines if line.endswith(f" {name}")), "")
