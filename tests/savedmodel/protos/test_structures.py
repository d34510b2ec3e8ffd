"""Structures against tf.nest and TensorFlow's own decoder of the StructuredValue proto."""

from __future__ import annotations

import keyword
from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tensorflow.core.protobuf import struct_pb2
from tensorflow.python.saved_model import nested_structure_coder

import bridge
from savedmodel.protos.structures import (
    NONE,
    Branch,
    Leaf,
    as_dict,
    as_list,
    as_tuple,
    encode_structure,
    encode_tensor_spec,
    leaves,
)
from xla_call_module.call import TensorSpec
from xla_call_module.dtypes import DTYPES, dtype_from_name
from xla_call_module.errors import StructureError, UnsupportedError

FLOAT = dtype_from_name("float32", where="the test")
FIELDS = st.from_regex(r"[a-z]{1,3}", fullmatch=True).filter(lambda s: not keyword.iskeyword(s))


def _sequences(children):
    return st.lists(children, max_size=3)


def _named(children):
    return st.dictionaries(FIELDS, children, max_size=3).map(
        lambda fields: Branch("namedtuple", tuple(fields.items()), "Point")
    )


# The leaves are numbered afterwards, in the order of JAX: as they come.
SHAPES = st.recursive(
    st.just(Leaf(-1)) | st.just(NONE),
    lambda children: (
        _sequences(children).map(as_list)
        | _sequences(children).map(as_tuple)
        | st.dictionaries(st.text(max_size=3), children, max_size=3).map(as_dict)
        | _named(children)
    ),
    max_leaves=12,
)


def _number(structure, counter):
    if isinstance(structure, Leaf):
        return Leaf(next(counter))
    children = tuple((key, _number(child, counter)) for key, child in structure.children)
    return Branch(structure.kind, children, structure.name)


def _to_python(structure, leaf):
    """Return the structure as TensorFlow's nest has it."""
    if isinstance(structure, Leaf):
        return leaf(structure.index)
    keys = [key for key, _ in structure.children]
    values = [_to_python(child, leaf) for _, child in structure.children]
    match structure.kind:
        case "none":
            return None
        case "dict":
            return dict(zip(keys, values, strict=True))
        case "list":
            return values
        case "tuple":
            return tuple(values)
        case "namedtuple":
            return namedtuple(structure.name, keys)(*values)
    raise AssertionError(structure.kind)


@given(SHAPES)
@example(as_dict({"b": Leaf(-1), "a": as_list([Leaf(-1), Leaf(-1)])}))
def test_leaves_are_in_the_order_of_tensorflow(shape):
    structure = _number(shape, iter(range(100)))
    flat = tf.nest.flatten(_to_python(structure, lambda index: index))
    assert list(leaves(structure)) == [index for index in flat if index is not None]


@given(SHAPES)
@settings(max_examples=50)
def test_tensorflow_decodes_the_structure(shape):
    structure = _number(shape, iter(range(100)))

    def spec(index):
        return TensorSpec((index, "b"), FLOAT, f"args[{index}]")

    proto = encode_structure(structure, lambda index: encode_tensor_spec(f"x{index}", spec(index)))
    theirs = struct_pb2.StructuredValue.FromString(proto.SerializeToString())
    found = nested_structure_coder.decode_proto(theirs)
    want = _to_python(
        structure, lambda index: tf.TensorSpec((index, None), tf.float32, name=f"x{index}")
    )
    _same(found, want)


def _same(found, want):
    if isinstance(want, tuple) and hasattr(want, "_fields"):
        assert type(found).__name__ == type(want).__name__
        assert found._fields == want._fields
    elif not isinstance(want, tf.TensorSpec):
        assert type(found) is type(want)
    if isinstance(want, dict):
        assert found.keys() == want.keys()
        for key in want:
            _same(found[key], want[key])
    elif isinstance(want, (list, tuple)):
        assert len(found) == len(want)
        for ours, theirs in zip(found, want, strict=True):
            _same(ours, theirs)
    else:
        assert found == want


def test_tensorflow_decodes_every_spec():
    for dtype in DTYPES:
        for shape, want in (
            ((), ()),
            ((0, 3), (0, 3)),
            (("b", "2*b", 4), (None, None, 4)),
            (None, None),
        ):
            proto = encode_tensor_spec("x", TensorSpec(shape, dtype, "args[0]"))
            theirs = struct_pb2.StructuredValue.FromString(proto.SerializeToString())
            found = nested_structure_coder.decode_proto(theirs)
            assert found == tf.TensorSpec(want, dtype.name, name="x")


def _first(tree):
    return jax.tree.leaves(tree)[0]


def _nested(value, depth, container):
    for _ in range(depth):
        value = container(value)
    return value


Only = namedtuple("Only", "a")
CONTAINERS = {
    "dict": lambda x: {"a": x},
    "list": lambda x: [x],
    "namedtuple": Only,
    "tuple": lambda x: (x,),
}
# Below the tuple of an argument, and the messages around it; a result is alone.
DEEPEST_ARGUMENTS = {"dict": 29, "list": 44, "namedtuple": 29, "tuple": 44}
DEEPEST_RESULTS = {"dict": 30, "list": 46, "namedtuple": 30, "tuple": 46}


class TestDepth:
    """Every file that is written is read; where protobuf would not parse it, none is written."""

    @pytest.mark.parametrize("kind", CONTAINERS)
    def test_arguments(self, kind, tmp_path):
        container, depth = CONTAINERS[kind], DEEPEST_ARGUMENTS[kind]

        def save(depth):
            spec = _nested(jax.ShapeDtypeStruct((2,), "float32"), depth, container)
            exported = jax.export.export(jax.jit(_first))(spec)
            bridge.save(exported, tmp_path / "model", overwrite=True)

        with pytest.raises(StructureError, match=r"takes \d+ nested messages.*at most 96"):
            save(depth + 1)
        save(depth)
        x = np.ones(2, np.float32)
        np.testing.assert_array_equal(
            bridge.load(tmp_path / "model")(_nested(x, depth, container)), x
        )
        loaded = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
        (name,) = loaded.structured_input_signature[1]
        (result,) = loaded(**{name: tf.constant(x)}).values()
        np.testing.assert_array_equal(result, x)

    @pytest.mark.parametrize("kind", CONTAINERS)
    def test_results(self, kind, tmp_path):
        container, depth = CONTAINERS[kind], DEEPEST_RESULTS[kind]

        def save(depth):
            nested = jax.jit(lambda x: _nested(x, depth, container))
            bridge.save(nested, tmp_path / "model", args="f32[2]", overwrite=True)

        with pytest.raises(StructureError, match=r"takes \d+ nested messages.*at most 96"):
            save(depth + 1)
        save(depth)
        x = np.ones(2, np.float32)
        np.testing.assert_array_equal(_first(bridge.load(tmp_path / "model")(x)), x)
        loaded = tf.saved_model.load(str(tmp_path / "model"))
        np.testing.assert_array_equal(tf.nest.flatten(loaded(tf.constant(x)))[0], x)

    @pytest.mark.parametrize("kind", CONTAINERS)
    def test_parameters_far_up_in_the_stack(self, kind, tmp_path):
        def save(depth):
            params = _nested(jnp.ones(2), depth, CONTAINERS[kind])
            add = lambda params, x: x + _first(params)  # noqa: E731
            bridge.save(add, tmp_path / "model", params=params, args="f32[2]", overwrite=True)

        def load(frames):
            return load(frames - 1) if frames else bridge.load(tmp_path / "model")(np.ones(2))

        with pytest.raises((StructureError, UnsupportedError), match="more than 100 levels deep"):
            save(100)
        save(98)
        np.testing.assert_array_equal(load(250), [2, 2])
