"""`diff`, as a value and as a command."""

from __future__ import annotations

import json
import shutil
import tracemalloc

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import bridge
from bridge.cli.main import main
from bridge.diff import diff
from bridge.inspecting.diff_weights import diff_weights
from savedmodel.model import Variable
from xla_call_module.dtypes import dtype_from_name
from xla_call_module.errors import FormatError

PARAMS = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.zeros(4, np.float32)}


def predict(params, x):
    return jnp.tanh(x @ params["w"] + params["b"])


def _export(function=predict, size=2, **options):
    spec = jax.ShapeDtypeStruct((size, 3), jnp.float32)
    return jax.export.export(jax.jit(function), **options)(PARAMS, spec)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diff")

    def save(name, exported, params=PARAMS, **options):
        bridge.save(exported, folder / name, params=params, **options)
        return folder / name

    save("base", _export())
    return save


@pytest.fixture(scope="module")
def base(saved):
    return saved("a", _export())


def _found(report, kind):
    return [(d.where, d.first, d.second) for d in report.differences if d.kind == kind]


def test_other_source_lines_are_no_difference(saved, base):
    def predict(params, x):
        return jnp.tanh(x @ params["w"] + params["b"])

    assert diff(base, saved("elsewhere", _export(predict))).equal


def test_another_function(saved, base):
    def predict(params, x):
        return jnp.sin(x @ params["w"]) + params["b"]

    report = diff(base, saved("sine", _export(predict), gradient_order=2))
    operations = _found(report, "operations")
    assert ("serving_default, function: stablehlo.tanh", "1", "") in operations
    assert ("serving_default, function: stablehlo.sine", "", "1") in operations
    assert ("serving_default, gradient 2", "", "there") in _found(report, "signatures")
    assert report.weights == ()


def test_constants_differ_where_operations_do_not(saved):
    first, second = (
        saved(f"times_{n}", _export(lambda p, x, n=n: x @ p["w"] * n + p["b"])) for n in (2, 3)
    )
    report = diff(first, second)
    assert {d.kind for d in report.differences} == {"modules"}


def test_specs_platforms_checks_and_versions(saved, base):
    check = jax.export.DisabledSafetyCheck.platform()
    other = _export(size=5, platforms=["cpu", "tpu"], disabled_checks=[check])
    report = diff(base, saved("specs", other, tensorflow="2.16"))
    specs = _found(report, "specs")
    assert ("serving_default: in x", *(f"float32[{n},3] at args[1], number 0" for n in (2, 5))) in (
        specs
    )
    assert _found(report, "checks") == [
        ("serving_default: platforms", "cpu", "cpu, tpu"),
        ("serving_default: disabled", "", "platform"),
    ]
    versions = {where for where, _, _ in _found(report, "versions")}
    assert {"tensorflow", "serving_default, function: StableHLO"} <= versions


def test_signatures(saved, base):
    report = diff(base, saved("two", {"serving_default": _export(), "more": _export()}))
    assert _found(report, "signatures") == [("more", "", "there")]
    assert len(report.differences) == 1


def test_shardings(saved):
    mesh = jax.sharding.AbstractMesh((4,), ("d",))
    files = []
    for axis in (0, 1):
        spec = jax.sharding.PartitionSpec(*[None] * axis, "d")
        function = jax.jit(jnp.sin, in_shardings=jax.sharding.NamedSharding(mesh, spec))
        exported = jax.export.export(function)(np.zeros((4, 4), np.float32))
        files.append(saved(f"axis_{axis}", exported, params=None))
    found = _found(diff(*files), "shardings")
    assert (
        "serving_default, function: in args[0]",
        "{devices=[4,1]<=[4]}",
        "{devices=[1,4]<=[4]}",
    ) in found


def test_weights(saved, base):
    changed = {"w": PARAMS["w"].copy(), "b": PARAMS["b"]}
    changed["w"][1, 2] += 0.5
    changed["w"][2, 3] = np.nan
    report = diff(base, saved("changed", _export(), changed))
    assert report.differences == ()
    (weight,) = report.weights
    assert (weight.name, weight.elements, weight.different) == ("w", 12, 2)
    assert (weight.greatest, weight.index, weight.unmatched_nans) == (0.5, (1, 2), 1)
    assert weight.relative == pytest.approx(0.5 / 6.5)


def test_what_tensorflow_saved_again_with_other_values(base, tmp_path):
    import tensorflow as tf

    model = tf.saved_model.load(str(base))
    model.params["b"].assign([0, 0, 0.25, 0])
    tf.saved_model.save(model, str(tmp_path / "again"), signatures=model.signatures)
    report = diff(base, tmp_path / "again")
    assert {difference.kind for difference in report.differences} == {"versions"}
    assert [(w.name, w.greatest, w.index) for w in report.weights] == [("b", 0.25, (2,))]


def test_several_variables_of_one_name(base, tmp_path):
    """As Keras and jax2tf name them."""
    import tensorflow as tf

    folders = []
    for number in range(2):
        model = tf.saved_model.load(str(base))
        again = tf.Module()
        again.params = [tf.Variable([float(i), i * number], name="kernel") for i in range(3)]
        again.f = model.signatures["serving_default"]
        again.model = model
        folders.append(tmp_path / str(number))
        tf.saved_model.save(again, str(folders[-1]), signatures=model.signatures)
    found = [(w.name, w.greatest, w.index) for w in diff(*folders).weights]
    assert found == [("params/1", 1, (1,)), ("params/2", 2, (1,))]


def _variable(values, *, name="v", pieces=1):
    values = np.asarray(values)
    data = values.reshape(-1).view(np.uint8)
    return Variable(
        name,
        dtype_from_name(values.dtype.name, where=name),
        values.shape,
        chunks=lambda: iter(np.array_split(data, pieces)),
    )


def _compare(first, second, **options):
    found = list(diff_weights({"v": _variable(first)}, {"v": _variable(second, **options)}))
    return found[0] if found else None


INF, NAN = np.inf, np.nan
BFLOAT16 = ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (np.float32([NAN, INF, -0.0]), np.float32([NAN, INF, 0.0])),
        (np.complex64([complex(NAN, 1)]), np.complex64([complex(2, NAN)])),
        (np.array([1.5, NAN], BFLOAT16), np.array([1.5, NAN], BFLOAT16)),
        (np.zeros((0, 3), np.int8), np.zeros((0, 3), np.int8)),
    ],
)
def test_equal_values(first, second):
    assert _compare(first, second) is None


@pytest.mark.parametrize(
    ("first", "second", "greatest", "relative", "index"),
    [
        (np.float32([1, 2]), np.float32([1, 3]), 1, 1 / 3, (1,)),
        (np.float32([1]), np.float32([INF]), INF, INF, (0,)),
        (np.float64([INF]), np.float64([-INF]), INF, INF, (0,)),
        (np.float64([0]), np.float64([5e-324]), 5e-324, 1, (0,)),
        (np.array([1, 2], BFLOAT16), np.array([1, 4], BFLOAT16), 2, 0.5, (1,)),
        (np.complex64([[3 + 4j]]), np.complex64([[0]]), 5, 1, (0, 0)),
        (np.int64([-(2**63)]), np.int64([2**63 - 1]), 2.0**64, 2, (0,)),
        (np.uint64([2**64 - 1]), np.uint64([2**64 - 2]), 1, 0, (0,)),
        (np.int8([-128]), np.int8([127]), 255, 255 / 128, (0,)),
        (np.array(True), np.array(False), 1, 1, ()),
        (np.int32([3]), np.float32([2]), 1, 1 / 3, (0,)),
    ],
)
def test_different_values(first, second, greatest, relative, index):
    found = _compare(first, second)
    assert (found.different, found.greatest, found.index) == (1, greatest, index)
    assert found.relative == pytest.approx(relative, abs=1e-15)


def test_another_dtype_with_the_same_values_is_told():
    found = _compare(np.float32([1, 2]), np.array([1, 2], BFLOAT16))
    assert (found.first, found.second, found.different) == ("float32[2]", "bfloat16[2]", 0)


def test_another_shape_and_missing_ones():
    found = list(
        diff_weights(
            {"a": _variable(np.zeros(3)), "b": _variable(np.zeros(3))},
            {"b": _variable(np.zeros((3, 1))), "c": _variable(np.int8(0))},
        )
    )
    assert [(w.name, w.first, w.second) for w in found] == [
        ("a", "float64[3]", ""),
        ("b", "float64[3]", "float64[3,1]"),
        ("c", "", "int8[]"),
    ]


def test_pieces_that_end_anywhere():
    values = np.arange(1_500_000, dtype=np.float64)
    other = values.copy()
    other[[7, 1_234_567]] += [1, -2]
    found = _compare(values, other, pieces=7)
    assert (found.different, found.greatest, found.index) == (2, 2, (1_234_567,))


def test_large_variables_do_not_fill_the_memory(tmp_path):
    large = np.zeros(48 << 20, np.float32)
    paths = []
    for value in (0, 1):
        large[-1] = value
        exported = jax.export.export(jax.jit(lambda p: p[:2]))(large)
        paths.append(tmp_path / str(value))
        bridge.save(exported, paths[-1], params=large, gradient_order=0)
    del large
    tracemalloc.start()
    (weight,) = diff(*paths).weights
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (weight.different, weight.index) == (1, ((48 << 20) - 1,))
    assert peak < 100e6


def test_a_damaged_value_is_found(saved, base, tmp_path):
    shutil.copytree(base, tmp_path / "damaged")
    file = tmp_path / "damaged" / "variables" / "variables.data-00000-of-00001"
    data = bytearray(file.read_bytes())
    data[data.index(PARAMS["w"].tobytes()) + 7] ^= 1
    file.write_bytes(data)
    with pytest.raises(FormatError, match="the checksum of the 48 bytes"):
        diff(base, tmp_path / "damaged")


def test_command(saved, base, tmp_path, capsys):
    assert main(["diff", str(base), str(base)]) == 0
    assert capsys.readouterr().out == "Nothing differs.\n"
    changed = {"w": PARAMS["w"].copy(), "b": PARAMS["b"] + 1}
    changed["w"][0, :2] = INF, NAN
    other = str(saved("command", _export(size=4), changed))
    assert main(["diff", str(base), other]) == 1
    text = capsys.readouterr().out
    for part in (
        "specs",
        "float32[2,3] at args[1], number 0 -> float32[4,3]",
        "b: float32[4], 4 of 4 elements differ, by at most 1 at [0], relatively 1",
        "1 are no number in one only",
    ):
        assert part in text
    assert main(["diff", str(base), other, "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["equal"] is False
    assert {w["name"]: w["greatest"] for w in printed["weights"]} == {"w": "inf", "b": 1.0}
    assert main(["diff", str(base), str(tmp_path / "nowhere")]) == 2
    assert "has no saved_model.pb" in capsys.readouterr().err
