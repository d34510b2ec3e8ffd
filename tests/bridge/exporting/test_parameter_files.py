"""Files of parameters: what is in them, and that none of them runs code."""

from __future__ import annotations

import pickle
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.exporting.parameter_files import nest, select
from tests.bridge.exporting.parameters import read_parameters
from xla_call_module.errors import (
    DtypeError,
    FormatError,
    MissingDependencyError,
    StructureError,
    installing,
)

PARAMS = {
    "layers": [{"w": np.arange(6.0, dtype=np.float32).reshape(3, 2)}, {"w": np.ones(2, np.int8)}],
    "scale": np.float32(2),
}
FLAT = {"layers/0/w": PARAMS["layers"][0]["w"], "layers/1/w": PARAMS["layers"][1]["w"]}
FLAT["scale"] = PARAMS["scale"]


def _assert_equal(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("separator", ["/", "."])
def test_npz(tmp_path, separator):
    np.savez(tmp_path / "p.npz", **{key.replace("/", separator): x for key, x in FLAT.items()})
    _assert_equal(read_parameters(tmp_path / "p.npz"), PARAMS)


def test_another_separator(tmp_path):
    np.savez(tmp_path / "p.npz", **{"mlp/~/linear_0:w": np.ones(2)})
    found = read_parameters(tmp_path / "p.npz", separator=":")
    _assert_equal(found, {"mlp/~/linear_0": {"w": np.ones(2)}})
    assert read_parameters(tmp_path / "p.npz", separator="").keys() == {"mlp/~/linear_0:w"}


def test_safetensors(tmp_path):
    numpy = pytest.importorskip("safetensors.flax")
    arrays = {key.replace("/", "."): jnp.asarray(x) for key, x in FLAT.items()}
    numpy.save_file(arrays | {"half": jnp.ones(3, jnp.bfloat16)}, tmp_path / "p.safetensors")
    expected = PARAMS | {"half": np.ones(3, jnp.bfloat16)}
    _assert_equal(read_parameters(tmp_path / "p.safetensors"), expected)


@pytest.mark.parametrize("writer", ["StandardCheckpointer", "PyTreeCheckpointer"])
def test_orbax(tmp_path, writer):
    checkpoint = pytest.importorskip("orbax.checkpoint")
    tree = jax.tree.map(jnp.asarray, PARAMS | {"half": jnp.ones(3, jnp.bfloat16)})
    with getattr(checkpoint, writer)() as saver:
        saver.save(tmp_path / "checkpoint", tree)
    found = read_parameters(tmp_path / "checkpoint")
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(found))
    _assert_equal(found, jax.tree.map(np.asarray, tree))


def test_orbax_steps(tmp_path):
    checkpoint = pytest.importorskip("orbax.checkpoint")
    tree = {"w": jnp.ones(3)}
    with checkpoint.CheckpointManager(tmp_path / "run") as manager:
        for step in (0, 7):
            manager.save(step, args=checkpoint.args.StandardSave(tree))
        manager.wait_until_finished()
    _assert_equal(read_parameters(tmp_path / "run" / "7"), {"w": np.ones(3, np.float32)})
    with pytest.raises(StructureError, match=r"has 2 checkpoint folders\. To do: name one.*/7"):
        read_parameters(tmp_path / "run")


class _Trap:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was read",))


@pytest.mark.parametrize("name", ["p.npz", "p.pkl", "p.safetensors", "p"])
def test_pickles_are_not_read(tmp_path, name):
    pytest.importorskip("safetensors")
    (tmp_path / name).write_bytes(pickle.dumps(_Trap()))
    with pytest.raises(FormatError, match=r"To do: (write it|save the parameters)"):
        read_parameters(tmp_path / name)


def test_objects_in_an_archive_are_not_read(tmp_path):
    np.savez(tmp_path / "p.npz", a=np.array([_Trap()], dtype=object))
    with pytest.raises(FormatError, match=r"p\.npz is not a \.npz file of numbers.*Object arrays"):
        read_parameters(tmp_path / "p.npz")


def test_bits_without_a_dtype(tmp_path):
    np.savez(tmp_path / "p.npz", half=np.ones(2, jnp.bfloat16))
    with pytest.raises(DtypeError, match=r"has 'half' as \|V2.*\.safetensors"):
        read_parameters(tmp_path / "p.npz")


@pytest.mark.parametrize("name", ["p.npz", "p.safetensors"])
def test_a_damaged_file(tmp_path, name):
    safetensors = pytest.importorskip("safetensors.numpy")
    np.savez(tmp_path / "p.npz", a=np.ones(300))
    safetensors.save_file({"a": np.ones(300)}, tmp_path / "p.safetensors")
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(FormatError, match=re.escape(name)):
        read_parameters(tmp_path / name)


def test_other_places(tmp_path):
    np.save(tmp_path / "array.npy", np.ones(3))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match=r"is a \.npy file; expected \.npz"):
        read_parameters(tmp_path / "array.npy")
    with pytest.raises(FormatError, match="is not a checkpoint folder of orbax"):
        read_parameters(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_parameters(tmp_path / "nowhere.npz")


@pytest.mark.parametrize(
    ("module", "name"), [("orbax", "folder"), ("safetensors", "p.safetensors")]
)
def test_what_is_not_installed(tmp_path, monkeypatch, module, name):
    (tmp_path / "p.safetensors").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "_METADATA").touch()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError, match=re.escape(installing(module))):
        read_parameters(tmp_path / name)


def test_two_arrays_in_one_place():
    for arrays in ({"a": 1, "a/b": 2}, {"a/b": 1, "a": 2}):
        with pytest.raises(StructureError, match=r"that of another one\. .*params-separator"):
            nest(arrays)


def test_a_part_of_the_parameters():
    assert select(PARAMS, "layers/1/w") is PARAMS["layers"][1]["w"]
    with pytest.raises(StructureError, match=r"no 'layers/2': there is no '2' among \['0', '1'\]"):
        select(PARAMS, "layers/2")


# Other programs may have the machine.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

keys = st.text("abc01.~", min_size=1, max_size=4)
nested = st.recursive(
    st.integers(), lambda inner: st.dictionaries(keys, inner, min_size=1, max_size=3), max_leaves=8
)


def _paths(tree, path=()):
    if not isinstance(tree, dict):
        return {"/".join(path): tree}
    return {k: v for key, sub in tree.items() for k, v in _paths(sub, (*path, key)).items()}


def _as_lists(tree):
    if not isinstance(tree, dict):
        return tree
    children = {key: _as_lists(child) for key, child in tree.items()}
    numbered = sorted(children) == [str(number) for number in range(len(children))]
    return [children[key] for key in sorted(children)] if numbered else children


@_PATIENT
@given(st.dictionaries(keys, nested, min_size=1, max_size=4))
def test_paths_are_nested(tree):
    assert nest(_paths(tree), separator="/") == _as_lists(tree)


def test_a_list_has_the_order_of_its_numbers():
    paths = {f"layers/{number}/w": number for number in (10, 2, 0, 1, *range(3, 10))}
    assert nest(paths) == {"layers": [{"w": number} for number in range(11)]}
    assert nest({"a.1": 1, "a/b.0": 0}) == {"a.1": 1, "a": {"b.0": 0}}
