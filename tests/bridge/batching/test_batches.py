"""Elements that are stacked, padded, called and taken apart again."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bridge
from bridge.batching import trial
from bridge.batching.batch_sizes import parse_buckets
from bridge.batching.batches import BatchedSignature
from xla_call_module.errors import DtypeError, StructureError


@pytest.fixture
def batched(tmp_path):
    """A function of example arguments, saved and loaded, and called for batches.

    `shapes` are those of `jax.export.symbolic_args_specs`; None for those of the examples.
    """

    def make(function, *examples, shapes=None, constraints=(), params=None, **options):
        if shapes is not None:
            examples = jax.export.symbolic_args_specs(examples, shapes, constraints=constraints)
        leading = () if params is None else (params,)
        exported = jax.export.export(jax.jit(function))(*leading, *examples)
        bridge.save(exported, tmp_path / "model", **({} if params is None else {"params": params}))
        return BatchedSignature(bridge.load(tmp_path / "model").default, **options)

    return make


@contextlib.contextmanager
def _compilations():
    """Count what XLA compiles inside."""
    found, is_inside = [], True

    def listen(event, duration, **_):
        if is_inside and event == "/jax/core/compile/backend_compile_duration":
            found.append(duration)

    # It stays: not every JAX has a way to take a listener back.
    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    is_inside = False


def _draw(key, shift):
    return jax.random.uniform(key, shift.shape) + shift


def _rows(count, width=2):
    return list(np.arange(count * width, dtype=np.float32).reshape(count, width))


def _sum(x):
    return x.sum(axis=1)


def _add(x, y):
    return x + y


ROW = np.zeros((2, 2), np.float32)
NUMBER = np.zeros(2, np.float32)


class TestSizes:
    """Few programs for batches of any size, and the result of each element."""

    @pytest.mark.parametrize(
        ("options", "sizes"),
        [
            ({}, {1, 2, 4, 8, 16, 32}),
            ({"buckets": (16, 4)}, {4, 16}),
            ({"largest": 20}, {1, 2, 4, 8, 16, 20}),
        ],
    )
    def test_any_number_of_elements(self, batched, options, sizes):
        weights = np.eye(2, dtype=np.float32) * 3
        call = batched(lambda w, x: x @ w, ROW, shapes=("b, 2",), params=weights, **options)
        assert call([]) == []  # tries whether each row is computed for itself
        with _compilations() as compiled:
            for count in range(21):
                rows = _rows(count)
                assert [row.tolist() for row in call(rows)] == [(3 * row).tolist() for row in rows]
        assert len(compiled) == len(sizes)

    def test_a_fixed_batch(self, batched):
        call = batched(_sum, np.zeros((4, 2), np.float32))
        for count in (0, 1, 4, 6):
            assert call(_rows(count)) == [row.sum() for row in _rows(count)]

    @pytest.mark.parametrize(
        ("shape", "constraint"),
        [("3*b, 2", "b >= 1"), ("b, 2", "b >= 5"), ("b, 2", "mod(b, 4) == 0"), ("b, 2", "b <= 2")],
    )
    def test_sizes_that_the_module_takes(self, batched, shape, constraint):
        call = batched(
            _sum, np.zeros((12, 2), np.float32), shapes=(shape,), constraints=(constraint,)
        )
        for count in (1, 3, 7):
            assert call(_rows(count)) == [row.sum() for row in _rows(count)]

    def test_no_size_that_the_module_takes(self, batched):
        call = batched(_sum, ROW, shapes=("b, 2",), constraints=("b >= 5",), buckets=(1, 2, 4))
        for _ in range(2):
            with pytest.raises(StructureError, match=r"no batch of the sizes 1, 2, 4: .*b >= 5"):
                call(_rows(1))

    @pytest.mark.parametrize("buckets", [(), (0, 2), (1.5,), "12", (True,), {1: 2}, 8])
    def test_what_is_no_bucket(self, buckets):
        with pytest.raises(StructureError, match=r"batch_buckets=.*; expected different sizes"):
            parse_buckets(buckets)

    def test_different_shapes_are_called_apart(self, batched):
        call = batched(_sum, ROW, shapes=("b, t",))
        assert call([np.ones(n, np.float32) for n in (3, 1, 3, 2, 1, 3)]) == [3, 1, 3, 2, 1, 3]

    def test_results_can_be_written_to(self, batched):
        (result,) = batched(lambda x: x + 1, ROW, shapes=("b, 2",))(_rows(1))
        result[0] = 7
        assert result.tolist() == [7, 2]

    def test_filling_up_reaches_no_loop_without_an_end(self, batched):
        def double(x):
            return jax.lax.while_loop(lambda x: x < 100, lambda x: x * 2, x)

        double = jax.vmap(double)
        with pytest.warns(UserWarning, match="double is saved without a gradient"):
            call = batched(double, NUMBER, shapes=("b",), buckets=(4,))
        # It has no end for zeros.
        assert call([np.float32(3)]) == [192]


class TestElements:
    """How an element gives the arguments of the function."""

    def test_a_pytree(self, batched):
        def function(tree):
            return {"sum": tree["a"] + tree["b"][0], "pair": (tree["a"], tree["b"][1])}

        call = batched(function, {"a": ROW, "b": [ROW, NUMBER]}, shapes=("b, ...",))
        elements = [{"a": row, "b": [row * 10, i]} for i, row in enumerate(_rows(3))]
        elements = jax.tree.map(np.float32, elements)
        for result, element in zip(call(elements), elements, strict=True):
            assert result["sum"].tolist() == (element["a"] * 11).tolist()
            assert result["pair"][0].tolist() == element["a"].tolist()
            assert result["pair"][1] == element["b"][1]

    @pytest.mark.parametrize(
        "element",
        [(np.float32(1), np.float32(2)), {"x": np.float32(1), "y": np.float32(2)}, (1.0, 2.0)],
    )
    def test_several_arguments(self, batched, element):
        call = batched(_add, NUMBER, NUMBER, shapes=("b", "b"))
        assert call([element, element, element]) == [3, 3, 3]

    def test_arrays_of_jax_and_keys(self, batched):
        def draw(key):
            return jax.vmap(lambda key: jax.random.uniform(key))(key), key

        keys = jax.random.split(jax.random.key(1), 3)
        results = batched(draw, keys[:1], shapes=("b",))(list(keys))
        for (drawn, same), key in zip(results, keys, strict=True):
            assert drawn == jax.random.uniform(key)
            assert jax.random.key_data(same).tolist() == jax.random.key_data(key).tolist()

    def test_bfloat16(self, batched):
        call = batched(lambda x: x * 2, jnp.zeros(2, jnp.bfloat16), shapes=("b",))
        (result,) = call([jnp.bfloat16(1.5)])
        assert (result, result.dtype) == (3, jnp.bfloat16)

    def test_what_all_elements_share(self, batched):
        def scaled(x, table, scale):
            return x @ table * scale

        table = np.eye(2, dtype=np.float32)
        call = batched(scaled, ROW, table, np.float32(1), shapes=("b, 2", None, None))
        shared = {"table": table, "scale": 3.0}
        for elements in (_rows(3), [{"x": row} for row in _rows(3)]):
            results = call(elements, shared)
            assert [r.tolist() for r in results] == [(3 * row).tolist() for row in _rows(3)]


class TestRefused:
    """What does not fit is named."""

    @pytest.mark.parametrize(
        ("element", "shared", "message"),
        [
            ({"z": 1}, {}, r"is a dict of z; expected a dict of its inputs x, y"),
            ((1, 2, 3), {}, r"is a tuple of 3; .*or a tuple of its 2 arguments"),
            (np.float32(1), {}, r"is a float32; expected a dict"),
            ({"x": 1.0}, {"z": 1}, "has no input 'z'; expected some of x, y"),
            ({}, {"x": 1, "y": 2}, "no input that differs from element to element"),
            (("a", 1.0), {}, "x of serving_default has dtype <U1; expected float32"),
            (
                (np.zeros(2), [1, 2]),
                {},
                r"a dict of its inputs x, y.*or a tuple of its 2 arguments",
            ),
            ((np.ones(2, np.float32),) * 2, {}, r"x of serving_default has shape \(1, 2\)"),
            ((np.int32(1), np.int32(1)), {}, "x of serving_default has dtype int32"),
        ],
    )
    def test_elements(self, batched, element, shared, message):
        call = batched(_add, NUMBER, NUMBER, shapes=("b", "b"))
        with pytest.raises((StructureError, DtypeError), match=message):
            call([element], shared)

    def test_an_input_without_a_batch(self, batched):
        call = batched(lambda x, scale: x * scale, NUMBER, np.float32(1), shapes=("b", None))
        with pytest.raises(StructureError, match=r"scale of .* has shape \[\].*inference_args="):
            call([(1.0, 2.0)])

    def test_a_result_without_a_batch(self, batched):
        call = batched(lambda x: x.mean(), NUMBER, shapes=("b",))
        with pytest.raises(StructureError, match=r"output_0 of .* has shape \[\].*a row for each"):
            call([np.float32(1)])

    @pytest.mark.parametrize("count", [3, 4])
    @pytest.mark.parametrize(
        "function", [lambda x: x - x.mean(axis=0), lambda x: {"a": x, "b": x[::-1]}, jnp.argsort]
    )
    def test_a_function_in_which_other_rows_count(self, batched, function, count):
        call = batched(function, NUMBER, shapes=("b",), buckets=(4,))
        with pytest.raises(StructureError, match=r"A row of the output \w+ of .*other rows"):
            call([np.float32(n) for n in (5, 9, 2, 1)[:count]])

    @pytest.mark.parametrize(
        "function",
        [lambda x: jnp.where(x.max() > 90, x - x.mean(0), x), lambda x: x + x.shape[0] // 100],
    )
    def test_what_no_batch_has_shown(self, batched, function):
        call = batched(function, NUMBER, shapes=("b",))
        with pytest.raises(StructureError, match=r"depends on the .*inputs.*_buckets=\(1,\)"):
            call([np.float32(1)])

    def test_one_element_at_a_time(self, batched):
        call = batched(lambda x: x - x.mean(), NUMBER, shapes=("b",), buckets=(1,))
        assert call([np.float32(n) for n in (5, 9)]) == [0, 0]

    def test_a_fixed_batch_in_which_other_rows_count(self, batched):
        call = batched(lambda x: jnp.where(x.max() > 90, x - x.mean(0), x), np.zeros(4, "float32"))
        with pytest.raises(StructureError, match="depends on the other rows"):
            call([np.float32(1)])

    def test_a_function_in_which_places_count(self, batched):
        call = batched(_draw, jax.random.key(0), NUMBER, shapes=(None, "b"))
        with pytest.raises(StructureError, match=r"the place of a row .*jax\.random\.split"):
            call([np.float32(1)], {"key": jax.random.key(3)})


def test_a_function_that_cannot_be_tried(batched, monkeypatch):
    """It ends for no number that is drawn; that is said once."""
    monkeypatch.setattr(trial, "_LOOP_SECONDS", 3.0)
    rise = jax.vmap(lambda r: jax.lax.while_loop(lambda v: v > 0, lambda v: v + 1, r))
    with pytest.warns(UserWarning, match="without a gradient"):
        call = batched(rise, NUMBER, shapes=("b",))
    elements = [np.float32(-1), np.float32(-2)]
    with pytest.warns(UserWarning, match=r"for itself was not tried: .*did not answer"):
        assert call(elements) == [-1, -2]
    assert call(elements) == [-1, -2]
