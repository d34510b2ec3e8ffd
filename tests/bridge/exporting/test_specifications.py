"""Unknown dimensions: named by a specification, by "auto", or refused with both cures."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export

import bridge
from bridge.exporting.specifications import ArgumentSpec, specify
from xla_call_module.errors import InteropError, StructureError


def _outputs(converted, *shapes, **named):
    """Static shapes of the results in a graph whose inputs have these shapes."""
    args = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
    kwargs = {name: tf.TensorSpec(shape, tf.float32) for name, shape in named.items()}
    concrete = tf.function(converted).get_concrete_function(*args, **kwargs)
    shapes = tf.nest.map_structure(lambda x: tuple(x.shape), concrete.structured_outputs)
    return tuple(shapes) if isinstance(shapes, list) else shapes


def _specify(*shapes, polymorphic_shapes="auto", constraints=()):
    arguments = [
        ArgumentSpec(f"args[{i}]", shape, np.dtype("float32"), None)
        for i, shape in enumerate(shapes)
    ]
    tree = jax.tree.structure((tuple(range(len(shapes))), {}))
    specs = specify(arguments, tree, polymorphic_shapes=polymorphic_shapes, constraints=constraints)
    return [tuple(map(str, spec.shape)) for spec in specs]


def test_dimensions_without_names():
    """None and ? are unknown for themselves, as in TensorFlow's shapes."""
    found = _specify((None, None), (None, 3), polymorphic_shapes=("None, ?", "(None, 3)"))
    assert found == [("d0", "d1"), ("d2", "3")]
    converted = bridge.convert(lambda x: x * 2, polymorphic_shapes="None, None")
    assert converted(np.ones((2, 3), "float32")).shape == (2, 3)
    with pytest.raises(StructureError, match="computes with a dimension that has no name"):
        _specify((None,), polymorphic_shapes="2*None")


class TestAuto:
    @pytest.mark.parametrize(
        ("shapes", "specs"),
        [
            ([(None, 3)], [("b", "3")]),
            ([(None, 3), (None, 4)], [("b", "3"), ("b", "4")]),
            ([(None, 3), (2, 3)], [("b", "3"), ("2", "3")]),
            ([(None, None), (2, None)], [("b", "b0_1"), ("2", "b1_1")]),
            ([(None,), ()], [("b",), ()]),
            ([(2, 3), (0,)], [("2", "3"), ("0",)]),
            ([(3, None, None, 1)], [("3", "b0_1", "b0_2", "1")]),
        ],
    )
    def test_names(self, shapes, specs):
        assert _specify(*shapes) == specs

    @given(st.lists(st.lists(st.none() | st.integers(0, 5), max_size=4).map(tuple), max_size=5))
    def test_known_sizes_stay_and_unknown_ones_are_told_apart(self, shapes):
        specs = _specify(*shapes)
        names = [dim for spec in specs for dim in spec[1:] if not dim.isdecimal()]
        assert len(set(names)) == len(names)
        assert "b" not in names
        for shape, spec in zip(shapes, specs, strict=True):
            assert [dim if dim is None else str(dim) for dim in shape] == [
                dim if dim.isdecimal() else None for dim in spec
            ]
            assert not shape or shape[0] is not None or spec[0] == "b"

    def test_dimension_0_is_shared(self):
        converted = bridge.convert(lambda x, *, y: x + y, polymorphic_shapes="auto")
        assert _outputs(converted, [None, 3], y=[None, 3]) == (None, 3)
        with pytest.raises(TypeError, match="incompatible shapes for broadcasting"):
            _outputs(converted, [2, None], y=[2, None])

    def test_it_is_checked_when_it_runs(self):
        converted = bridge.convert(lambda x, y: x.sum() + y.sum(), polymorphic_shapes="auto")
        run = tf.function(converted, input_signature=[tf.TensorSpec([None])] * 2)
        assert run(tf.ones(2), tf.ones(2)).numpy() == 4
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=r"size args\[1\]\.shape\[0\] \(= 3\) and the specification 'b' \(= 2\)",
        ):
            run(tf.ones(2), tf.ones(3))

    def test_an_unknown_rank(self):
        converted = bridge.convert(lambda x: x, polymorphic_shapes="auto")
        with pytest.raises(
            StructureError, match=r"args\[0\] has unknown rank.*To do: .*ensure_shap"
        ):
            _outputs(converted, None)


class TestSpecifications:
    @pytest.mark.parametrize(
        ("shapes", "polymorphic", "specs"),
        [
            ([(None, 3)], "b, _", [("b", "3")]),
            ([(None, 3)], "(b, ...)", [("b", "3")]),
            ([(4, 3)], "b, ...", [("b", "3")]),
            ([(None, 3)], "b, 3", [("b", "3")]),
            ([None], "b, 3", [("b", "3")]),
            ([(None, None)], "b, 2*b + 1", [("b", "2*b + 1")]),
            ([(None, None), (None,)], ("b, n", "n"), [("b", "n"), ("n",)]),
            ([(2,), (None,)], (None, "b"), [("2",), ("b",)]),
            ([(2,), (None,)], [None, "b"], [("2",), ("b",)]),
            ([(2,), (3,)], None, [("2",), ("3",)]),
        ],
    )
    def test_texts(self, shapes, polymorphic, specs):
        assert _specify(*shapes, polymorphic_shapes=polymorphic) == specs

    @pytest.mark.parametrize(
        ("shape", "text", "match"),
        [
            ((2, 3), "b", r"of rank 2; the polymorphic shape 'b' has rank 1\. To do: give each"),
            (
                (2, 3),
                "b, _, _",
                "'b, _, _' does not describe it: .*rank|cannot resolve placeholder",
            ),
            ((2, 3), "b, 3, 4", "does not describe it"),
            ((2, 3), "b, 4", "does not describe it: .* different size 4 for known dimension"),
            ((None, 3), "_, 3", "does not describe it: .*unexpected placeholder"),
            (None, "_, 3", "does not describe it: .*no 'like' shape"),
            ((2, 3), "b +, 3", "does not describe it: syntax error"),
            ((2, 3), "(b, 3", "does not describe it"),
            ((2, 3), "b; 3", "does not describe it"),
            ((), "b", "of rank 0; the polymorphic shape 'b' has rank 1"),
            ((2,), "", "of rank 1; the polymorphic shape '' has rank 0"),
        ],
    )
    def test_texts_that_do_not_fit(self, shape, text, match):
        with pytest.raises(StructureError, match=rf"^args\[0\] arrived as float32\[.*{match}"):
            _specify(shape, polymorphic_shapes=text)

    @settings(deadline=None)
    @given(
        st.text(alphabet="bc123 _,.()+-*^\n#'", max_size=10) | st.text(max_size=5),
        st.none() | st.lists(st.none() | st.integers(0, 3), max_size=2).map(tuple),
    )
    def test_any_text_describes_a_shape_or_is_refused(self, text, shape):
        try:
            (spec,) = _specify(shape, polymorphic_shapes=(text,))
        except StructureError as error:
            assert "args[0]" in str(error)  # noqa: PT017 - most texts are refused, some are not
        else:
            assert shape is None or len(spec) == len(shape)

    @pytest.mark.parametrize("prefix", [("b", "b", "b"), {"x": "b"}, [["b"], None], ("b",)])
    def test_no_prefix(self, prefix):
        with pytest.raises(
            StructureError, match=r"is not a prefix of the positional arguments, whose"
        ):
            _specify((2,), (3,), polymorphic_shapes=prefix)

    @pytest.mark.parametrize("prefix", [(3, "b"), (True, None), ("b", 2.5)])
    def test_a_prefix_of_something_else(self, prefix):
        with pytest.raises(StructureError, match="for a shape; expected a string or None"):
            _specify((2,), (3,), polymorphic_shapes=prefix)

    def test_a_prefix_reaches_into_the_arguments(self):
        converted = bridge.convert(
            lambda d, y: d["a"] + d["b"] + y,
            polymorphic_shapes=({"a": "b, _", "b": "b, ..."}, None),
        )
        args = {"a": tf.ones((4, 3)), "b": tf.ones((4, 3))}, tf.ones(3)
        assert converted(*args).shape == (4, 3)
        with pytest.raises(StructureError, match="is not a prefix"):
            converted(args[0]["a"], args[1])

    def test_constraints(self):
        converted = bridge.convert(
            lambda x: x[2:] if x.shape[0] >= 3 else x,
            polymorphic_shapes="b",
            polymorphic_constraints=("b >= 3",),
        )
        run = tf.function(converted, input_signature=[tf.TensorSpec([None])])
        assert run(tf.range(5.0)).numpy().tolist() == [2, 3, 4]
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="symbolic shape constraint b >= 3"
        ):
            run(tf.range(2.0))

    def test_a_single_constraint(self):
        converted = bridge.convert(
            lambda x: x[3:], polymorphic_shapes="b", polymorphic_constraints="b >= 3"
        )
        assert converted(tf.ones(5)).shape == (2,)

    @pytest.mark.parametrize("constraint", ["b", "b >", "b >= 2 >= 1", "b >= (", ""])
    def test_no_constraint(self, constraint):
        with pytest.raises(
            StructureError, match=r"polymorphic_constraints=.*To do: write each one"
        ):
            bridge.convert(jnp.sin, polymorphic_constraints=[constraint])


class TestNoSpecification:
    def test_both_cures_are_named(self):
        run = tf.function(bridge.convert(lambda tree: tree["x"][1]))
        wanted = (
            r"args\[0\]\['x'\]\[1\] arrived as float32\[\?,3,\?\].*To do: pass "
            r"polymorphic_shapes='auto', or name them, as in polymorphic_shapes='b, _, c'; or give"
        )
        with pytest.raises(StructureError, match=wanted):
            run.get_concrete_function({"x": [tf.TensorSpec([]), tf.TensorSpec([None, 3, None])]})

    def test_an_unknown_rank(self):
        wanted = r"args\[0\] arrived as float32\[\.\.\.\].*To do: .*ensure_shape.*'auto'.*'b, 3'\."
        with pytest.raises(StructureError, match=wanted):
            _outputs(bridge.convert(lambda x: x), None)
        named = bridge.convert(lambda x: x, polymorphic_shapes="b, 3")
        assert _outputs(named, None) == (None, 3)

    def test_an_exported_needs_none(self):
        """Sizes that are unknown while TensorFlow traces are checked when it runs."""
        exported = export.export(jax.jit(lambda x: x + 1))(jnp.ones(2))
        said = r"args\[0\] of <lambda> has the shape\] \[3\] .*dimension 0 is\] \[2\]"
        for shape, message in (([None], said), (None, "Call parameter must match arg")):
            converted = tf.function(
                bridge.convert(exported), input_signature=[tf.TensorSpec(shape)]
            )
            assert converted.get_concrete_function().structured_outputs.shape == (2,)
            assert converted(tf.ones(2)).numpy().tolist() == [2, 2]
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                converted(tf.ones(3))
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=r"has the shape\] \[3 1\] \[expected float32\[2\], whose rank is\] \[1\]",
        ):
            converted(tf.ones([3, 1]))


class TestResults:
    """TensorFlow and Keras see what follows from the arguments' shapes."""

    def _converted(self):
        return bridge.convert(
            lambda x, y: (x, jnp.concatenate([x, x, y]), x.reshape(-1), x[:2].sum(), x[::2]),
            polymorphic_shapes=("b, n", "c, n"),
            polymorphic_constraints=["b >= 2"],
        )

    @pytest.mark.parametrize(
        ("x", "y", "shapes"),
        [
            ([4, 3], [1, 3], ((4, 3), (9, 3), (12,), (), (2, 3))),
            ([None, 3], [1, 3], ((None, 3), (None, 3), (None,), (), (None, 3))),
            ([4, None], [None, 3], ((4, 3), (None, 3), (12,), (), (2, 3))),
            ([4, None], [2, None], ((4, None), (10, None), (None,), (), (2, None))),
            (None, None, ((None, None), (None, None), (None,), (), (None, None))),
        ],
    )
    def test_they_are_as_static_as_the_arguments(self, x, y, shapes):
        assert _outputs(self._converted(), x, y) == shapes

    def test_what_contradicts_is_refused_while_tracing(self):
        with pytest.raises(
            StructureError, match=r"args\[1\] .*float32\[c,n\], whose dimension 1 is 3"
        ):
            _outputs(self._converted(), [None, 3], [2, 4])

    def test_gradients(self):
        converted = bridge.convert(lambda x: (x @ x.T).sum(1), polymorphic_shapes="auto")

        @tf.function(input_signature=[tf.TensorSpec([None, 3])])
        def gradient(x):
            return tf.gradients(converted(x), x)[0]

        assert tuple(gradient.get_concrete_function().structured_outputs.shape) == (None, 3)
        expected = jax.grad(lambda x: (x @ x.T).sum())(np.eye(2, 3, dtype=np.float32))
        np.testing.assert_array_equal(gradient(tf.eye(2, 3)), expected)


class TestSizes:
    def test_one_export_for_all(self, mode):
        traces = []

        def function(x, y):
            traces.append(x.shape)
            return x.sum(0) + y

        converted = bridge.convert(function, polymorphic_shapes=("b, _", None))
        for size in (1, 2, 5):
            assert mode(converted)(tf.ones((size, 2)), tf.zeros(2)).numpy().tolist() == [size] * 2
        assert len(traces) == 1

    @pytest.mark.parametrize(
        ("sizes", "match"),
        [
            (
                (2, 5),
                (
                    r"args\[1\] of <lambda> has shape \(5,\); expected float32\[2\*b\], "
                    r"whose dimension 0 is 4 with b = 2\."
                ),
            ),
            ((0, 0), "dimension variable b would be 0; jax.export takes .* to be at least 1"),
        ],
    )
    def test_what_contradicts_the_specification(self, sizes, match):
        converted = bridge.convert(lambda x, y: x.sum() + y.sum(), polymorphic_shapes=("b", "2*b"))
        assert converted(tf.ones(2), tf.ones(4)).numpy() == 6
        with pytest.raises(StructureError, match=match):
            converted(*map(tf.ones, sizes))
        with pytest.raises(StructureError, match=match):
            _outputs(converted, *([size] for size in sizes))

    def test_an_empty_batch_that_is_only_seen_when_it_runs(self):
        converted = bridge.convert(lambda x: x + 1, polymorphic_shapes="b")
        run = tf.function(converted, input_signature=[tf.TensorSpec([None])])
        with pytest.raises(tf.errors.InvalidArgumentError, match="Expected value >= 1 for dimens"):
            run(tf.ones(0))


def test_options_of_an_exported():
    exported = export.export(jax.jit(jnp.sin))(1.0)
    for options in (
        {"polymorphic_shapes": "b"},
        {"polymorphic_constraints": ["b >= 2"]},
        {"platforms": ["cpu"]},
    ):
        with pytest.raises(
            InteropError, match=r"sin is already exported: polymorphic_shapes, .* To"
        ):
            bridge.convert(exported, **options)
