"""Dimension expressions in files, which JAX's parser would take minutes for."""

from __future__ import annotations

import cProfile
import sys
import time
import zlib

import jax
import pytest
from jax import export

import bridge
from bridge.exporting.exported_file import read_exported
from savedmodel.protos import schema
from tests.work import seconds_here
from xla_call_module.errors import FormatError, InteropError
from xla_call_module.exported import deserialize_exported
from xla_call_module.symbolic_shapes import limited_steps, parse_shape

ROOM = "b" * 900


def _tree(depth, first=0):
    if depth == 0:
        return f"v{first}"
    return f"max({_tree(depth - 1, first)}, {_tree(depth - 1, first + 2 ** (depth - 1))})"


def _pools(count):
    text = "h"
    for _ in range(count):
        text = f"max(floordiv({text} - 3, 2) + 1, 0)"
    return text


HOSTILE = {
    "a power of a sum": "max(a + b + c + d, 0)^64",
    "a product of sums": "*".join(f"max(a{i} + b{i}, 0)" for i in range(40)),
    "a tree": _tree(5),
    "a chain": _pools(12),
    "an exponent": "b^1000000000",
    "an exponent of a number": "9^9999999999",
    "an exponent with underscores": "b^1_000_000_000",
    "a long number": "9" * 800,
    "parentheses": "max(" * 150 + "b",
}


@pytest.fixture(scope="module")
def exported():
    (dim,) = export.symbolic_shape(ROOM)
    return export.export(jax.jit(jax.numpy.sin))(jax.ShapeDtypeStruct((dim, 3), "float32"))


@pytest.fixture(autouse=True)
def _bounds():
    """JAX itself takes far longer for each of them."""
    start = time.thread_time()
    yield
    taken = time.thread_time() - start
    assert taken < 10 or taken < seconds_here(10)
    assert sys.getprofile() is None


def _with(data, text):
    """The same flatbuffer with another dimension."""
    assert len(text) <= len(ROOM)
    return bytes(data).replace(ROOM.encode(), text.ljust(len(ROOM)).encode())


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_in_a_serialized_exported(exported, text):
    data = _with(exported.serialize(), text)
    with pytest.raises(InteropError):
        deserialize_exported(data)


@pytest.mark.parametrize("read", [read_exported, bridge.to_onnx])
def test_in_a_file(exported, tmp_path, read):
    (tmp_path / "model.jax").write_bytes(_with(exported.serialize(), HOSTILE["a tree"]))
    with pytest.raises(InteropError, match="steps to read a serialized Exported"):
        read(tmp_path / "model.jax")


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_in_a_saved_model(exported, tmp_path, text):
    bridge.save(exported, tmp_path / "m", gradient_order=0)
    file = tmp_path / "m" / "saved_model.pb"
    proto = schema.SavedModel.FromString(file.read_bytes())
    for function in proto.meta_graphs[0].graph_def.library.function:
        for node in function.node_def:
            for name in {"_jax_exported"} & set(node.attr):
                carried = zlib.decompress(node.attr[name].s).replace(ROOM.encode(), text.encode())
                node.attr[name].s = zlib.compress(carried)
    file.write_bytes(proto.SerializeToString())
    with pytest.raises(InteropError):
        bridge.load(tmp_path / "m").default.exported  # noqa: B018 - it is made when asked for


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_of_other_programs(text):
    with pytest.raises(InteropError), limited_steps("to read it"):
        parse_shape((text, 3))


def test_what_honest_files_have(exported):
    for text in ("b", "floordiv(b + 1, 2)", _pools(2), "2*b + -3", "mod(-1*b, 4)", "b^2*c"):
        found = deserialize_exported(_with(exported.serialize(), text))
        (dim,) = export.symbolic_shape(text)
        assert str(found.in_avals[0].shape[0]) == str(dim)
        with limited_steps("to read it"):
            assert str(parse_shape((text, 3))[0]) == str(dim)


def test_many_arguments():
    specs = [jax.ShapeDtypeStruct((n % 97 + 1, n // 97 + 1), "float32") for n in range(300)]
    exported = export.export(jax.jit(lambda x: x))(specs)
    assert deserialize_exported(bytes(exported.serialize())).in_avals == exported.in_avals


def test_beside_a_profiler(exported):
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        assert deserialize_exported(bytes(exported.serialize())).fun_name == "sin"
    finally:
        profiler.disable()
    if sys.version_info < (3, 12):  # later ones have other means
        assert any("deserialize" in str(entry.code) for entry in profiler.getstats())


def test_any_number_of_steps():
    """Also one that is used up where the block ends."""
    ends = set()
    for steps in range(0, 2500, 5):
        try:
            with limited_steps("to read it", steps=steps):
                parse_shape(("b",))
            ends.add("read")
        except FormatError:
            ends.add("refused")
    assert ends == {"read", "refused"}


def test_steps_that_are_swallowed():
    """As by a bare `except`."""

    def swallow():
        while True:
            try:
                abs(1)
            except BaseException:  # noqa: BLE001 - it is what is tested
                return

    match = "more than 100 steps to loop, more than any writer needs"
    with pytest.raises(FormatError, match=match), limited_steps("to loop", steps=100):
        swallow()


def test_an_error_that_follows_swallowed_steps():
    """As of JAX, which takes a size for none where it cannot tell, and then refuses it."""

    def swallowing():
        try:
            for number in range(10**7):
                abs(number)
        except BaseException:  # noqa: BLE001
            raise ValueError("something else") from None

    with (
        pytest.raises(FormatError, match="more than 1,000 steps"),
        limited_steps("to count", steps=1000),
    ):
        swallowing()
    with pytest.raises(ValueError, match="a mistake"), limited_steps("to count", steps=1000):
        raise ValueError("a mistake")
