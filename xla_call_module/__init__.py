"""One call of a StableHLO module: an `Exported` as a single XlaCallModule node, as a value.

`call.CallModule` is the value. `exported.from_exported` makes it of a `jax.export.Exported` and
refuses what cannot run, with `analyses`; `passes.pipeline` rewrites its module for a release of
TensorFlow (`versions`), in the steps that `stablehlo` and `linalg` have. From there it goes into a
graph or a file as a node (`node.encode_node`), or runs in a live TensorFlow (`runtime.op`). Back it
comes by `node.decode_node` and `exported.to_exported`. `shardings` and `pytrees` are the values of
which its arguments and results are described; `dtypes`, `dimensions`, `platforms` and `checks` are
those of its attributes. `size_polynomials` computes with sizes, whoever has them.

To add a field to a call, add it to `CallModule` with the check that it makes sense, write it and
read it in `node`, and say in `exported` where it comes from.

Importing this package imports neither JAX nor TensorFlow; the names that need JAX load it when
they are first used.
"""

import typing as _typing

from xla_call_module.lazy_names import load_lazily as _load_lazily

if _typing.TYPE_CHECKING:
    from xla_call_module.call import CallModule, TensorSpec
    from xla_call_module.checks import DisabledCheck
    from xla_call_module.errors import InteropError
    from xla_call_module.exported import from_exported
    from xla_call_module.node import decode_node, encode_node
    from xla_call_module.passes.pipeline import retarget

__all__ = [
    "CallModule",
    "DisabledCheck",
    "InteropError",
    "TensorSpec",
    "decode_node",
    "encode_node",
    "from_exported",
    "retarget",
]

_HOMES = {
    "CallModule": "xla_call_module.call",
    "DisabledCheck": "xla_call_module.checks",
    "InteropError": "xla_call_module.errors",
    "TensorSpec": "xla_call_module.call",
    "decode_node": "xla_call_module.node",
    "encode_node": "xla_call_module.node",
    "from_exported": "xla_call_module.exported",
    "retarget": "xla_call_module.passes.pipeline",
}
_load_lazily(__name__)
