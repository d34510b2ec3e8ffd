"""`inspect`, as a value and as a command."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import bridge
import savedmodel
from bridge.cli.inspect_command import module_text
from bridge.cli.main import main
from bridge.diff import diff
from bridge.inspecting.cost import costs_of_model
from bridge.inspecting.order_report import report_order
from bridge.inspecting.report_text import print_report
from savedmodel.read import read
from tests.jax_versions import ERF, ERF_OF_SYMBOLS
from tests.json_schema import violations
from xla_call_module.errors import FormatError
from xla_call_module.exported import from_exported

PARAMS = {"dense": [np.ones((3, 4), np.float32), np.zeros(4, np.float32)], "step": np.int32(7)}

# The release before.
BELOW = {"2.16": "2.15", "2.18": "2.17"}[ERF]


def predict(params, x, unused, *, key):
    kernel, bias = params["dense"]
    y = x["a"] @ kernel + bias + jax.random.normal(key, (4,))
    # JAX 0.12 makes the derivative of `erf` of operations that run only later.
    y *= jax.scipy.special.erf(jax.lax.stop_gradient(y))
    return {"y": y, "n": params["step"] + 1}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    (b,) = jax.export.symbolic_shape("b")
    spec = jax.ShapeDtypeStruct
    exported = jax.export.export(
        jax.jit(predict),
        platforms=["cpu", "cuda"],
        disabled_checks=[jax.export.DisabledSafetyCheck.platform()],
    )(
        PARAMS,
        {"a": spec((b, 3), jnp.float32)},
        spec((2 * b,), jnp.int8),
        key=spec((), jax.random.key(0).dtype),
    )
    static = jax.export.export(
        jax.jit(lambda params, x: x * jax.lax.erf(jax.lax.stop_gradient(x)))
    )(PARAMS, spec((2,), jnp.float32))
    folder = tmp_path_factory.mktemp("inspect") / "model"
    bridge.save(
        {"serving_default": exported, "static": static},
        folder,
        params=PARAMS,
        trainable={"dense": [True, False], "step": False},
    )
    return folder


@pytest.fixture(scope="module")
def report(file):
    return bridge.inspect(file)


def test_signatures(report):
    assert [signature.key for signature in report.signatures] == ["serving_default", "static"]
    signature = report.signatures[0]
    inputs = {tensor.name: (tensor.dtype, tensor.shape, tensor.path) for tensor in signature.inputs}
    assert inputs == {
        "x_a": ("float32", ("b", 3), "args[1]['a']"),
        "unused": ("int8", ("2*b",), "args[2]"),
        "key": ("uint32", (2,), "kwargs['key']"),
    }
    assert {tensor.name: tensor.element for tensor in signature.inputs}["key"] == "key<fry>"
    outputs = {tensor.name: (tensor.dtype, tensor.shape) for tensor in signature.outputs}
    assert outputs == {"n": ("int32", ()), "y": ("float32", ("b", 4))}


def test_the_module(report):
    signature = report.signatures[0]
    assert signature.function == "predict"
    assert signature.platforms == ("cpu", "cuda")
    assert signature.disabled_checks == ("platform",)
    assert "shape_assertion" in signature.custom_calls
    assert signature.gradient_order == 1
    assert signature.tensorflow == ERF_OF_SYMBOLS
    assert report.signatures[1].tensorflow == ERF
    assert report.tensorflow == ERF


def test_parameters(report):
    found = [(p.name, p.dtype, p.shape, p.bytes, p.trainable) for p in report.parameters]
    assert found == [
        ("dense/0", "float32", (3, 4), 48, True),
        ("dense/1", "float32", (4,), 16, False),
        ("step", "int32", (), 4, False),
    ]


def test_variables_by_size(report):
    assert [p.name for p in report.parameters_by_size] == ["dense/0", "dense/1", "step"]
    assert [p.share for p in report.parameters_by_size] == [48 / 68, 16 / 68, 4 / 68]


def test_until_when_its_modules_are_promised_to_be_readable(report):
    ends = {order.readable_until for order in report.signatures[0].orders}
    assert report.readable_until == min(ends)
    assert report.to_json()["signatures"][0]["orders"][0]["readable_until"] in ends


def descriptions_of(report):
    """The descriptions in the JSON of a report."""
    signatures = report.to_json()["signatures"]
    return [order["description"] for signature in signatures for order in signature["orders"]]


def test_the_description_of_each_node(file, report, tmp_path):
    """It is the one that the node carries, of the schema, also after TensorFlow saved it again."""
    carried = [json.loads(call.exported) for call in read(file).calls]
    found = descriptions_of(report)
    assert sorted(map(str, found)) == sorted(map(str, carried))
    assert [violations(description) for description in found] == [[]] * 4
    assert found[0]["fun_name"] == "predict"
    assert found[0]["version"] == [1, 0]
    tf = pytest.importorskip("tensorflow")
    tf.saved_model.save(tf.saved_model.load(file), tmp_path / "again")
    again = descriptions_of(bridge.inspect(tmp_path / "again"))
    assert set(map(str, again)) == set(map(str, found))


@pytest.mark.parametrize("path", ["model", "exported.bin"])
def test_the_description_of_an_older_file(path):
    """What JAX serialized has the form of today, though JAX itself refuses it as expired."""
    folder = Path(__file__).parents[1] / "golden" / "1" / "jax-0.7.1" / "symbolic"
    function, gradient = descriptions_of(bridge.inspect(folder / path))
    assert violations(function) == violations(gradient) == []
    assert function["avals"][0] == {"dtype": "float32", "shape": ["b", "c"]}


def test_what_is_not_described():
    """A call of another program, and one that a newer release describes."""
    call = from_exported(jax.export.export(jax.jit(jnp.sin))(1.0))
    assert json.loads(report_order(call).description)["fun_name"] == "sin"
    newer = json.dumps({"version": [2, 0], "read_by": "jax-tf-bridge 7.1"}).encode()
    for carried in (b"", newer):
        assert report_order(dataclasses.replace(call, exported=carried)).description == ""


def test_a_deep_pytree_is_described(tmp_path, capsys):
    tree = np.ones(2, np.float32)
    for _ in range(120):
        tree = {"a": tree}
    (tmp_path / "deep.bin").write_bytes(
        jax.export.export(jax.jit(lambda tree: tree))(tree).serialize()
    )
    assert main(["inspect", str(tmp_path / "deep.bin"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["signatures"][0]["orders"][0]["description"]["fun_name"] == "<lambda>"


def test_constants_of_one_type_are_told_together(tmp_path, capsys):
    constants = [np.full((8, 8), n, np.float32) + np.eye(8, dtype=np.float32) for n in range(5)]

    def f(x):
        x = x @ constants[0]
        x = x @ constants[1]
        x = x @ constants[2]
        x = x @ constants[3]
        return x @ constants[4] + np.arange(8, dtype=np.float32) ** 2

    options = {"args": "f32[8,8]", "hoist_constants": None, "gradient_order": 0}
    bridge.save(f, tmp_path / "model", **options)
    assert main(["inspect", str(tmp_path / "model")]) == 0
    stored = [line for line in capsys.readouterr().out.splitlines() if "stores" in line]
    place = r"\S+test_inspect\.py:\d+"
    assert re.fullmatch(
        rf"function: stores 5 of tensor<8x8xf32>, 256 B each, at {place}, {place}, {place} and 2 "
        r"other places",
        stored[0],
    )
    assert re.fullmatch(rf"function: stores tensor<8xf32>, 32 B, at {place}", stored[1])
    assert len(stored) == 2


def test_every_order_is_told(report):
    signature = report.signatures[0]
    oldest = [(order, ERF_OF_SYMBOLS) for order in (0, 1)]
    assert [(o.order, o.tensorflow) for o in signature.orders] == oldest
    assert signature.orders[0].module_bytes == signature.module_bytes
    function, gradient = (order.operations for order in signature.orders)
    assert function["stablehlo.dot_general"] == 2  # with symbolic and with static dimensions
    assert gradient["stablehlo.dot_general"] >= 1
    total = signature.operations
    assert total["stablehlo.dot_general"] == (
        function["stablehlo.dot_general"] + gradient["stablehlo.dot_general"]
    )
    assert not {"func.func", "builtin.module", "func.return"} & total.keys()
    assert list(total.values()) == sorted(total.values(), reverse=True)
    assert signature.parameters == ("dense/0", "dense/1", "step")


def test_what_stops_older_releases(report):
    obstacles = report.signatures[1].orders[0].obstacles
    releases = ["2.14", "2.15", "2.16", "2.17"]
    assert [o.tensorflow for o in obstacles] == releases[: releases.index(BELOW) + 1]
    last = obstacles[-1]
    line = predict.__code__.co_firstlineno  # the other function of this file is further down
    found = re.fullmatch(
        r"(?:stablehlo\.composite|mhlo\.erf) at .*test_inspect\.py:(\d+)", last.operation
    )
    assert found is not None
    assert int(found[1]) > line
    assert last.reason == f"{last.operation} runs from TensorFlow {ERF} on"
    assert last.removable is True


def test_checks_in_force(file, monkeypatch):
    monkeypatch.setenv(
        "TF_XLA_FLAGS", "--tf_xla_call_module_disabled_checks=platform,shape_assertions,Platform"
    )
    found = bridge.inspect(file)
    checks = [[(c.name, c.sources) for c in s.checks] for s in found.signatures]
    flag = ("shape_assertions", ("TF_XLA_FLAGS",))
    assert checks == [
        [("platform", ("file", "TF_XLA_FLAGS")), flag],
        [("platform", ("TF_XLA_FLAGS",)), flag],
    ]
    assert [s.disabled_checks for s in found.signatures] == [("platform",), ()]
    assert any("'Platform'" in sentence for sentence in found.flags)


def test_constants(tmp_path):
    values = np.arange(300, dtype=np.float32)
    large = np.arange(30_000, dtype=np.float32)
    exported = jax.export.export(jax.jit(lambda x: (x + values, large * x[0])))(values)
    bridge.save(exported, tmp_path / "m")
    found = bridge.inspect(tmp_path / "m")
    order = found.signatures[0].orders[0]
    (constant,) = order.constants
    assert (constant.type, constant.bytes) == ("tensor<300xf32>", 1200)
    assert "test_inspect.py" in constant.location
    assert order.constant_bytes == 1200
    assert [(p.constant, p.bytes, p.share) for p in found.parameters] == [(True, 120_000, 1.0)]


def test_warmup_assets_and_files(file, tmp_path):
    import tensorflow as tf

    shutil.copytree(file, tmp_path / "m")
    for folder in ("assets", "assets.extra"):
        (tmp_path / "m" / folder).mkdir()
    (tmp_path / "m" / "assets" / "words.txt").write_text("a\nb\n")
    (tmp_path / "m" / "assets" / "link.txt").symlink_to(file / "saved_model.pb")
    warmup = tmp_path / "m" / "assets.extra" / "tf_serving_warmup_requests"
    with tf.io.TFRecordWriter(str(warmup)) as writer:
        for size in (10, 20):
            writer.write(b"x" * size)
    found = bridge.inspect(tmp_path / "m")
    assert [(asset.path, asset.bytes) for asset in found.assets] == [("assets/words.txt", 4)]
    assert (found.warmup.records, found.warmup.bytes) == (2, 30)
    assert found.bytes == sum(stored.bytes for stored in found.files)
    assert {"saved_model.pb", "variables/variables.index"} <= {f.path for f in found.files}
    warmup.write_bytes(warmup.read_bytes()[:-1])
    with pytest.raises(FormatError, match="tf_serving_warmup_requests, byte 26"):
        bridge.inspect(tmp_path / "m")


def test_what_a_terminal_would_obey_is_shown(report):
    hostile = "\x1b[31mred\x07\u202e[bold]"
    changed = dataclasses.replace(
        report,
        path=hostile,
        parameters=(dataclasses.replace(report.parameters[0], name=hostile),),
        signatures=(dataclasses.replace(report.signatures[0], key=hostile, function=hostile),),
    )
    console = Console(file=io.StringIO(), width=120)
    print_report(changed, console)
    text = console.file.getvalue()
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert text.count(r"\x1b[31mred\x07\u202e[bold]") == 4


# The memory that `getrusage` tells of begins with that of the process that started this one.
_MEASURE = """
import re, sys
from bridge.cli.main import main
assert main(["inspect", *sys.argv[1:]]) == 0
status = open("/proc/self/status").read()
own, peak = (int(re.search(rf"{key}:\\s+(\\d+)", status)[1]) / 1e3 for key in ("RssAnon", "VmHWM"))
print(own, peak, "jax" in sys.modules, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large") / "m"
    params = [np.zeros((1 << 25,), np.float32) for _ in range(4)]
    params += [np.float32(number) for number in range(500)]
    exported = jax.export.export(jax.jit(lambda p, x: p[0][:2] + x))(params, np.float32(1))
    bridge.save(exported, folder, params=params, gradient_order=0)
    return folder


@pytest.mark.parametrize("options", [[], ["--json"], ["--html", "page.html"], ["--mlir"]])
def test_looking_needs_neither_jax_nor_the_variables(large, tmp_path, options):
    options = [str(tmp_path / option) if option == "page.html" else option for option in options]
    command = [sys.executable, "-c", _MEASURE, str(large), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    own, peak, with_jax = done.stderr.split()
    assert with_jax == "False"
    # How much of jaxlib's 300 MB counts is up to the page cache; the variables have 537 MB.
    assert float(peak) < 300
    assert float(own) < 60


def test_a_table_is_as_wide_as_its_widest_cell(large):
    console = Console(file=io.StringIO(), highlight=False, width=40)
    print_report(bridge.inspect(large), console)
    lines = console.file.getvalue().splitlines()
    first, second = (next(line for line in lines if line.startswith(f"{n} ")) for n in ("0", "499"))
    assert first == "0    float32[33554432]  trainable  134.2 MB  25.0%"
    assert second == "499  float32[]          trainable       4 B   0.0%"


def test_the_target_is_what_was_asked_for(tmp_path):
    exported = jax.export.export(jax.jit(jnp.sin))(np.zeros(3, np.float32))
    bridge.save(exported, tmp_path / "m", tensorflow="2.20")
    signature = bridge.inspect(tmp_path / "m").signatures[0]
    assert (signature.stablehlo, signature.tensorflow) == ("1.12.1", "2.20")


def test_after_tensorflow_has_saved_it_again(file, report, tmp_path):
    import tensorflow as tf

    model = tf.saved_model.load(str(file))
    model.params["step"].assign(8)
    tf.saved_model.save(model, str(tmp_path / "again"), signatures=model.signatures)
    again = bridge.inspect(tmp_path / "again")
    assert again.metadata == {}
    before, after = report.signatures[0], again.signatures[0]
    # `unused` is no operand of the call, and what named it was in the metadata
    known = {tensor.name: tensor for tensor in before.inputs if tensor.used}
    assert {tensor.name: tensor for tensor in after.inputs} == known
    assert after.outputs == before.outputs
    assert (after.platforms, after.gradient_order) == (before.platforms, before.gradient_order)
    assert again.parameters == report.parameters
    assert (again.writer, again.saved_again) == (f"TensorFlow {tf.__version__}", True)
    assert (report.writer.partition(" ")[0], report.saved_again) == ("jax-tf-bridge", False)


def test_command(file, report, capsys):
    assert main(["inspect", str(file), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(json.dumps(report.to_json()))
    assert main(["inspect", str(file)]) == 0
    text = capsys.readouterr().out
    for part in (
        "float32[b,3]",
        f"readable from TensorFlow {ERF} on",
        "cpu, cuda",
        "dense/0",
        "fixed",
    ):
        assert part in text


def test_command_without_tensorflow(file):
    code = (
        "import sys; sys.modules['tensorflow'] = None\n"
        f"from bridge.cli.main import main; sys.exit(main(['inspect', {str(file)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Signature serving_default" in done.stdout


def test_module_is_the_command(tmp_path):
    command = [sys.executable, "-m", "bridge", "inspect", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "has no saved_model.pb" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_of_several_calls(tmp_path):
    import tensorflow as tf

    double = bridge.convert(lambda x: jnp.sin(x) * 2)
    total = bridge.convert(lambda x: (x @ x.T).sum(0))
    module = tf.Module()

    @tf.function(input_signature=[tf.TensorSpec([3, 2], tf.float32)])
    def both(x):
        y = double(x)
        return {"twice": tf.cast(y, tf.int32), "flat": tf.reshape(total(y), [-1, 1]), "same": x}

    tf.saved_model.save(module, str(tmp_path / "m"), signatures=both)
    (signature,) = bridge.inspect(tmp_path / "m").signatures
    assert [(tensor.name, tensor.dtype, tensor.used) for tensor in signature.inputs] == [
        ("x", "float32", True)
    ]
    outputs = {tensor.name: (tensor.dtype, tensor.shape) for tensor in signature.outputs}
    assert outputs == {
        "twice": ("int32", (3, 2)),
        "flat": ("float32", ("_", 1)),
        "same": ("float32", (3, 2)),
    }
    assert [order.title for order in signature.orders if not order.order] == [
        "function",
        "call 2, function",
    ]
    assert signature.operations["stablehlo.sine"] >= 1
    assert signature.operations["stablehlo.dot_general"] >= 1
    text = module_text(tmp_path / "m")
    assert text.count("@main") == 2
    assert len(costs_of_model(savedmodel.read(tmp_path / "m"))) == 2
    assert diff(tmp_path / "m", tmp_path / "m").equal


@pytest.mark.parametrize("name", ["jax2tf", "bare_graph"])
def test_a_file_of_another_program(foreign, name, tmp_path, capsys):
    path = foreign(name).folder
    report = bridge.inspect(path)
    assert report.writer.startswith("TensorFlow 2.")
    assert report.saved_again is False
    signature = report.signatures[0]
    assert signature.function == {"jax2tf": "predict", "bare_graph": "scale_and_sum"}[name]
    assert "b" in str([tensor.shape for tensor in signature.inputs])
    assert diff(path, path).equal
    page = tmp_path / "page.html"
    assert main(["inspect", str(path), "--html", str(page)]) == 0
    assert re.fullmatch(rf"{page}: \d+\.\d KB\n", capsys.readouterr().out)
    assert signature.function in (tmp_path / "page.html").read_text()
    assert main(["inspect", str(path), "--cost", "--batch", "4", "--json"]) == 0
    costs = json.loads(capsys.readouterr().out)["costs"]
    assert all(cost["flops"] > 0 for cost in costs)


@pytest.mark.parametrize("damage", ["cut", "noise", "empty"])
def test_a_damaged_file(file, tmp_path, damage):
    data = (file / "saved_model.pb").read_bytes()
    (tmp_path / "saved_model.pb").write_bytes(
        {"cut": data[: len(data) // 2], "noise": b"\xff" * 100, "empty": b""}[damage]
    )
    with pytest.raises(FormatError, match=r"saved_model\.pb"):
        bridge.inspect(tmp_path)
