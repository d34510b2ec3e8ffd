"""A folder appears whole or not at all, whatever happens to its writer."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from savedmodel.files import folder as folder_module
from savedmodel.files.folder import hidden_folder, move_new, new_folder
from tests.policy.source import ROOT
from xla_call_module.errors import FormatError, StructureError


def _write(target, text, *, overwrite=True, meanwhile=lambda folder: None):
    """Two files that only belong together if they have the same text."""
    with new_folder(target, overwrite=overwrite) as folder:
        (folder / "saved_model.pb").write_text(text)
        (folder / "variables").mkdir()
        (folder / "variables" / "variables.index").write_text(text)
        meanwhile(folder)


def _raise(error):
    raise error


def _files(folder):
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def _whole(text):
    return {"saved_model.pb": text, "variables/variables.index": text}


def _start(code, *arguments, **options):
    """A process that has `_write` and waits for a line before it goes on where it says so."""
    source = (
        "import sys\nfrom pathlib import Path\n"
        "from tests.savedmodel.files.test_folder import _write\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", source + code, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


class TestWhole:
    """The new folder and what was there before."""

    def test_it_is_not_there_before_the_end(self, tmp_path):
        with new_folder(tmp_path / "a" / "b" / "m", overwrite=False) as folder:
            (folder / "saved_model.pb").write_text("1")
            assert not (tmp_path / "a" / "b" / "m").exists()
            assert folder.parent == tmp_path / "a" / "b"
            assert folder.name.startswith(".m.")
        assert _files(tmp_path) == {"a/b/m/saved_model.pb": "1"}
        assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["m"]

    @pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt("stop"), SystemExit(1)])
    @pytest.mark.parametrize("before", [{}, _whole("1")])
    def test_an_error_leaves_all_as_it_was(self, tmp_path, before, error):
        if before:
            _write(tmp_path / "m", "1")
        with pytest.raises(type(error), match=str(error)):
            _write(tmp_path / "m", "2", meanwhile=lambda _: _raise(error))
        assert _files(tmp_path) == {f"m/{name}": text for name, text in before.items()}
        assert [path.name for path in tmp_path.iterdir()] == ["m"] * bool(before)

    def test_the_older_one_goes(self, tmp_path):
        _write(tmp_path / "m", "1")
        (tmp_path / "m" / "assets").mkdir()
        (tmp_path / "m" / "assets" / "vocabulary.txt").write_text("a b")
        inode = (tmp_path / "m").stat().st_ino
        _write(tmp_path / "m", "2")
        assert _files(tmp_path / "m") == _whole("2")
        assert (tmp_path / "m").stat().st_ino != inode
        assert [path.name for path in tmp_path.iterdir()] == ["m"]

    def test_an_empty_folder_is_replaced(self, tmp_path):
        (tmp_path / "m").mkdir()
        _write(tmp_path / "m", "1")
        assert _files(tmp_path) == {f"m/{name}": "1" for name in _whole("1")}
        assert [path.name for path in tmp_path.iterdir()] == ["m"]

    @pytest.mark.parametrize("name", ["[1]", "a*", "?", "ü ", "-", "..a", "a\nb", "m.pb"])
    def test_any_name(self, tmp_path, name):
        left = tmp_path / f".{name}.jax-tf-bridge-00"
        left.mkdir()
        os.utime(left, (0, 0))
        _write(tmp_path / name, "1")
        _write(tmp_path / name, "2")
        assert _files(tmp_path / name) == _whole("2")
        assert [path.name for path in tmp_path.iterdir()] == [name]

    def test_a_relative_path(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with new_folder(Path("m"), overwrite=False) as folder:
            (folder / "saved_model.pb").write_text("1")
            os.chdir("/")
        assert _files(tmp_path) == {"m/saved_model.pb": "1"}


class TestRefused:
    """What is at the target already."""

    @pytest.mark.parametrize("kind", ["file", "folder", "link", "dangling"])
    def test_anything_without_overwrite(self, tmp_path, kind):
        target = tmp_path / "m"
        match kind:
            case "file":
                target.write_text("1")
            case "folder":
                target.mkdir()
            case "link":
                (tmp_path / "other").mkdir()
                target.symlink_to(tmp_path / "other")
            case "dangling":
                target.symlink_to(tmp_path / "nowhere")
        before = sorted(tmp_path.iterdir())
        with pytest.raises(StructureError, match=r"m exists\. To do: pass overwrite=True"):
            _write(target, "2", overwrite=False)
        assert sorted(tmp_path.iterdir()) == before

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ({"notes.txt": "a"}, r"holds notes\.txt, which is not part of a SavedModel"),
            ({".git/config": "a", "saved_model.pb": "b"}, r"holds \.git, which is not part"),
            ({"saved_model.pb": "a", "1/saved_model.pb": "b"}, "holds 1, which is not part"),
            ({"saved_model.pb": "a", "variables/mine": "b"}, "holds variables/mine, which is not"),
            ({"variables/variables.index": "a"}, r"holds variables and no saved_model\.pb"),
            ({"assets/photo.jpg": "a"}, r"holds assets and no saved_model\.pb"),
        ],
    )
    def test_what_is_somebody_elses(self, tmp_path, content, message):
        for name, text in content.items():
            (tmp_path / "m" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "m" / name).write_text(text)
        with pytest.raises(FormatError, match=message):
            _write(tmp_path / "m", "2")
        assert _files(tmp_path / "m") == content
        assert [path.name for path in tmp_path.iterdir()] == ["m"]

    def test_a_file_or_a_link(self, tmp_path):
        (tmp_path / "file").write_text("a")
        _write(tmp_path / "other", "1")
        (tmp_path / "link").symlink_to(tmp_path / "other")
        for name in ("file", "link"):
            with pytest.raises(FormatError, match=f"{name} is not a folder, so it is not replaced"):
                _write(tmp_path / name, "2")
        assert (tmp_path / "file").read_text() == "a"
        assert _files(tmp_path / "other") == _whole("1")

    def test_what_comes_meanwhile(self, tmp_path):
        target = tmp_path / "m"
        with pytest.raises(StructureError, match="was made by another writer meanwhile"):
            _write(target, "2", overwrite=False, meanwhile=lambda _: target.mkdir())
        with pytest.raises(FormatError, match=r"holds thesis\.txt"):
            _write(
                target,
                "2",
                meanwhile=lambda _: (target / "thesis.txt").write_text("years of work"),
            )
        assert _files(tmp_path) == {"m/thesis.txt": "years of work"}
        assert [path.name for path in tmp_path.iterdir()] == ["m"]

    def test_a_parent_that_cannot_be_made(self, tmp_path):
        (tmp_path / "file").write_text("a")
        with pytest.raises(OSError, match=r"Not a directory|File exists"):
            _write(tmp_path / "file" / "m", "2")
        assert _files(tmp_path) == {"file": "a"}


KILLED = """
from savedmodel.files.folder import new_folder
with new_folder(Path(sys.argv[1]), overwrite=True) as folder:
    (folder / "saved_model.pb").write_text("half")
    print("writing", flush=True)
    sys.stdin.readline()
"""


class TestKilled:
    """A writer that ends in the middle."""

    def _kill(self, target):
        process = _start(KILLED, target)
        assert process.stdout.readline() == "writing\n", process.communicate()[1]
        (left,) = target.parent.glob(".m.*")
        return process, left

    def _end(self, process):
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL

    def test_the_older_one_stays_and_the_rest_is_removed(self, tmp_path):
        _write(tmp_path / "m", "1")
        process, left = self._kill(tmp_path / "m")
        self._end(process)
        assert _files(tmp_path / "m") == _whole("1")
        # It may still be the moment between another writer's mkdir and its lock.
        _write(tmp_path / "m", "2")
        assert _files(left) == {"saved_model.pb": "half"}
        os.utime(left, (0, 0))
        _write(tmp_path / "m", "3")
        assert _files(tmp_path / "m") == _whole("3")
        assert [path.name for path in tmp_path.iterdir()] == ["m"]

    def test_a_slow_writer_is_left_alone(self, tmp_path):
        process, left = self._kill(tmp_path / "m")
        os.utime(left, (0, 0))
        _write(tmp_path / "m", "1")
        assert _files(left) == {"saved_model.pb": "half"}
        _, errors = process.communicate("\n")
        assert process.returncode == 0, errors
        assert _files(tmp_path) == {"m/saved_model.pb": "half"}


class TestFull:
    """A disk that takes no more, and a folder that takes nothing."""

    def test_a_limit_on_the_file_size(self, tmp_path):
        _write(tmp_path / "m", "1")
        code = """
import resource
import savedmodel, numpy as np
from savedmodel.variables import bundle_layout
from tests.savedmodel.variables.bundles import write_bundle
from savedmodel.files.folder import new_folder
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
tensor = bundle_layout.BundleTensor("w", 1, (100_000,), lambda: [np.zeros(100_000, np.float32)])
with new_folder(Path(sys.argv[1]), overwrite=True) as folder:
    (folder / "variables").mkdir()
    write_bundle(folder / "variables" / "variables", [tensor])
"""
        process = _start(code, tmp_path / "m")
        _, errors = process.communicate()
        assert process.returncode == 1
        assert f"OSError: [Errno {errno.EFBIG}] File too large" in errors
        assert _files(tmp_path / "m") == _whole("1")
        assert [path.name for path in tmp_path.iterdir()] == ["m"]

    def test_a_folder_without_permission(self):
        # The superuser writes everywhere, so the process becomes nobody once all is imported;
        # and nobody gets to a folder below pytest's own.
        code = """
import os
if os.geteuid() == 0:
    os.seteuid(65534)
_write(Path(sys.argv[1]), "2")
"""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            _write(folder / "m", "1")
            folder.chmod(0o555)
            process = _start(code, folder / "m")
            _, errors = process.communicate()
            folder.chmod(0o755)
            assert process.returncode == 1
            assert "PermissionError" in errors
            assert _files(folder / "m") == _whole("1")
            assert [path.name for path in folder.iterdir()] == ["m"]


class TestTwoWriters:
    """They neither mix nor lose what they write."""

    def test_the_first_wins_without_overwrite(self, tmp_path):
        barrier = threading.Barrier(4)
        outcomes = []

        def write(number):
            barrier.wait()
            try:
                _write(tmp_path / "m", str(number), overwrite=False)
                outcomes.append(str(number))
            except StructureError:
                outcomes.append(None)

        for _ in range(10):
            threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            (winner,) = filter(None, outcomes)
            assert _files(tmp_path / "m") == _whole(winner)
            assert [path.name for path in tmp_path.iterdir()] == ["m"]
            shutil.rmtree(tmp_path / "m")
            outcomes.clear()

    def test_each_is_whole_with_overwrite(self, tmp_path):
        """Two processes overwrite each other's folder while a reader opens it."""
        code = "for count in range(60):\n    _write(Path(sys.argv[1]), sys.argv[2] + str(count))\n"
        _write(tmp_path / "m", "0")
        writers = [_start(code, tmp_path / "m", name) for name in "ab"]
        seen = set()
        while any(process.poll() is None for process in writers):
            descriptor = os.open(tmp_path / "m", os.O_RDONLY | os.O_DIRECTORY)
            try:
                seen.add(_read_at(descriptor))
            finally:
                os.close(descriptor)
        for process in writers:
            _, errors = process.communicate()
            assert process.returncode == 0, errors
        assert len(seen - {None}) > 1
        (last,) = set(_files(tmp_path / "m").values())
        assert last in ("a59", "b59")
        assert [path.name for path in tmp_path.iterdir()] == ["m"]


def _read_at(folder):
    """The text that both files of an open folder have; a folder that was replaced has none."""
    texts = []
    for name in ("saved_model.pb", "variables/variables.index"):
        try:
            file = os.open(name, os.O_RDONLY, dir_fd=folder)
        except FileNotFoundError:
            return None  # another one has taken its place since it was opened
        texts.append(os.read(file, 100))
        os.close(file)
    assert texts[0] == texts[1]
    return texts[0]


class TestOldFileSystems:
    """Where renameat2 is not, or takes no flags, two renames stand in for it."""

    @pytest.fixture(params=["absent", "no flags"])
    def _without_renameat2(self, request, monkeypatch):
        class Library:
            if request.param == "no flags":

                @staticmethod
                def renameat2(*_):
                    ctypes.set_errno(errno.EINVAL)
                    return -1

        monkeypatch.setattr(folder_module.ctypes, "CDLL", lambda *_, **__: Library)

    @pytest.mark.usefixtures("_without_renameat2")
    def test_write_and_overwrite(self, tmp_path):
        _write(tmp_path / "m", "1", overwrite=False)
        _write(tmp_path / "m", "2")
        assert _files(tmp_path / "m") == _whole("2")
        assert [path.name for path in tmp_path.iterdir()] == ["m"]

    @pytest.mark.usefixtures("_without_renameat2")
    def test_what_comes_meanwhile(self, tmp_path):
        with pytest.raises(StructureError, match="was made by another writer meanwhile"):
            _write(
                tmp_path / "m",
                "2",
                overwrite=False,
                meanwhile=lambda _: _write(tmp_path / "m", "1"),
            )
        assert _files(tmp_path / "m") == _whole("1")

    @pytest.mark.usefixtures("_without_renameat2")
    def test_two_that_move_to_one_name(self, tmp_path, monkeypatch):
        """The rename itself fails, if the other one came after the look."""
        for name in ("a", "b", "c"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "file").write_text(name)
        move_new(tmp_path / "a", tmp_path / "1")
        with pytest.raises(FileExistsError, match="1"):
            move_new(tmp_path / "b", tmp_path / "1")
        monkeypatch.setattr(folder_module.os.path, "lexists", lambda path: False)
        with pytest.raises(FileExistsError, match="1"):
            move_new(tmp_path / "c", tmp_path / "1")
        assert (tmp_path / "1" / "file").read_text() == "a"

    @pytest.mark.usefixtures("_without_renameat2")
    def test_the_older_one_comes_back(self, tmp_path):
        """The second rename fails, since there is nothing to be renamed any more."""
        _write(tmp_path / "m", "1")
        with pytest.raises(FileNotFoundError, match="No such file"):
            _write(tmp_path / "m", "2", meanwhile=shutil.rmtree)
        assert _files(tmp_path) == {f"m/{name}": text for name, text in _whole("1").items()}


@pytest.mark.parametrize("number", [errno.EBADF, errno.ENOSYS, errno.ENOLCK])
def test_without_locks_a_folder_is_written_all_the_same(tmp_path, monkeypatch, number):
    """And what cannot be locked is not taken for what a killed writer left."""
    left = tmp_path / ".m.jax-tf-bridge-0123456789abcdef"
    left.mkdir()
    os.utime(left, (0, 0))
    monkeypatch.setattr(
        folder_module.fcntl, "flock", lambda *_: _raise(OSError(number, os.strerror(number)))
    )
    _write(tmp_path / "m", "1")
    _write(tmp_path / "m", "2")
    assert _files(tmp_path / "m") == _whole("2")
    assert left.is_dir()


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_a_folder_that_cannot_be_synced(tmp_path, monkeypatch, number):
    error = OSError(number, os.strerror(number))
    monkeypatch.setattr(folder_module.os, "fsync", lambda _: _raise(error))
    if number == errno.EINVAL:
        _write(tmp_path / "m", "1")
        assert _files(tmp_path / "m") == _whole("1")
        return
    with pytest.raises(OSError, match="Input/output error"):
        _write(tmp_path / "m", "1")
    assert list(tmp_path.iterdir()) == []


def test_other_errors_of_the_rename_are_passed_on(tmp_path, monkeypatch):
    class Library:
        @staticmethod
        def renameat2(*_):
            ctypes.set_errno(errno.EXDEV)
            return -1

    monkeypatch.setattr(folder_module.ctypes, "CDLL", lambda *_, **__: Library)
    with pytest.raises(OSError, match="cross-device link"):
        _write(tmp_path / "m", "1")
    assert list(tmp_path.iterdir()) == []


def test_errors_of_the_system_name_the_target_and_no_hidden_folder(tmp_path):
    """Of a file system that nobody can make a folder in, and of a file that cannot be written."""
    with pytest.raises(OSError, match=r"'/proc/m'$"), hidden_folder(Path("/proc"), "m"):
        pass
    with pytest.raises(FileNotFoundError) as caught, hidden_folder(tmp_path, "m") as folder:
        (folder / "nothing" / "file").write_text("")
    assert caught.value.filename == f"{tmp_path}/m/nothing/file"
