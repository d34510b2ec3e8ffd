"""Arguments as text: what is read, what is refused, and where."""

from __future__ import annotations

import re
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import enable_x64, export

import bridge
from bridge.exporting.argument_specs import to_specs
from bridge.exporting.argument_text import (
    DTYPE_NAMES,
    ArgumentTexts,
    ArrayText,
    parse_arguments,
    to_text,
)
from xla_call_module.dtypes import DTYPES, WIDE
from xla_call_module.errors import ArgumentError, DtypeError, InteropError, StructureError

F32 = ArrayText("float32", "b,3")
# Other programs may have the machine.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

names = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True).filter(lambda name: name != "None")
dims = st.one_of(
    st.integers(0, 99).map(str),
    st.sampled_from(["b", "2*b", "b+1", "floordiv(b,2)", "max(b,c)", "b*c"]),
)
arrays = st.builds(
    ArrayText,
    st.sampled_from([dtype.name for dtype in DTYPES]),
    st.lists(dims, max_size=4).map(",".join),
)
keys = st.one_of(
    names, st.text(st.characters(exclude_characters="'\",", codec="utf-8"), min_size=1)
)
trees = st.recursive(
    st.one_of(arrays, st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
    ),
    max_leaves=6,
)
arguments = st.builds(
    ArgumentTexts,
    st.lists(trees, max_size=3).map(tuple),
    st.dictionaries(names, trees, max_size=3),
).filter(lambda given: given.positional or given.by_name)


@_PATIENT
@given(arguments)
def test_what_is_written_is_read(given):
    assert parse_arguments(to_text(given)) == given


@_PATIENT
@given(arguments, st.text(" \t\n", max_size=3))
def test_space_around_commas_means_nothing(given, space):
    assert parse_arguments(space + to_text(given).replace(",", f"{space},{space}")) == given


@_PATIENT
@given(st.text("f32bi[](){},:=' 0*NoneU", max_size=30))
def test_any_text_is_read_or_refused(text):
    refusal = ""
    try:
        found = parse_arguments(text)
    except (StructureError, DtypeError) as error:
        refusal = str(error)
    if refusal:
        assert repr(text) in refusal
    else:
        assert parse_arguments(to_text(found)) == found


@_PATIENT
@given(st.lists(st.one_of(st.integers(0, 9).map(str), st.sampled_from("bcd")), max_size=4))
def test_shapes_are_those_of_jax(sizes):
    (spec,), _ = to_specs(f"f32[{','.join(sizes)}]")
    assert str(spec.shape) == str(export.symbolic_shape(",".join(sizes)))


@pytest.mark.parametrize("dtype", [dtype.name for dtype in DTYPES])
def test_dtypes_are_abbreviated_as_jax_does(dtype):
    with enable_x64():
        shown = str(jax.make_jaxpr(lambda x: x)(jax.ShapeDtypeStruct((2, 3), dtype)))
        abbreviated = shown.partition(":")[2].partition("[")[0]
        assert DTYPE_NAMES[abbreviated] == dtype
        (spec,), _ = to_specs(f"{abbreviated}[2,3]")
        assert to_specs(f"{dtype}[2,3]") == ((spec,), {})
    assert (spec.shape, str(spec.dtype)) == ((2, 3), dtype)


@pytest.mark.parametrize("dtype", sorted(WIDE))
def test_64_bits_are_not_narrowed_silently(dtype):
    for spec in (f"{dtype}[3]", jax.ShapeDtypeStruct((3,), dtype)):
        with pytest.raises(DtypeError, match=rf"args\[0\] is {dtype}, .*jax_enable_x64"):
            to_specs(spec)


@pytest.mark.parametrize(
    ("text", "positional", "by_name"),
    [
        ("f32[b,3]", (F32,), {}),
        ("f32[]", (ArrayText("float32", ""),), {}),
        ("f32[b,3], m=f32[b,3]", (F32,), {"m": F32}),
        (["f32[b,3]", "f32[b,3],x=f32[b,3]"], (F32, F32), {"x": F32}),
        ("{image: f32[b,3], 'a b': [f32[b,3]]}", ({"image": F32, "a b": [F32]},), {}),
        ("(f32[b,3], (f32[b,3],), (f32[b,3]), ())", ((F32, (F32,), F32, ()),), {}),
        ("None, f32[b,3],", (None, F32), {}),
    ],
)
def test_the_forms(text, positional, by_name):
    assert parse_arguments(text) == ArgumentTexts(positional, by_name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at character 1: there is no argument"),
        ("f32", r"f32 has no shape; a scalar is f32\[\]"),
        ("f32[3", r"the '\]' of the shape is missing"),
        ("f32[3] i32[]", "at character 8: 'i' is not expected"),
        ("(f32[3]", r"at character 1: the '\)' of this '\(' is missing"),
        ("{f32[3]}", "expected ':' after the key f32"),
        ("{a: f32[], a: f32[]}", "the key 'a' is there twice"),
        ("x=f32[], x=f32[]", "the argument 'x' is there twice"),
        ("x=f32[], f32[]", "at character 10: a positional argument follows"),
        ("f32[b;c]", "'b;c' is not a shape"),
        ("[" * 60, "more than 50 levels"),
        ("x", "expected an argument, found 'x'"),
    ],
)
def test_what_is_wrong_is_shown(text, message):
    with pytest.raises(StructureError, match=message) as caught:
        parse_arguments(text)
    assert "To do: write an array as f32[b,28,28]" in str(caught.value)


@pytest.mark.parametrize("text", ["B,3", "8", "batch, 28, ?"])
def test_sizes_without_a_dtype(text):
    match = re.escape(f"To do: write them as 'f32[{text}]'.")
    with pytest.raises(StructureError, match=match):
        parse_arguments(text)


@pytest.mark.parametrize("dtype", ["q8", "i4", "float31", "key"])
def test_an_unknown_dtype(dtype):
    with pytest.raises(DtypeError, match=rf"'{dtype}' is unknown.*bool, i8, .*f8_e5m2"):
        parse_arguments(f"{dtype}[3]")


def test_symbols_are_shared_by_all_arguments():
    (x, y), by_name = to_specs("f32[b,3], f32[2*b]", constraints=["b >= 4"])
    assert by_name == {}
    assert y.shape[0] == x.shape[0] * 2
    assert x.shape[0] >= 4


def test_specs_and_texts_together():
    (b,) = export.symbolic_shape("b")
    given = ({"x": jax.ShapeDtypeStruct((b, 2), "int32")}, "f32[b+1]", np.ones(3, np.float32))
    (first, y, z), _ = to_specs(given)
    x = first["x"]
    assert (x.shape, x.dtype) == ((b, 2), np.int32)
    assert y.shape == (b + 1,)
    assert (z.shape, z.dtype) == ((3,), np.float32)
    assert to_specs({"x": "f32[]"}) == ((), to_specs("x=f32[]")[1])


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("f32[-1]", StructureError, r"args\[0\] has the shape '-1', with a size of -1"),
        ("f32[b+]", StructureError, r"args\[0\] has the shape 'b\+': syntax error"),
        ("f32[_]", StructureError, r"args\[0\] has the shape '_'"),
        ("f32[2*None]", StructureError, r"args\[0\]: The shape '2\*None' computes with"),
        ("f32[mod(?,2)]", StructureError, r"args\[0\]: The shape 'mod\(\?,2\)' computes"),
        ((True,), ArgumentError, r"args\[0\] is True; .*functools.partial"),
        ({"x": object()}, ArgumentError, r"kwargs\['x'\] is <object"),
        (({"x": "f32[], f32[]"},), StructureError, "is not the text of one argument"),
    ],
)
def test_what_is_no_spec(given, error, message):
    with pytest.raises(error, match=message):
        to_specs(given)


def _described(shape, dtype):
    """As TensorFlow describes a tensor."""
    return SimpleNamespace(shape=shape, dtype=np.dtype(dtype))


def test_dimensions_without_names():
    """Each of them is unknown for itself, whoever describes it."""
    texts = "f32[None,None], f32[?,d1], (i32[None, 3], None), x=f32[ None ]"
    args, kwargs = to_specs(texts, constraints=["d0 >= 2"])
    shapes = [tuple(map(str, leaf.shape)) for leaf in jax.tree.leaves((args, kwargs))]
    assert shapes == [("d2", "d3"), ("d4", "d1"), ("d5", "3"), ("d6",)]
    given = (_described((None, 2), "float32"), _described((3, None), "int32"), "f32[?]")
    shapes = [tuple(map(str, leaf.shape)) for leaf in to_specs(given)[0]]
    assert shapes == [("d0", "2"), ("3", "d1"), ("d2",)]


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_typed_keys(impl):
    key = jax.random.key(3, impl=impl)
    keys, text = jax.random.split(key, 4), str(key.dtype)
    for case in ((key, keys), (f"{text}[]", f"{text}[4]"), (text + "[]", jax.typeof(keys))):
        found, _ = to_specs(case)
        assert [(spec.shape, spec.dtype) for spec in found] == [((), key.dtype), ((4,), key.dtype)]
    (found,), _ = to_specs(f"{text}[b]")
    assert (str(found.shape[0]), found.dtype) == ("b", key.dtype)
    assert to_text(parse_arguments(f"x={text}[b]")) == f"x={text}[b]"


@pytest.mark.parametrize("constraint", ["b >", "b >= c >= 2", "nonsense"])
def test_what_is_no_constraint(constraint):
    with pytest.raises(InteropError, match="To do: write each one as in 'b >= 2'"):
        to_specs("f32[b]", constraints=[constraint])


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_typed_keys_cross_as_their_data(tmp_path, impl):
    """A key as a value, a text or a batch of them; in a file it is its key data."""

    def noisy(key, x):
        return x + jax.random.uniform(key, (3,))

    key, x = jax.random.key(3, impl=impl), np.ones((2, 3), "float32")
    want, text = noisy(key, x), str(key.dtype)
    for number, args in enumerate(((key, "f32[b,3]"), f"{text}[], f32[?,3]")):
        place = tmp_path / str(number)
        bridge.save(noisy, place, args=args, gradient_order=0)
        np.testing.assert_array_equal(bridge.load(place)(key, x), want)
        got = tf.saved_model.load(place)(np.asarray(jax.random.key_data(key)), x)
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(bridge.convert(noisy)(key, x), want)
    keys, draw = jax.random.split(key, 3), jax.vmap(jax.random.uniform)
    bridge.save(draw, tmp_path / "batch", args=f"{text}[b]")
    np.testing.assert_array_equal(bridge.load(tmp_path / "batch")(keys), draw(keys))


def test_typed_keys_of_the_command_and_in_onnx(tmp_path, monkeypatch):
    from bridge.cli.main import main

    (tmp_path / "of_keys.py").write_text(
        "import jax\ndef f(key, x):\n    return x + jax.random.uniform(key, (3,))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    place = tmp_path / "m"
    words = ["export", "of_keys:f", "--out", str(place), "--args", "key<fry>[], f32[None,3]"]
    assert main(words) == 0
    inputs = bridge.to_onnx(place).graph.input
    assert {i.name: len(i.type.tensor_type.shape.dim) for i in inputs} == {"key": 1, "x": 2}


def test_numbers_are_weakly_typed_scalars():
    (whole, real, own), _ = to_specs((0, 2.5, np.float64(1)))
    assert (whole.shape, whole.dtype.name, whole.weak_type) == ((), "int32", True)
    assert (real.shape, real.dtype.name, real.weak_type) == ((), "float32", True)
    assert (own.dtype.name, own.weak_type) == ("float32", False)
