"""Operations: what does not run in TensorFlow is in the table, and refused with its source line."""

import base64
import dataclasses
import json
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export, lax
from jax.extend.mlir import ir
from jax.interpreters.mlir import make_ir_context
from jax.sharding import Mesh, PartitionSpec

from xla_call_module.analyses.operations import OPERATIONS
from xla_call_module.errors import PlatformError
from xla_call_module.exported import from_exported
from xla_call_module.platforms import PLATFORMS
from xla_call_module.runtime.op import Op
from xla_call_module.stablehlo.modules import serialize_module

X = jax.ShapeDtypeStruct((4,), "float32")
_ONE = "replica_groups = dense<0> : tensor<1x1xi64>"
_TYPE = "(tensor<4xf32>) -> tensor<4xf32>"
_WITH_TOKEN = "(!stablehlo.token) -> (tensor<4xf32>, !stablehlo.token)"
_TO_TOKEN = "(tensor<4xf32>, !stablehlo.token) -> !stablehlo.token"
_CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
_SUM = """({ ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %sum = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %sum : tensor<f32> })"""
_NUMBER = """%r = stablehlo.convert %n : (tensor<ui32>) -> tensor<f32>
    %v = stablehlo.broadcast_in_dim %r, dims = [] : (tensor<f32>) -> tensor<4xf32>"""
# One body of `main` for each operation, which returns %v; the last three run.
BODIES = {
    "collective_permute": '%v = "stablehlo.collective_permute"(%x) {source_target_pairs = '
    f"dense<0> : tensor<1x2xi64>}} : {_TYPE}",
    "partition_id": f"%n = stablehlo.partition_id : tensor<ui32>\n{_NUMBER}",
    "replica_id": f"%n = stablehlo.replica_id : tensor<ui32>\n{_NUMBER}",
    "all_gather": f'%v = "stablehlo.all_gather"(%x) {{all_gather_dim = 0 : i64, {_ONE}}} : {_TYPE}',
    "all_to_all": '%v = "stablehlo.all_to_all"(%x) {split_dimension = 0 : i64, concat_dimension '
    f"= 0 : i64, split_count = 1 : i64, {_ONE}}} : {_TYPE}",
    "reduce_scatter": f'%v = "stablehlo.reduce_scatter"(%x) {_SUM} {{scatter_dimension = 0 : i64, '
    f"{_ONE}}} : {_TYPE}",
    "infeed": f'%v:2 = "stablehlo.infeed"(%t) : {_WITH_TOKEN}',
    "outfeed": f'%u = "stablehlo.outfeed"(%x, %t) : {_TO_TOKEN}\n%v = stablehlo.sine %x : '
    "tensor<4xf32>",
    "send": f'%u = "stablehlo.send"(%x, %t) {{{_CHANNEL}}} : {_TO_TOKEN}\n%v = stablehlo.sine %x '
    ": tensor<4xf32>",
    "recv": f'%v:2 = "stablehlo.recv"(%t) {{{_CHANNEL}}} : {_WITH_TOKEN}',
    "collective_broadcast": f'%v = "stablehlo.collective_broadcast"(%x) {{{_ONE}}} : {_TYPE}',
    "all_reduce": f'%v = "stablehlo.all_reduce"(%x) {_SUM} {{{_ONE}}} : {_TYPE}',
    "after_all": "%u = stablehlo.after_all %t, %t : !stablehlo.token\n%v = stablehlo.negate "
    "%x : tensor<4xf32>",
    "map": f'%v = "stablehlo.map"(%x, %x) {_SUM} {{dimensions = array<i64: 0>}} : (tensor<4xf32>, '
    "tensor<4xf32>) -> tensor<4xf32>",
}
OUTCOMES = {
    "which ends the process of TensorFlow": r"signal (6|11)",
    "which TensorFlow refuses with 'Device assignment is null'": "Device assignment is null",
    "for which TensorFlow waits for ever": "hangs",
    "which XLA cannot compile": "HLO opcode .* is not supported by XLA:CPU ThunkEmitter",
}
RUN = {
    "all_reduce": "[0.0, 1.0, 2.0, 3.0]",
    "after_all": "[-0.0, -1.0, -2.0, -3.0]",
    "map": "[0.0, 2.0, 4.0, 6.0]",
}


def _module(name):
    """The artifact of a module with one body."""
    body = BODIES[name]
    result = "%v#0" if "%v:2" in body else "%v"
    text = f"""module @m {{ func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
        %t = stablehlo.create_token : !stablehlo.token
        {body}
        return {result} : tensor<4xf32> }} }}"""
    with make_ir_context():
        return serialize_module(ir.Module.parse(text), (1, 10, 0))


def _exported(name, platforms=("cpu",)):
    exported = export.export(jax.jit(jnp.sin), platforms=["cpu"])(X)
    return dataclasses.replace(
        exported, mlir_module_serialized=_module(name), platforms=tuple(platforms)
    )


@pytest.fixture(scope="module")
def outcomes():
    """Return what TensorFlow makes of each operation, by its name."""
    modules = {name: base64.b64encode(_module(name)).decode() for name in BODIES}
    done = subprocess.run(
        [sys.executable, "-m", "tests.xla_call_module.analyses.tensorflow_alone"],
        input=json.dumps(modules),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


class TestTheTable:
    def test_each_row_has_a_source(self):
        assert len({operation.name for operation in OPERATIONS}) == len(OPERATIONS)
        for operation in OPERATIONS:
            assert operation.source
            assert set(operation.lacking) <= set(PLATFORMS)
        assert {operation.name.removeprefix("stablehlo.") for operation in OPERATIONS} == (
            BODIES.keys() - RUN.keys()
        )

    @pytest.mark.parametrize("row", OPERATIONS, ids=lambda row: row.name)
    def test_tensorflow_agrees(self, row, outcomes):
        assert re.search(OUTCOMES[row.outcome], outcomes[row.name.removeprefix("stablehlo.")])

    @pytest.mark.parametrize("name", RUN)
    def test_what_runs_is_not_in_it(self, name, outcomes):
        assert outcomes[name] == RUN[name]
        assert from_exported(_exported(name)).platforms == ("cpu",)

    @pytest.mark.parametrize("row", OPERATIONS, ids=lambda row: row.name)
    def test_each_is_refused_where_it_is_lacking(self, row):
        name = row.name.removeprefix("stablehlo.")
        with pytest.raises(PlatformError, match=rf"^sin has {row.name} at .* on cpu\. To do: "):
            from_exported(_exported(name))
        assert from_exported(_exported(name, ["tpu"])).platforms == ("tpu",)

    def test_a_module_for_several_devices_is_another_matter(self):
        exported = dataclasses.replace(_exported("all_gather"), nr_devices=2)
        assert from_exported(exported).nr_devices == 2


def _shard(function):
    """A function of one device, in which the axis `i` has a name."""
    mesh = Mesh(np.array(jax.devices()[:1]), ("i",))
    specs = {"in_specs": PartitionSpec("i"), "out_specs": PartitionSpec("i")}
    return jax.jit(jax.shard_map(function, mesh=mesh, **specs))


COLLECTIVES = {
    "ppermute": (lambda x: lax.ppermute(x, "i", [(0, 0)]), "collective_permute"),
    "all_gather": (lambda x: lax.all_gather(x, "i", tiled=True), "all_gather"),
    "reduce_scatter": (lambda x: lax.psum_scatter(x, "i", tiled=True), "reduce_scatter"),
}


class TestWhatJaxLowers:
    @pytest.mark.parametrize("primitive", COLLECTIVES)
    @pytest.mark.parametrize("platforms", [["cpu"], ["cuda", "cpu", "tpu"]], ids="-".join)
    def test_a_collective(self, primitive, platforms):
        function, name = COLLECTIVES[primitive]
        exported = export.export(_shard(function), platforms=platforms)(X)
        # JAX 0.9 knows where the `shard_map` is called and not what is inside.
        line = r"\d+" if jax.__version_info__ < (0, 10) else function.__code__.co_firstlineno
        rest = r", or export it for the others, platforms=\['cuda', 'tpu'\]"
        with pytest.raises(
            PlatformError,
            match=rf"computes {primitive} with stablehlo\.{name} at \S*test_operations\.py:{line}, "
            rf".* on cpu\. To do: compute .* function{rest if len(platforms) > 1 else ''}\.$",
        ):
            from_exported(exported)
        assert from_exported(export.export(_shard(function), platforms=["cuda", "tpu"])(X))

    def test_a_branch_for_another_platform(self):
        function = _shard(
            lambda x: lax.platform_dependent(
                x, cpu=jnp.sin, default=lambda x: lax.all_gather(x, "i", tiled=True)
            )
        )
        assert from_exported(export.export(function, platforms=["cuda", "cpu"])(X))

    @pytest.mark.parametrize(
        "function",
        [
            lambda x: lax.psum(x, "i"),
            lambda x: x + lax.axis_index("i"),
            lambda x: lax.all_to_all(x, "i", 0, 0, tiled=True),
        ],
        ids=["psum", "axis_index", "all_to_all"],
    )
    def test_what_one_device_does_alone(self, function):
        call = from_exported(export.export(_shard(function), platforms=["cpu"])(X))
        x = np.arange(4, dtype="float32")
        np.testing.assert_array_equal(Op(call).run([tf.constant(x)])[0], x)
