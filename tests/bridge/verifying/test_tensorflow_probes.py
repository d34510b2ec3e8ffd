"""Functions that TensorFlow releases are known to compute otherwise: probed, named, excused."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax
from rich.console import Console

import bridge
from bridge.cli.terminal import print_verification
from bridge.verifying.comparison import Tolerance
from bridge.verifying.reference import deviations_of
from bridge.verifying.tensorflow_probes import PROBES, probe_all
from bridge.verifying.tensorflow_process import TensorFlowRun
from bridge.verifying.trials import Trial, read_trials, write_trials
from bridge.verifying.verification import compare
from xla_call_module import from_exported
from xla_call_module.analyses.dependence import operations_behind
from xla_call_module.versions import DEVIATIONS, parse_release

MAXIMUM = "maximum_of_nan"


@pytest.mark.parametrize("known", DEVIATIONS, ids=lambda known: known.name)
def test_each_is_as_the_table_has_it_in_this_tensorflow(known):
    has_platform = known.platform == "cpu" or bool(tf.config.list_physical_devices("GPU"))
    release = parse_release(tf.__version__).tensorflow
    is_in = has_platform and known.since <= release <= (known.until or release)
    assert probe_all([known.name]) == [known.name] * is_in


def test_each_has_a_probe():
    assert PROBES.keys() == {known.name for known in DEVIATIONS}


def network(x):
    pooled = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return {"pooled": jax.nn.relu(pooled).sum((1, 2)), "plain": jnp.sin(x)}


@pytest.fixture(scope="module")
def report(tmp_path_factory, preloaded_python):
    folder = tmp_path_factory.mktemp("known") / "model"
    bridge.save(jax.export.export(jax.jit(network))(np.ones((2, 4, 4, 2), np.float32)), folder)
    return bridge.verify(folder, python=preloaded_python)


def test_a_correct_network_is_not_called_different(report, capsys):
    assert report.passed, [row.problem for row in report.rows if row.problem]
    found = [(row.inputs, row.order) for row in report.rows if row.known]
    assert found
    assert found[0] == ("nan", 0)
    assert {inputs for inputs, _ in found} == {"nan"}
    first = next(row.known for row in report.rows if row.known)
    assert first == "pooled: the maximum or minimum of a number and NaN is the number"
    print_verification(report, Console(width=200))
    printed = capsys.readouterr().out
    assert f"Known differences of TensorFlow {tf.__version__}: pooled: the maximum" in printed
    assert "all as in JAX, but for known differences" in printed
    assert any(row["known"] for row in report.to_json()["rows"])


def trial_of(deviations=(MAXIMUM,), wanted=(1.0, np.nan), gradient=(1.0, 2.0)):
    return Trial(
        signature="s",
        kind="nan",
        sizes={},
        inputs={"x": np.float32([1, np.nan])},
        differentiated=("x",),
        variables=(),
        outputs=("y",),
        cotangents=({"y": np.float32([1, 1])},),
        expected=({"y": np.float32(wanted)}, {"input/x": np.float32(gradient)}),
        deviations={"y": deviations},
    )


def rows_of(trial, found=(1.0, 3.0), gradient=(1.0, 2.0), deviations=(MAXIMUM,)):
    results = {(0, 0, "y"): np.float32(found), (0, 1, "input/x"): np.float32(gradient)}
    run = TensorFlowRun("2.21", "", {0: ""}, results, deviations)
    return [(bool(row.problem), bool(row.known)) for row in compare(0, trial, run, Tolerance())]


RIGHT, WRONG, KNOWN = (False, False), (True, False), (False, True)


def test_only_what_it_explains_is_excused():
    assert rows_of(trial_of()) == [KNOWN, RIGHT]
    # A gradient behind it is another one.
    assert rows_of(trial_of(), gradient=(1.0, 5.0)) == [KNOWN, KNOWN]
    # So is one of inputs with NaN, which JAX may lose in the VJP alone; of others it is not.
    assert rows_of(trial_of(), found=(1.0, np.nan), gradient=(1.0, 5.0)) == [RIGHT, KNOWN]
    finite = dataclasses.replace(trial_of(), inputs={"x": np.float32([1, 2])})
    assert rows_of(finite, found=(1.0, np.nan), gradient=(1.0, 5.0)) == [RIGHT, WRONG]
    # JAX, too, loses a NaN, and then TensorFlow has one; where both have numbers, one is wrong.
    assert rows_of(trial_of(wanted=(1.0, 2.0)), found=(1.0, np.nan)) == [KNOWN, RIGHT]
    assert rows_of(
        dataclasses.replace(finite, expected=trial_of(wanted=(1.0, 2.0)).expected),
        found=(1.0, np.nan),
    ) == [WRONG, RIGHT]
    # A number is another number.
    assert rows_of(trial_of(), found=(2.0, 3.0)) == [WRONG, RIGHT]
    assert rows_of(trial_of(wanted=(1.0, 2.0))) == [WRONG, RIGHT]
    # What does not depend on the operation, or a TensorFlow that does not have it.
    assert rows_of(trial_of(deviations=())) == [WRONG, RIGHT]
    assert rows_of(trial_of(), deviations=()) == [WRONG, RIGHT]
    # Another shape.
    assert rows_of(trial_of(), gradient=(1.0, 5.0, 6.0)) == [KNOWN, WRONG]


def test_of_operations_that_keep_nan_only_a_nan_that_jax_lost_is_excused():
    plain = dataclasses.replace(trial_of(), keeps_nan=True)
    assert rows_of(plain, deviations=()) == [WRONG, RIGHT]
    assert rows_of(plain) == [WRONG, RIGHT]
    numbers = dataclasses.replace(plain, expected=trial_of(wanted=(1.0, 2.0)).expected)
    assert rows_of(numbers, found=(1.0, np.nan), deviations=()) == [KNOWN, RIGHT]
    finite = dataclasses.replace(numbers, inputs={"x": np.float32([1, 2])})
    assert rows_of(finite, found=(1.0, np.nan)) == [WRONG, RIGHT]


def test_a_wrong_number_is_a_failure_that_names_its_cause():
    def function(a, b):
        product = lax.dot(a, b, preferred_element_type=jnp.int32)
        return product, a.astype(np.int16) @ b.astype(np.int16), jnp.maximum(a, 0)

    a, b = np.ones((3, 5), np.int8), np.ones((5, 7), np.int8)
    call = from_exported(jax.export.export(jax.jit(function))(a, b))
    first, *others = deviations_of(call)
    assert first == ("int8_product",)
    assert not any("int8_product" in names for names in others)
    trial = dataclasses.replace(trial_of(first), expected=({"y": np.int32([5])},), cotangents=())
    results = {(0, 0, "y"): np.int32([10])}
    (row,) = compare(0, trial, TensorFlowRun("2.21", "", {0: ""}, results, first), Tolerance())
    assert "twice too large" in row.problem
    (row,) = compare(0, trial, TensorFlowRun("2.21", "", {0: ""}, results, ()), Tolerance())
    assert row.problem
    assert "twice too large" not in row.problem


def test_a_record_holds_what_is_known(tmp_path):
    write_trials(tmp_path / "a.npz", [trial_of()])
    (read,) = read_trials(tmp_path / "a.npz")
    assert read.deviations == {"y": (MAXIMUM,)}
    write_trials(tmp_path / "b.npz", [dataclasses.replace(trial_of(), deviations={})])
    assert read_trials(tmp_path / "b.npz")[0].deviations == {}


def test_operations_are_found_behind_results():
    @jax.jit
    def inner(x, y):
        return jnp.maximum(x, 0), y

    def function(x, y):
        first, second = inner(x, y)
        looped = lax.fori_loop(0, 3, lambda _, z: inner(z, z)[0] + 1, y)
        return first, second, looped, jnp.max(y), y + first

    exported = jax.export.export(jax.jit(function))(np.ones(3, np.float32), np.ones(3, np.float32))
    found = operations_behind(from_exported(exported), ["stablehlo.maximum", "stablehlo.add"])
    short = ["".join(sorted(name[10] for name in names)) for names in found]
    assert short == ["m", "", "am", "m", "am"]
