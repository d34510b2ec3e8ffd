"""The bridge between JAX and TensorFlow: functions of one run in the other.

Importing this package imports neither JAX nor anything else that takes time; a public name loads
what it needs when it is first used.
"""

import typing as _typing

from xla_call_module.lazy_names import load_lazily as _load_lazily

if _typing.TYPE_CHECKING:
    from bridge import beam as beam
    from bridge import jax2tf as jax2tf
    from bridge import keras as keras
    from bridge import meshes as meshes
    from bridge import serving as serving
    from bridge import testing as testing
    from bridge import tf_keras as tf_keras
    from bridge.call_tf import call_tf
    from bridge.convert import convert
    from bridge.exporting.stages import exported_from_stage
    from bridge.inspect import inspect
    from bridge.litert.conversion import save_litert, to_litert
    from bridge.load import load
    from bridge.onnx.conversion import save_onnx, to_onnx
    from bridge.retarget import retarget
    from bridge.save import save
    from bridge.to_jax import to_jax
    from bridge.update import update
    from bridge.verify import verify
    from xla_call_module.errors import (
        ArgumentError,
        DtypeError,
        FormatError,
        InteropError,
        LoweringError,
        MissingDependencyError,
        PlatformError,
        ShardingError,
        StructureError,
        UnsupportedError,
        VersionError,
    )

    __version__: str

__all__ = [
    "ArgumentError",
    "DtypeError",
    "FormatError",
    "InteropError",
    "LoweringError",
    "MissingDependencyError",
    "PlatformError",
    "ShardingError",
    "StructureError",
    "UnsupportedError",
    "VersionError",
    "call_tf",
    "convert",
    "exported_from_stage",
    "inspect",
    "load",
    "retarget",
    "save",
    "save_litert",
    "save_onnx",
    "to_jax",
    "to_litert",
    "to_onnx",
    "update",
    "verify",
]

_HOMES = {
    "ArgumentError": "xla_call_module.errors",
    "DtypeError": "xla_call_module.errors",
    "FormatError": "xla_call_module.errors",
    "InteropError": "xla_call_module.errors",
    "LoweringError": "xla_call_module.errors",
    "MissingDependencyError": "xla_call_module.errors",
    "PlatformError": "xla_call_module.errors",
    "ShardingError": "xla_call_module.errors",
    "StructureError": "xla_call_module.errors",
    "UnsupportedError": "xla_call_module.errors",
    "VersionError": "xla_call_module.errors",
    "call_tf": "bridge.call_tf",
    "convert": "bridge.convert",
    "exported_from_stage": "bridge.exporting.stages",
    "inspect": "bridge.inspect",
    "load": "bridge.load",
    "retarget": "bridge.retarget",
    "save": "bridge.save",
    "save_litert": "bridge.litert.conversion",
    "save_onnx": "bridge.onnx.conversion",
    "to_jax": "bridge.to_jax",
    "to_litert": "bridge.litert.conversion",
    "to_onnx": "bridge.onnx.conversion",
    "update": "bridge.update",
    "verify": "bridge.verify",
}
_DISTRIBUTION = "jax-tf-bridge"
_INSTEAD = {"export": "bridge.save"}
# Each with the package that it needs.
_MODULES = {
    "beam": "apache_beam",
    "jax2tf": "tensorflow",
    "keras": "keras",
    "meshes": "jax",
    "serving": "jax",
    "testing": "jax",
    "tf_keras": "tf_keras",
}
_load_lazily(__name__)
