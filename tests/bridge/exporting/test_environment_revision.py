"""The revision of a checkout, with git and without it."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from bridge.exporting.environment import read_revision

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(params=["with git", "without git"])
def has_git(request, monkeypatch):
    if request.param == "without git":
        monkeypatch.setattr(shutil, "which", lambda name: None)
        return False
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    return True


def _git(folder, *arguments):
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.com"]
    # What the tests themselves run in is none of theirs.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment)


@pytest.fixture
def checkout(tmp_path):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    folder = tmp_path / "checkout"
    (folder / "package").mkdir(parents=True)
    (folder / "package" / "model.py").write_text("x = 1\n")
    _git(folder, "init", "-q", "-b", "trunk")
    _git(folder, "add", ".")
    _git(folder, "commit", "-q", "-m", "first")
    return folder


def _commit(folder):
    return _git(folder, "rev-parse", "HEAD").stdout.strip()


def test_a_clean_checkout(checkout, has_git):
    for place in (checkout, checkout / "package", checkout / "package" / "model.py"):
        found = read_revision(place)
        assert found.commit == _commit(checkout)
        assert found.changed is (False if has_git else None)


def test_changes(checkout, has_git):
    (checkout / "package" / "model.py").write_text("x = 2\n")
    assert read_revision(checkout / "package").changed is (True if has_git else None)


def test_a_file_that_is_not_tracked(checkout, has_git):
    (checkout / "out").mkdir()
    (checkout / "out" / "model.bin").write_text("")
    assert read_revision(checkout / "package" / "model.py").changed is (False if has_git else None)
    assert read_revision(checkout / "out" / "model.bin").changed is (True if has_git else None)


def test_a_worktree(checkout, has_git, tmp_path):
    _git(checkout, "worktree", "add", "-q", "-b", "other", str(tmp_path / "tree"))
    assert read_revision(tmp_path / "tree").commit == _commit(checkout)


def test_packed_references(checkout, has_git):
    _git(checkout, "pack-refs", "--all")
    assert not (checkout / ".git" / "refs" / "heads" / "trunk").exists()
    assert read_revision(checkout).commit == _commit(checkout)


def test_a_detached_head(checkout, has_git):
    _git(checkout, "checkout", "-q", "--detach")
    assert read_revision(checkout).commit == _commit(checkout)


@pytest.mark.parametrize("head", ["", "ref: refs/heads/gone", "nonsense", "ref: HEAD"])
def test_a_checkout_without_a_commit(tmp_path, has_git, head):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text(f"{head}\n")
    assert read_revision(tmp_path) is None


def test_what_git_refuses_is_read(tmp_path):
    """As where the checkout is another user's: git exits with an error."""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text(f"{COMMIT}\n")
    found = read_revision(tmp_path)
    assert (found.commit, found.changed) == (COMMIT, None)


def test_no_checkout(tmp_path):
    assert read_revision(tmp_path) is None
