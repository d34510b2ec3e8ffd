"""Each pass ensures what it says, and a pipeline parses a module once and serializes it once."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from tests.work import times_called
from xla_call_module import from_exported
from xla_call_module._jax import parse_artifact, serialize_artifact
from xla_call_module.errors import ArgumentError
from xla_call_module.passes.exported_form import DROP_LOCATIONS
from xla_call_module.passes.module_pass import open_call, run_on_module, run_passes
from xla_call_module.passes.pipeline import (
    Artifact,
    Target,
    passes_for,
    prepare,
)
from xla_call_module.versions import OLDEST, RELEASES

TABLE = np.random.default_rng(0).standard_normal((3, 40)).astype(np.float32)
X = np.eye(3, dtype=np.float32)
SPLIT = NamedSharding(AbstractMesh((2,), ("d",), axis_types=(AxisType.Auto,)), PartitionSpec("d"))
ALL = Target(OLDEST, platforms=("cuda",), portable_linalg=True, hoist_from=100, locations=False)
NAMES = [step.name for step in passes_for(ALL)]


def _everything(x):
    """Something for each pass but the one for MHLO, which newer versions of JAX do not write."""
    bytes_ = x.astype(jnp.int8)
    squared = lax.dot(bytes_, bytes_, preferred_element_type=jnp.int32)
    cut = lax.conv(x[None, None], x[None, None, :2, :2], (1, 1), ((-1, 1), (0, 1)))[0, 0]
    y = lax.erf(jnp.linalg.cholesky(x) @ TABLE) + squared[:, :1] + cut.sum()
    return lax.with_sharding_constraint(y, SPLIT)


@pytest.fixture(scope="module")
def exported():
    function = jax.jit(_everything)
    return export.export(function, platforms=["cuda", "cpu"])(jax.ShapeDtypeStruct((3, 3), X.dtype))


@pytest.fixture(scope="module")
def call(exported):
    return from_exported(exported)


@pytest.mark.parametrize("name", NAMES)
def test_a_pass_ensures_what_it_says(call, name):
    steps = passes_for(ALL)
    with open_call(call) as parsed:
        for step in steps:
            had_work = bool(step.violation(parsed))
            after = run_on_module(parsed, [step])
            assert step.violation(after) == ""
            after.module.operation.verify()
            assert had_work == (after is not parsed)
            if step.name == name:
                # What the earlier ones ensure still holds.
                earlier = steps[: steps.index(step)]
                assert [one.name for one in earlier if one.violation(after)] == []
                assert had_work or name in ("mhlo_calls", "composites")
            parsed = after


@pytest.mark.parametrize("name", NAMES)
def test_a_pass_that_has_nothing_to_do_changes_nothing(call, name):
    (step,) = (step for step in passes_for(ALL) if step.name == name)
    once = run_passes(call, [step])
    assert run_passes(once, [step]) is once
    assert len(once.changes) == (once is not call and step is not DROP_LOCATIONS)


def test_what_a_pass_requires_comes_before_it():
    steps = passes_for(ALL)
    for index, step in enumerate(steps):
        assert set(step.requires) <= {one.name for one in steps[:index]}
    with pytest.raises(
        ArgumentError, match=r"locations requires platforms.*, which comes after it"
    ):
        run_passes(None, [DROP_LOCATIONS, *steps])


def _work(action):
    """Return how often modules are parsed, and serialized."""
    return times_called(parse_artifact, action), times_called(serialize_artifact, action)


@pytest.mark.parametrize(
    "release", [None, *RELEASES], ids=lambda release: release.name if release else "any"
)
def test_one_parse_and_one_serialization(release):
    function = jax.jit(lambda x: jnp.sin(x @ TABLE))
    call = from_exported(export.export(function, platforms=["cuda", "cpu"])(X))
    target = dataclasses.replace(ALL, tensorflow=release)
    prepared = prepare(call, target)
    assert _work(lambda: prepare(call, target)) == (1, 1)
    assert prepared.calls[0].platforms == ("cuda",)
    assert [value.shape for value in prepared.constants.values()] == [TABLE.shape]


def test_nothing_is_parsed_where_nothing_is_to_be_done():
    call = from_exported(export.export(jax.jit(jnp.sin))(X))
    target = Target(RELEASES[-1], Artifact.IF_NEEDED, portable_linalg=True, hoist_from=1 << 20)
    (made,) = prepare(call, target).calls
    assert _work(lambda: prepare(call, target)) == (0, 0)
    assert made.module == call.module


def test_the_changes_are_told_in_their_order(call):
    changes = prepare(call, ALL).calls[0].changes
    assert changes[:6] == (
        "platforms cuda, cpu to cuda",
        "linear algebra in portable operations",
        "products of int8 in int32 for NVIDIA GPUs",
        "images cut off before their convolutions",
        "large constants as arguments",
        "shardings for GSPMD",
    )
    assert changes[-1].startswith("StableHLO 1.")
