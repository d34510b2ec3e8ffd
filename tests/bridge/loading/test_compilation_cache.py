"""`bridge.load(path, compiled=folder)`: what one process compiles, the next one does not."""

from __future__ import annotations

import dataclasses
import functools
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bridge
from bridge.loading.compilation_cache import CompilationCache, machine_features
from bridge.loading.loaded import LoadedModel
from savedmodel.read import read
from tests.policy.source import ROOT
from xla_call_module.errors import ArgumentError, StructureError

WIDTH = 512  # the weights have a megabyte
X = np.linspace(-1, 1, 3 * WIDTH, dtype=np.float32).reshape(3, WIDTH)


def network(params, x):
    return {"y": jnp.tanh(x @ params["w"]) + params["b"]}


def draw(seed):
    normal = np.random.default_rng(seed).standard_normal
    return {"w": normal((WIDTH, WIDTH)).astype("f4") / 16, "b": normal(WIDTH).astype("f4")}


PARAMS = draw(0)
EXPECTED = np.tanh(X @ PARAMS["w"]) + PARAMS["b"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model whose batch is symbolic, and the same one with other weights."""
    folder = tmp_path_factory.mktemp("saved")
    for name, seed in (("m", 0), ("other_weights", 1)):
        bridge.save(network, folder / name, params=draw(seed), args=f"f32[b,{WIDTH}]")
    np.save(folder / "x.npy", X)
    return folder


@pytest.fixture
def kept(tmp_path):
    return tmp_path / "kept"


@pytest.fixture(scope="module")
def filled(saved, tmp_path_factory):
    """A folder with one executable."""
    folder = tmp_path_factory.mktemp("filled") / "kept"
    assert_right(bridge.load(saved / "m", compiled=folder)(X))
    return folder


def assert_right(found, expected=EXPECTED):
    np.testing.assert_allclose(found["y"], expected, rtol=1e-4, atol=1e-5)


def files(folder):
    """The executables, and which file has the name now: one that was compiled again is a new one.

    Writers leave nothing else behind.
    """
    found = {path.name: path.stat().st_ino for path in folder.glob("**/*")}
    assert all(name.endswith(".executable") for name in found), found
    return found


def test_an_executable_is_compiled_once(saved, kept):
    model = bridge.load(saved / "m", compiled=kept)
    assert not kept.exists()
    first = model(X)
    (once,) = files(kept).items()
    again = bridge.load(saved / "m", compiled=str(kept))(X)
    assert files(kept) == dict([once])
    assert_right(first)
    np.testing.assert_array_equal(first["y"], again["y"])
    model(X + 1), model(x=X), model(jnp.asarray(X))
    assert files(kept) == dict([once])


def test_weights_are_no_part_of_an_executable(saved, filled):
    before = files(filled)
    found = bridge.load(saved / "other_weights", compiled=filled)(X)
    other = draw(1)
    assert_right(found, np.tanh(X @ other["w"]) + other["b"])
    assert files(filled) == before
    assert sum(path.stat().st_size for path in filled.iterdir()) < 100_000


@pytest.mark.parametrize("what", ["shape", "module", "machine"])
def test_what_is_another_executable(saved, filled, kept, what, tmp_path):
    kept.mkdir()
    for path in filled.iterdir():
        (kept / path.name).write_bytes(path.read_bytes())
    before, given = files(kept), X
    model = bridge.load(saved / "m", compiled=kept)
    if what == "shape":
        given = np.concatenate([X, X])
    elif what == "module":
        bridge.save(
            lambda p, x: {"y": network(p, x)["y"] * 1},
            tmp_path / "m", params=PARAMS, args=f"f32[b,{WIDTH}]", platforms=["cpu", "tpu"],
        )  # fmt: skip
        model = bridge.load(tmp_path / "m", compiled=kept)
    else:
        other = CompilationCache(kept, f"{machine_features()} another")
        model = LoadedModel(read(saved / "m"), cache=other)
    assert_right({"y": model(given)["y"][:3]})
    assert len(files(kept)) == 2
    assert before.items() < files(kept).items()


class Hostile:
    """An object that acts where its pickle is read."""

    def __reduce__(self):
        return os.abort, ()


def _renamed(path):
    """The executable of another shape under this name."""
    other = next(file for file in path.parent.iterdir() if file != path)
    path.write_bytes(other.read_bytes())


DAMAGE = {
    "nothing": lambda path: path.write_bytes(b""),
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "a bit": lambda path: path.write_bytes(_flipped(path.read_bytes(), -100)),
    "a bit of the beginning": lambda path: path.write_bytes(_flipped(path.read_bytes(), 3)),
    "more": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "a pickle": lambda path: path.write_bytes(pickle.dumps(Hostile())),
    "another executable": _renamed,
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a device": lambda path: (path.unlink(), path.symlink_to("/dev/zero")),
    "a hole": lambda path: os.truncate(path, 1 << 38),
}


def _flipped(data, position):
    changed = bytearray(data)
    changed[position] ^= 1
    return bytes(changed)


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_damaged_is_compiled_again(saved, kept, damage):
    bridge.load(saved / "m", compiled=kept)(X)
    (path,) = kept.iterdir()
    if damage == "another executable":
        bridge.load(saved / "m", compiled=kept)(X[:2])
    whole = path.stat().st_size
    DAMAGE[damage](path)
    assert_right(bridge.load(saved / "m", compiled=kept)(X))
    assert path.is_file()
    assert not path.is_symlink()
    assert whole / 2 < path.stat().st_size < whole * 2
    before = files(kept)
    assert_right(bridge.load(saved / "m", compiled=kept)(X))
    assert files(kept) == before


def test_a_folder_in_the_place_of_an_executable(saved, kept):
    bridge.load(saved / "m", compiled=kept)(X)
    (path,) = kept.iterdir()
    path.unlink()
    path.mkdir()
    with pytest.warns(UserWarning, match="cannot be kept in .*kept.*: .*To do: let the process"):
        assert_right(bridge.load(saved / "m", compiled=kept)(X))


def test_a_folder_that_cannot_be_made(saved, tmp_path):
    (tmp_path / "file").touch()
    model = bridge.load(saved / "m", compiled=tmp_path / "file" / "kept")
    with pytest.warns(UserWarning, match="cannot be kept in .*file/kept"):
        assert_right(model(X))
    assert_right(model(X))


@pytest.fixture
def max_size():
    """A function that sets the limit that JAX has for its own cache, until the test ends."""
    before = jax.config.jax_compilation_cache_max_size
    yield functools.partial(jax.config.update, "jax_compilation_cache_max_size")
    jax.config.update("jax_compilation_cache_max_size", before)


class TestLimit:
    """`jax_compilation_cache_max_size`, as of JAX's own cache."""

    def test_what_was_used_longest_ago_gives_way(self, saved, kept, max_size):
        names = []
        for count in (1, 2, 3):
            bridge.load(saved / "m", compiled=kept)(X[:count])
            names += sorted(files(kept).keys() - set(names))
            os.utime(kept / names[-1], ns=(count, count))
        sizes = {path.name: path.stat().st_size for path in kept.iterdir()}
        (kept / "notes.txt").write_text("mine")
        bridge.load(saved / "m", compiled=kept)(X[:1])  # which is used now
        max_size(sum(sizes.values()) + 100)
        assert_right({"y": bridge.load(saved / "m", compiled=kept)(X[[0, 1, 2, 2]])["y"][:3]})
        left = {path.name for path in kept.glob("*.executable")}
        assert names[0] in left
        assert names[1] not in left
        assert len(left) == 3
        assert (kept / "notes.txt").is_file()

    def test_one_that_is_larger_and_no_cache_at_all(self, saved, kept, max_size):
        max_size(1000)
        with pytest.warns(
            UserWarning, match=r"executable has .* bytes, more than the 1,000 of jax"
        ):
            assert_right(bridge.load(saved / "m", compiled=kept)(X))
        max_size(0)
        assert_right(bridge.load(saved / "m", compiled=kept)(X))
        assert not kept.exists()
        max_size(-1)
        bridge.load(saved / "m", compiled=kept)(X)
        before = files(kept)
        max_size(10)
        assert_right(bridge.load(saved / "m", compiled=kept)(X))
        assert files(kept) == before


# Another process, which says by what way it has its executable; and what JAX's own cache has.
PROCESS = """
import os, sys, warnings
import jax, jax.monitoring, numpy as np, bridge
warnings.simplefilter("error")
saved, kept, own, user = sys.argv[1:]
x = np.load(saved + "/x.npy")
bridge.load(saved + "/m")(x)
os.seteuid(int(user))
if own:
    jax.config.update("jax_compilation_cache_dir", own)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.jit(lambda x: x * 3 + 1)(x)
found = []
jax.monitoring.register_event_listener(lambda event, **_: found.append(event.rpartition("/")[2]))
y = bridge.load(saved + "/m", compiled=kept)(x)["y"]
print(*(event for event in found if event in ("cache_hits", "cache_misses")))
if own:
    print(len([name for name in os.listdir(own) if name.endswith("-cache")]))
    jax.jit(lambda x: x * 5 + 2)(x)
    print(len([name for name in os.listdir(own) if name.endswith("-cache")]))
"""
NOBODY = 65534


def start(saved, kept, *, own="", user=None, flags=""):
    user = os.geteuid() if user is None else user
    flags = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROCESS, *map(str, (saved, kept, own, user))],
        env={**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": flags},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process):
    printed, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return printed.splitlines()


def test_another_process_only_reads(saved, filled):
    """Which need not be allowed to write there."""
    # Nobody else gets to a folder below pytest's own.
    with tempfile.TemporaryDirectory() as name:
        for source in (filled, saved / "m"):
            shutil.copytree(source, Path(name) / source.name)
        kept = Path(name) / "kept"
        np.save(f"{name}/x.npy", X)
        before = files(kept)
        subprocess.run(["chmod", "-R", "a+rX,a-w", name], check=True)
        printed = end(start(name, kept, user=NOBODY if os.geteuid() == 0 else None))
        subprocess.run(["chmod", "-R", "u+w", name], check=True)
        assert files(kept) == before
    assert printed == ["cache_hits"]


def test_several_processes_at_once(saved, kept):
    """Flags of XLA are a part of the key."""
    others = "--xla_cpu_enable_fast_min_max=true"
    processes = [start(saved, kept, flags=flags) for flags in ("", "", others)]
    assert all(end(process)[0] in ("cache_hits", "cache_misses") for process in processes)
    assert len(files(kept)) == 2
    assert_right(bridge.load(saved / "m", compiled=kept)(X))
    assert len(files(kept)) == 2


def test_the_cache_of_the_process_stays_its_own(saved, filled, tmp_path):
    before = files(filled)
    assert end(start(saved, filled, own=tmp_path / "own")) == ["cache_hits", "1", "2"]
    assert files(filled) == before


def test_several_threads(saved, kept):
    """Each with a shape of its own, while others compile what is not of the model."""
    model = bridge.load(saved / "m", compiled=kept)
    barrier = threading.Barrier(6)
    wrong = []

    def ask(count):
        barrier.wait()
        found = model(X[:1].repeat(count, 0))["y"]
        if not np.allclose(found, EXPECTED[:1], rtol=1e-4, atol=1e-5):
            wrong.append(count)

    def compile_others(number):
        barrier.wait()
        for i in range(4):
            jax.jit(lambda x, i=i: x * number + i)(X)

    threads = [threading.Thread(target=ask, args=[count]) for count in (1, 2, 4, 5)]
    threads += [threading.Thread(target=compile_others, args=[number]) for number in (7, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(files(kept)) == 4


def test_transformations(saved, kept):
    plain = bridge.load(saved / "m")
    for _ in range(2):
        model = bridge.load(saved / "m", compiled=kept)

        def loss(x, model=model):
            return (model(x)["y"] ** 2).sum()

        stack = np.stack([X, X * 2])
        found = jax.vmap(model)(stack)["y"]
        np.testing.assert_array_equal(found, jax.vmap(plain)(stack)["y"])
        expected = jax.grad(functools.partial(loss, model=plain))(X)
        np.testing.assert_array_equal(jax.grad(loss)(X), expected)
        np.testing.assert_allclose(jax.jit(jax.grad(loss))(X), expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(jax.jit(model)(X)["y"], jax.jit(plain)(X)["y"])
        call = model.default.exported.call
        by_params = jax.grad(lambda p, call=call: call(p, X)["y"].sum())(model.params)
        assert by_params["w"].shape == (WIDTH, WIDTH)
        before = files(kept)
    assert files(kept) == before


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (jnp.linalg.cholesky, {"linalg": "lapack"}),
        (jnp.linalg.cholesky, {}),
        (jnp.sort, {"platforms": ["cuda", "cpu"]}),
        (jnp.sin, {"platforms": ["cuda"], "disabled_checks": ["platform"]}),
        (lambda x: jax.random.key(x.astype("uint32")[0, 0]), {}),
        (lambda x: x.astype("int8") // 3, {"gradient_order": 0}),
        (lambda x: jnp.fft.fft(x).real, {}),
    ],
)
def test_functions(function, options, tmp_path, kept):
    bridge.save(function, tmp_path / "m", args="f32[3,3]", **options)
    x = np.eye(3, dtype="f4") * 4
    plain = bridge.load(tmp_path / "m")(x)
    for _ in range(2):
        found = bridge.load(tmp_path / "m", compiled=kept)(x)
        assert (found.dtype, found.shape) == (plain.dtype, plain.shape)
        if not jax.dtypes.issubdtype(found.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(found, plain)
        assert jnp.array_equal(found, plain)
        assert len(files(kept)) == 1


@pytest.mark.parametrize("compiled", [3, True, b"kept", ["kept"]], ids=str)
def test_what_is_no_path(saved, compiled):
    with pytest.raises(ArgumentError, match=r"compiled is .*; expected the path of a folder"):
        bridge.load(saved / "m", compiled=compiled)


@pytest.mark.parametrize("compiled", ["", "gs://bucket/kept", __file__])
def test_what_is_no_folder(saved, compiled):
    with pytest.raises(StructureError, match="which is not the path of a folder on a disk"):
        bridge.load(saved / "m", compiled=compiled)


def test_the_features_of_the_machine():
    features = machine_features().split()
    assert len(features) > 2
    assert machine_features() == " ".join(features)
    cache = CompilationCache.at("kept")
    assert cache.folder.is_absolute()
    assert dataclasses.replace(cache, machine="other") != cache
