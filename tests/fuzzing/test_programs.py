"""Random programs through the bridge, and what finds and reduces those that come out wrong."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import enable_x64

from tests.fuzzing.plain_programs import generating as hostile
from tests.fuzzing.plain_programs.statements import HOSTILE
from tests.fuzzing.programs import accuracy, campaign, checks, rehearsal, suite
from tests.fuzzing.programs.checks import Found
from tests.fuzzing.programs.generating import generate
from tests.fuzzing.programs.options import CHECKS, VALUES
from tests.fuzzing.programs.outcomes import FAILURES
from tests.fuzzing.programs.program import Argument, Parameter, Program, Statement
from tests.fuzzing.programs.reducing import reduce
from tests.fuzzing.programs.statements import STATEMENTS
from tests.xla_flags import VARIABLE

# The first programs of the parts, of which the first one is small: `make test` runs it.
FIRSTS = (0, 6, 52, 104, 156, 208, 260)
OF_ONE_WIDTH = 52
COUNT = 312
# Of the documented limits: what is refused more often than this is worth a look.
MAX_REFUSED = 0.35


@pytest.mark.alike
@pytest.mark.parametrize(("first", "end"), [*pairwise((*FIRSTS, COUNT))])
def test_programs_are_right_or_refused(first, end, tmp_path, monkeypatch):
    """Three hundred programs, the same ones each time; every other fifty have 64-bit types.

    LLVM does not optimize here; in `make fuzz` it does.
    """
    monkeypatch.setenv(VARIABLE, "1")
    records = campaign.campaign(
        "programs",
        tmp_path / "programs.jsonl",
        first=first,
        count=end - first,
        chunk=end - first,
        x64=first // OF_ONE_WIDTH % 2 == 1,
    )
    print(campaign.summary(records))
    assert len(records) == end - first
    failed = [
        finding["reduced"] + "\n" + finding["reason"]
        for record in records
        for finding in record.get("findings", ())
    ]
    outcomes = [outcome for record in records for outcome in record["outcomes"]]
    assert not failed
    assert not [outcome for outcome in outcomes if outcome["kind"] in FAILURES]
    assert sum(outcome["kind"] == "refused" for outcome in outcomes) < MAX_REFUSED * len(outcomes)
    compared = sum(outcome.get("compared", 0) for outcome in outcomes)
    assert sum(outcome.get("skipped", 0) for outcome in outcomes) < 0.05 * compared


def _generated(seeds):
    with enable_x64(False):
        return [generate(seed, x64=False) for seed in seeds]


@pytest.mark.filterwarnings("ignore")
def test_every_statement_and_every_option_is_drawn():
    programs = _generated(range(4 * len(STATEMENTS)))
    drawn = {statement.template for program in programs for statement in program.statements}
    assert {template.name for template in STATEMENTS} - drawn == set()
    assert {name for program in programs for name in program.checks} == {*CHECKS}
    options = {option for program in programs for option in program.options}
    assert options == {(name, value) for name, (_, values) in VALUES.items() for value in values}
    lengths = [len(program.statements) for program in programs]
    assert max(lengths) >= 12
    kinds = {argument.dtype for program in programs for argument in program.arguments}
    assert {"float32", "bfloat16", "complex64", "int8", "bool", "float8_e5m2"} < kinds
    assert any(argument.weak for program in programs for argument in program.arguments)
    assert any(0 in argument.shape for program in programs for argument in program.arguments)
    sources = "".join(program.source() for program in programs)
    for text in ("Point(", "Pair(", "None", "*, ", "custom_vjp", "checkpoint", "lax.scan"):
        assert text in sources


def _program(*lines, arguments, returns, **options):
    statements = tuple(
        Statement(target, text, operands, aval, template)
        for target, text, operands, aval, template in lines
    )
    return Program(
        seed=0,
        x64=False,
        arguments=arguments,
        parameters=tuple(Parameter(a.name, a.name) for a in arguments),
        statements=statements,
        returns=returns,
        checks=("load",),
        options=tuple(options.items()),
    )


def _wrong_where_it_sorts(case):
    """A way through the bridge that is wrong about one thing."""
    sizes = case.batches[0]
    values = [np.array(x) for x in case.reference(sizes, 0)[0]]
    if any(statement.template == "sort" for statement in case.program.statements):
        values[0] = values[0] * np.float32(1.001)
    yield Found("load", sizes, [values])


@pytest.mark.filterwarnings("ignore")
def test_what_is_wrong_is_found_and_reduced(monkeypatch):
    monkeypatch.setitem(checks.RUNNERS, "load", _wrong_where_it_sorts)
    arguments = (Argument("x0", ("b", 3), "float32"), Argument("x1", (3,), "float32"))
    program = _program(
        ("v0", "jnp.sin({0})", ("x0",), "float32[b,3]", "sin"),
        ("v1", "{0} + {1}", ("v0", "x1"), "float32[b,3]", "add"),
        ("v2", "jnp.sort({0}, axis=-1)", ("v1",), "float32[b,3]", "sort"),
        ("v3", "jnp.tanh({0})", ("v2",), "float32[b,3]", "tanh"),
        arguments=arguments,
        returns="v3",
        residuals=True,
        batches=(3, 1),
    )
    (outcome,) = suite.run(program)
    assert outcome.kind == "wrong"
    assert "differ" in outcome.reason
    small = reduce(program, lambda p: [o.kind for o in suite.run(p)] == ["wrong"])
    assert [statement.template for statement in small.statements] == ["sort"]
    assert len(small.arguments) == 1
    assert small.options == ()
    text = small.describe()
    assert "jnp.sort(" in text
    exec(text, {})  # it can be pasted


@pytest.mark.filterwarnings("ignore")
def test_a_complex_gradient_of_onnx_is_compared_in_one_convention():
    """The reference has the conjugates of JAX's, as TensorFlow does; the model has JAX's own."""
    program = _program(
        ("v0", "{0} * {0} * (1 + 2j)", ("x0",), "complex64[3]", "multiply"),
        arguments=(Argument("x0", (3,), "complex64"),),
        returns="v0",
        order=1,
    )
    (outcome,) = suite.run(dataclasses.replace(program, checks=("onnx",)))
    assert (outcome.kind, outcome.compared) == ("right", 9), outcome.reason


class TestTolerance:
    """It comes from the program: rounding passes, errors do not."""

    @staticmethod
    def _spread(function, *arguments):
        expected = [np.asarray(x) for x in jax.jit(function)(*arguments)]
        return expected, accuracy.spread(function, list(arguments), expected)

    def test_cancellation_may_differ_and_other_elements_may_not(self):
        x = np.array([1.25, 3.7e4, -2.9e4], np.float32)
        (expected,), (spread,) = self._spread(lambda x: [jnp.log(jnp.exp(x / 1e3)) * 1e3 - x], x)
        assert not accuracy.difference(expected + np.float32(1e-3), expected, spread).text
        assert accuracy.difference(expected + np.float32(10), expected, spread).text
        (stable,), (tight,) = self._spread(lambda x: [jnp.sin(x) * 2], x)
        wrong = stable + np.float32([1e-4, 0, 0])
        assert "1 of 3 differ" in accuracy.difference(wrong, stable, tight).text

    def test_sums_in_another_order(self):
        x = np.random.default_rng(0).normal(size=1000).astype(np.float32)
        (expected,), (spread,) = self._spread(lambda x: [jnp.sum(x)], x)
        other = np.float32(sum(map(float, x[::-1])))
        assert not accuracy.difference(other, expected, spread).text
        assert accuracy.difference(other + np.float32(1e-2), expected, spread).text

    def test_what_jax_is_off_by_itself(self):
        """Of float64, and not of float32, where it is precise."""
        for dtype, error in ((np.float64, 200), (np.float32, 30)):
            with enable_x64(True):
                x = np.array([-0.41420599433458394], dtype)
                (expected,), (spread,) = self._spread(lambda x: [jnp.log1p(x)], x)
            exact = np.log1p(x.astype(np.longdouble)).astype(dtype)
            assert not accuracy.difference(exact, expected, spread).text
            wrong = exact * (1 + 2 * error * np.finfo(dtype).eps).astype(dtype)
            assert accuracy.difference(wrong, exact, spread).text

    def test_quotients_of_which_the_reciprocal_is_subnormal(self):
        """XLA has 0 for them; other quotients that are as small keep their digits."""
        x = np.array([30.0, 1e6], np.float32)
        for divisor, is_loose in ((3e38, True), (3e37, False)):
            (expected,), (spread,) = self._spread(lambda x, by=divisor: [x / by * 0.5], x)
            exact = (x.astype(float) / divisor * 0.5).astype(np.float32)
            assert not accuracy.difference(exact, expected, spread).text
            found = accuracy.difference(exact * np.float32(1.1), exact, spread).text
            assert bool(found) != is_loose
            assert accuracy.difference(exact * np.float32(100), exact, spread).text

    def test_jumps_are_left_out_and_counted(self):
        x = np.array([2.0, 2.5, 1.0], np.float32)
        (expected,), (spread,) = self._spread(
            lambda x: [jnp.floor(jnp.exp(jnp.log(x))).astype(jnp.int32)], x
        )
        other = np.array([5, 2, 5], np.int32)
        found = accuracy.difference(other, expected, spread)
        assert (found.text, found.skipped) == ("", 2)
        assert accuracy.difference(np.array([2, 3, 1], np.int32), expected, spread).text

    @pytest.mark.parametrize(
        "function",
        [
            lambda x: [jax.lax.scan(lambda c, y: (c + y, c * y), x[0], x)[1]],
            lambda x: [jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x)],
            lambda x: [jax.lax.while_loop(lambda c: c.sum() > 1, lambda c: c * 0.4, jnp.abs(x))],
            lambda x: [
                jax.vmap(lambda y: jax.lax.while_loop(lambda c: c > 0.5, lambda c: c * 0.4, y))(
                    jnp.abs(x)
                )
            ],
            lambda x: [jax.checkpoint(jnp.tanh)(x), jax.nn.relu(x), jax.jit(jnp.cumsum)(x)],
            lambda x: [jnp.linalg.cholesky(jnp.outer(x, x) + 9 * jnp.eye(3))],
            lambda x: [jax.grad(lambda y: jnp.prod(jnp.sin(y)))(x)],
            lambda x: [jnp.fft.fft(x), x.astype(jnp.bfloat16) * 3],
        ],
    )
    def test_it_is_small_where_the_program_is_stable(self, function):
        x = np.array([0.7, -1.3, 0.4], np.float32)
        expected, spreads = self._spread(function, x)
        for array, spread in zip(expected, spreads, strict=True):
            assert not spread.unstable.any()
            eps = float(jnp.finfo(array.dtype).eps)
            assert np.all(spread.tolerance <= 400 * eps * (np.abs(array).astype(float) + 1))
            doubled = array * np.asarray(1 + 1e-1, array.dtype)
            assert accuracy.difference(doubled, array, spread).text

    def test_dtypes_shapes_and_nan(self):
        one = np.array([1.0, np.nan], np.float32)
        assert not accuracy.difference(one, one).text
        assert "float64[2] for float32[2]" in accuracy.difference(one.astype(float), one).text
        assert accuracy.difference(one[::-1], one).text
        assert accuracy.difference(one[:1], one).text


def test_deaths_and_hangs_are_those_of_their_seeds(tmp_path, monkeypatch):
    monkeypatch.setitem(campaign.SUITES, "rehearsal", rehearsal.__name__)
    monkeypatch.setattr(campaign, "LIMIT", 3.0)
    file = tmp_path / "rehearsal.jsonl"
    campaign.campaign("rehearsal", file, count=7, first=0, x64=False)
    kinds = {record["seed"]: record["outcomes"][0]["kind"] for record in campaign.read(file)}
    expected = {rehearsal.DIES: "killed", rehearsal.HANGS: "hung"}
    assert kinds == {seed: expected.get(seed, "right") for seed in range(7)}
    text = campaign.summary(campaign.read(file))
    assert "7 programs: 5 right, 1 killed, 1 hung" in text
    more = campaign.campaign("rehearsal", file, count=2)
    assert [record["seed"] for record in more] == [7, 8]  # it goes on where it was


def test_hostile_programs_are_as_they_were_meant(tmp_path):
    """Files of plain operations in a session, with the default optimizer and without XLA."""
    records = campaign.campaign("plain", tmp_path / "plain.jsonl", first=0, count=40, x64=False)
    print(campaign.summary(records))
    outcomes = [outcome for record in records for outcome in record["outcomes"]]
    assert not [outcome for outcome in outcomes if outcome["kind"] in FAILURES]
    assert sum(outcome.get("comparisons", 0) for outcome in outcomes) > 100
    assert "comparisons" in campaign.summary(records)


@pytest.mark.filterwarnings("ignore")
def test_hostile_programs_have_every_hostile_thing():
    with enable_x64(False):
        programs = [hostile.generate(seed, x64=False) for seed in range(2 * len(HOSTILE))]
    drawn = {statement.template for program in programs for statement in program.statements}
    assert {template.name for template in HOSTILE} - drawn == set()
    arguments = [argument for program in programs for argument in program.arguments]
    assert {argument.name[:-1] for argument in arguments} == {*hostile.NAMES}
    assert any(argument.domain == "special" for argument in arguments)
    assert any(argument.shape[:1] == (0,) for argument in arguments)
    assert any(argument.shape[:1] == (1,) for argument in arguments)
    assert any(program.option("batches") == (1,) for program in programs)
    sources = "".join(program.source() for program in programs)
    assert all(f'"{key}"' in sources for key in list(hostile.KEYS.values())[:4])
    special = Argument("x", (400,), "float32", "special").draw({}, 0)
    assert np.isnan(special).any()
    assert np.isinf(special).any()
    assert (np.signbit(special) & (special == 0)).any()
    assert any(0 < abs(number) < np.finfo(np.float32).tiny for number in special)
    reads = [{name for s in program.statements for name in s.operands} for program in programs]
    unread = [
        {a.name for a in program.arguments} - names
        for program, names in zip(programs, reads, strict=True)
    ]
    assert any(unread)
