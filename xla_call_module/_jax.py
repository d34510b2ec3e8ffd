"""Private names of JAX, and forms that differ between versions, each behind a named gate.

The first is MLIR without JAX. `jax.extend.mlir`, the public way to it, hands on what jaxlib has
(https://docs.jax.dev/en/latest/jax.extend.html), but importing it imports all of JAX, which takes
longer, and more memory, than looking at a file does. So `ir`, `PassManager`, three dialects, and
what is done to portable artifacts, come from jaxlib as they do there, and from `jax.extend.mlir`
where jaxlib has them in other places. The gate can go when that can be imported alone.

They are imported when one is first used: what is written for a release of TensorFlow runs there
where neither JAX nor jaxlib is installed.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import io
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xla_call_module.errors import MissingDependencyError, private_name

__all__ = [
    "PassManager",
    "abstract_device",
    "abstract_device_of",
    "dense_elements",
    "effect_name",
    "effect_of",
    "failed_legalization",
    "func",
    "has_hlo_shardings",
    "hlo_sharding",
    "hlo_shardings",
    "ir",
    "is_runtime_inherited",
    "location_kind",
    "logical_device_ids",
    "make_exported",
    "make_ir_context",
    "named_shardings",
    "parse_artifact",
    "parse_fault",
    "pytree_classes",
    "refine_module",
    "register_stablehlo_passes",
    "registered_by_class",
    "registered_by_name",
    "sdy",
    "serialize_artifact",
    "stablehlo",
    "stablehlo_versions",
    "survive_forks",
    "with_logical_device_ids",
]

if TYPE_CHECKING:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func, sdy, stablehlo
    from jaxlib.mlir.passmanager import PassManager
else:

    class _LateName:
        """A module or class of jaxlib's MLIR, which is imported when something of it is used."""

        def __init__(self, name: str) -> None:
            self._late_name = name

        def __getattr__(self, attribute: str) -> Any:
            if attribute.startswith("__"):
                raise AttributeError(attribute)
            value = getattr(_mlir()[self._late_name], attribute)
            setattr(self, attribute, value)  # the next time it is found as any attribute is
            return value

    ir = _LateName("ir")
    func, sdy, stablehlo = map(_LateName, ("func", "sdy", "stablehlo"))
    PassManager = _LateName("PassManager")


@functools.cache
def _mlir() -> Mapping[str, Any]:
    """Return the names of MLIR, all at once.

    Operations have the classes of their dialect only where that is imported.

    Raises:
        MissingDependencyError: neither jaxlib nor JAX is installed.
    """
    try:
        try:
            from jaxlib.mlir import ir
            from jaxlib.mlir.dialects import func, sdy, stablehlo
            from jaxlib.mlir.passmanager import PassManager
        except ImportError:
            from jax.extend.mlir import ir  # type: ignore[no-redef]
            from jax.extend.mlir.dialects import func, sdy, stablehlo  # type: ignore[no-redef]
            from jax.extend.mlir.passmanager import PassManager
    except ImportError as error:
        raise MissingDependencyError(
            "Reading and rewriting StableHLO modules needs jaxlib, which is not installed. To do: "
            "pip install jaxlib."
        ) from error
    names = (ir, func, sdy, stablehlo, PassManager)
    return dict(zip(("ir", "func", "sdy", "stablehlo", "PassManager"), names, strict=True))


def pytree_classes() -> Mapping[type, Any]:
    """Return the classes that are registered as pytree nodes, each with what was registered.

    `jax.tree_util` flattens a node of any class, and makes one only of a treedef, which there is no
    way to have without a node; the function that makes one of static data and children,
    `from_iter`, is in a private table (jax/_src/tree_util.py, `_registry`). Without the gate no
    class is known, and nodes of a file become stand-ins. It can go when JAX makes a treedef of a
    class, static data and children: `PyTreeDef.from_node_data_and_children` ends the process where
    there are too few of them.
    """
    try:
        from jax._src.tree_util import _registry
    except ImportError:
        return {}
    return _registry


def make_ir_context() -> Any:
    """Return an MLIR context with the dialects that modules of JAX have.

    It is that of the public `jax.interpreters.mlir.make_ir_context`, in one thread. The gate is
    that of this file; where jaxlib keeps its dialects in other places the context is JAX's own.
    """
    _mlir()
    try:
        return _context_class()()
    except (ImportError, AttributeError):
        from jax.interpreters import mlir

        return mlir.make_ir_context()


def survive_forks() -> None:
    """Have MLIR contexts of JAX's use threads of their own process, here and in forked children.

    All of them share one pool of threads (jax/_src/interpreters/mlir.py, `global_thread_pool`),
    which a forked child has without the threads, and waits for ever for these. So the pool is
    replaced when a process is forked; and once now, since this may be such a child. Without the
    gate nothing is replaced. It can go when JAX does this.
    """
    _forks()


def is_runtime_inherited() -> bool:
    """Return whether this process was forked from one that had used JAX's runtime.

    The threads with which XLA compiles and computes are in that process only. No public name says
    whether JAX has begun to use them (jax/_src/xla_bridge.py, `backends_are_initialized`). Without
    the gate it is taken to have not. It can go when one does.
    """
    return _forks().inherited


class _Forks:
    """The remains of the threads of the process that this one was forked from."""

    def __init__(self) -> None:
        self.inherited = False
        self._old: list[Any] = []  # contexts may refer to them, and their threads cannot be joined
        self._renew_pool()
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        self._renew_pool()
        bridge = sys.modules.get("jax._src.xla_bridge")
        is_used = getattr(bridge, "backends_are_initialized", lambda: False)
        self.inherited = self.inherited or is_used()

    def _renew_pool(self) -> None:
        mlir: Any = sys.modules.get("jax._src.interpreters.mlir")
        pool = getattr(mlir, "global_thread_pool", None)
        if pool is not None:
            self._old.append(pool)
            mlir.global_thread_pool = type(pool)()
        # Since JAX 0.12 a thread takes the same context several times, which has the old pool.
        kept = getattr(mlir, "_thread_local_context", None)
        if kept is not None and kept.value is not None:
            self._old.append(kept.value)
            kept.set_local(None)


@functools.cache
def _forks() -> _Forks:
    return _Forks()


@functools.cache
def _context_class() -> Any:
    """Return the class of contexts with the dialects of JAX, jax/_src/interpreters/mlir.py."""
    from jaxlib.mlir._mlir_libs import _chlo, _jax_mlir_ext, _mlirHlo, _sdy, _stablehlo

    class _Context(ir.Context):
        def __init__(self) -> None:
            # Not `ir.Context.__init__`, which loads every dialect that is linked into jaxlib.
            super(ir.Context, self).__init__()
            upstream = ir.DialectRegistry()
            _jax_mlir_ext.register_dialects(upstream)
            self.append_dialect_registry(upstream)
            self.enable_multithreading(False)
            for register in (
                _sdy.register_dialect,
                _mlirHlo.register_mhlo_dialect,
                _chlo.register_dialect,
                _stablehlo.register_dialect,
            ):
                register(self)

    return _Context


def _artifact_functions() -> Any:
    """Return the module that has the functions for portable artifacts."""
    _mlir()
    try:
        from jaxlib import _jax

        return _jax.mlir
    except (ImportError, AttributeError):
        from jax.extend import mlir

        return mlir


def stablehlo_versions() -> tuple[str, str]:
    """Return the oldest and the newest version of portable artifacts that this jaxlib reads.

    The gate is that of this file.
    """
    return str(stablehlo.get_minimum_version()), str(stablehlo.get_current_version())


def register_stablehlo_passes() -> None:
    """Make StableHLO's passes known to `PassManager`; the gate is that of this file."""
    stablehlo.register_stablehlo_passes()


def refine_module(module: Any, *, check_assertions: bool) -> Any:
    """Return the module with the shapes that follow from its arguments', in the current context.

    The gate is that of this file.

    Raises:
        RuntimeError, ValueError: there are no such shapes, or an assertion does not hold.
    """
    bytecode = io.BytesIO()
    module.operation.write_bytecode(bytecode)
    refine = _artifact_functions().refine_polymorphic_shapes
    return ir.Module.parse(refine(bytecode.getvalue(), check_assertions, True))


def parse_artifact(artifact: bytes) -> Any:
    """Return the module of a portable artifact, in the current MLIR context.

    Newer versions of `jax.extend.mlir.deserialize_portable_artifact` return the module, JAX 0.9 its
    text (jaxlib's mlir.cc). The gate can go with JAX 0.9.
    """
    parsed = _artifact_functions().deserialize_portable_artifact(artifact)
    return ir.Module.parse(parsed) if isinstance(parsed, str) else parsed


def serialize_artifact(module: Any, version: str, *, mixed: bool = False) -> bytes:
    """Return the portable artifact of a module.

    JAX 0.9 takes the bytecode, newer ones the module; the gate can go with the one above.

    Args:
        module: the parsed module.
        version: the version of StableHLO.
        mixed: whether Shardy's operations stay as they are; otherwise they become StableHLO's
            attributes.
    """
    serialize = _artifact_functions().serialize_portable_artifact
    try:
        return bytes(serialize(module, version, mixed))
    except TypeError:
        bytecode = io.BytesIO()
        module.operation.write_bytecode(bytecode)
        return bytes(serialize(bytecode.getvalue(), version, mixed))


# The classes of MLIR's locations (mlir/lib/Bindings/Python/IRCore.cpp).
_LOCATIONS = {
    "NameLoc": "name",
    "FileLineColLoc": "file",
    "CallSiteLoc": "callsite",
    "FusedLoc": "fused",
}


def location_kind(location: Any) -> str:
    """Return `name`, `file`, `callsite` or `fused`, a location's kind; empty for any other.

    Newer versions of jaxlib have a class for each kind. That of JAX 0.9 has one for all, which is
    asked for its kind; to read what only another kind has ends the process there. The gate can go
    with that version.
    """
    name = type(location).__name__
    if name != "Location":
        return _LOCATIONS.get(name, "")
    kinds = _LOCATIONS.values()
    return next((kind for kind in kinds if getattr(location, f"is_a_{kind}", bool)()), "")


def dense_elements(array: np.ndarray[Any, Any], element: Any) -> Any:
    """Return the elements of a constant, in the current MLIR context.

    With JAX 0.9.0 it takes eight bools as the bits of a byte, since then each as a byte
    (llvm/llvm-project, mlir/lib/Bindings/Python/IRAttributes.cpp). The gate can go with JAX 0.9.
    """
    make: Any = ir.DenseElementsAttr.get  # its stub knows no numpy arrays
    array = np.asarray(array, order="C")  # what repeats one element lies there once
    try:
        return make(array, type=element, shape=array.shape)
    except ValueError:
        packed = np.packbits(array, axis=None, bitorder="little")
        return make(packed, type=element, shape=array.shape)


def named_shardings(exported: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the `NamedSharding`s of an `Exported`: of its arguments and of its results, or None.

    JAX keeps them in private fields (jax/_src/export/_export.py). From 0.12 on the public
    `in_shardings_jax` gives them without a mesh, and is asked; before, it asks for the mesh that is
    to be found out. The gate can go with JAX 0.11.

    Raises:
        VersionError: it is for several devices, and the fields are missing where they should be.
    """
    may_lack = exported.nr_devices == 1
    names = ("_in_named_shardings", "_out_named_shardings")
    with private_name("an Exported for several devices", "jax"):
        if _gives_named_shardings(type(exported)):
            return tuple(exported.in_shardings_jax()), tuple(exported.out_shardings_jax(None))
        if may_lack and not all(hasattr(exported, name) for name in names):
            return (None,) * len(exported.in_avals), (None,) * len(exported.out_avals)
        return tuple(exported._in_named_shardings), tuple(exported._out_named_shardings)


def _gives_named_shardings(kind: type) -> bool:
    """Return whether the shardings of an `Exported` can be asked for without a mesh."""
    mesh = inspect.signature(kind.in_shardings_jax).parameters.get("mesh")  # type: ignore[attr-defined]  # of any `Exported`
    return mesh is not None and mesh.default is None


def hlo_shardings(exported: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the compiler's shardings of an `Exported`: of arguments and of results, or None.

    Files of JAX 0.8 and older have these alone. From 0.12 on the public fields are always None, and
    will go (jax/_src/export/_export.py, `Exported`), so they are not read. The gate can go with
    JAX 0.11.
    """
    if not has_hlo_shardings():
        return (None,) * len(exported.in_avals), (None,) * len(exported.out_avals)
    return tuple(exported.in_shardings_hlo), tuple(exported.out_shardings_hlo)


def logical_device_ids(sharding: Any) -> tuple[int, ...]:
    """Return the order of devices that a `NamedSharding` has besides its mesh's; mostly empty.

    JAX sets it where a module says so (jax/_src/named_sharding.py); no public name tells it.
    Without the gate there is none. It can go when JAX drops it.
    """
    return tuple(getattr(sharding, "_logical_device_ids", None) or ())


def with_logical_device_ids(sharding: Any, devices: Sequence[int]) -> Any:
    """Return a `NamedSharding` with an order of devices besides its mesh's; as it is for none.

    The gate is that of `logical_device_ids`.
    """
    if not devices:
        return sharding
    with private_name("a sharding with an order of devices", "jax"):
        return type(sharding)(
            sharding.mesh,
            sharding.spec,
            memory_kind=sharding.memory_kind,
            _logical_device_ids=tuple(devices),
        )


def registered_by_class() -> Mapping[type, tuple[str, Callable[[Any], bytes]]]:
    """Return name and function of each class whose static data `jax.export` can serialize.

    `jax.export.register_pytree_node_serialization` fills the table, and no public name asks it
    (jax/_src/export/_export.py, `serialization_registry`). Without the gate no class is known. It
    can go when there is one.
    """
    try:
        from jax._src.export._export import serialization_registry
    except ImportError:
        return {}
    return serialization_registry


def registered_by_name() -> Mapping[str, tuple[type, Callable[[bytes], Any], Callable[..., Any]]]:
    """Return class, reader of static data and maker of a node for each registered name.

    The gate is that of `registered_by_class`.
    """
    try:
        from jax._src.export._export import deserialization_registry
    except ImportError:
        return {}
    return deserialization_registry


def effect_of(name: str) -> Any:
    """Return the effect of a type, by the name that JAX serializes; None for one that is not known.

    Only types that JAX knows as lowerable are made (jax/_src/effects.py, `lowerable_effects`).
    Without the gate none is known. It can go when `jax.export` has public effects.
    """
    try:
        from jax._src.effects import lowerable_effects

        known = lowerable_effects._effect_types
    except (ImportError, AttributeError):
        return None
    kind = next((kind for kind in known if effect_name(kind) == name), None)
    return None if kind is None else kind()


def effect_name(kind: type) -> str:
    """Return the name of a type of effects, as `module.name`."""
    return f"{kind.__module__}.{kind.__qualname__}"


def hlo_sharding(proto: bytes) -> Any:
    """Return the `HloSharding` of a serialized `OpSharding`.

    Files of JAX 0.8 and older have it alone, and an `Exported` has it up to JAX 0.11; no public
    name makes one, it is jaxlib's. The gate can go with JAX 0.11.
    """
    with private_name("an Exported for several devices", "jaxlib"):
        from jaxlib import xla_client

        message = xla_client.OpSharding()
        message.ParseFromString(proto)
        return xla_client.HloSharding.from_proto(message)


def abstract_device_of(mesh: Any) -> tuple[str, int | None, str] | None:
    """Return kind, number of cores and platform of a mesh's devices; None where it has none.

    JAX 0.9 has no platform there. The gate can go with that version.
    """
    device = mesh.abstract_device
    if device is None:
        return None
    return str(device.device_kind), device.num_cores, str(getattr(device, "platform", ""))


def abstract_device(kind: str, num_cores: int | None, platform: str) -> Any:
    """Return the `jax.sharding.AbstractDevice`, which JAX 0.9 has without a platform.

    The gate can go with that version.
    """
    import jax.sharding

    make: Any = jax.sharding.AbstractDevice
    try:
        return make(kind, num_cores, platform)
    except TypeError:
        return make(kind, num_cores)


def make_exported(
    fields: Mapping[str, Any],
    named: Sequence[Sequence[Any]],
    hlo: Sequence[Sequence[Any]],
    vjp: Any,
) -> Any:
    """Return an `Exported` of its public fields, its shardings and its VJP.

    The class is public, and its fields are not all (jax/_src/export/_export.py, `Exported`): it has
    the shardings by the names of axes in `in_named_shardings`, and some versions say in
    `has_named_shardings` which of both are to be taken; these and `get_vjp` begin with an
    underscore. The fields that the installed version does not have are left out. The gate
    can go when an `Exported` has a public constructor.

    Args:
        fields: the public fields.
        named: the `NamedSharding`s of the arguments and of the results, or None for each.
        hlo: their `HloSharding`s, or None for each.
        vjp: the function that returns the VJP of an `Exported`; None for none.
    """
    from jax import export

    given = {
        **fields,
        "in_named_shardings": tuple(named[0]),
        "out_named_shardings": tuple(named[1]),
        "in_shardings_hlo": tuple(hlo[0]),
        "out_shardings_hlo": tuple(hlo[1]),
        "has_named_shardings": all(sharding is None for side in hlo for sharding in side),
        "get_vjp": vjp,
    }
    known = {own: given[name] for name, own in _fields_of_exported().items() if name in given}
    with private_name("an Exported of a file", "jax"):
        return export.Exported(**known)


def _fields_of_exported() -> dict[str, str]:
    """Return the fields by their names without the underscore that private ones begin with."""
    from jax import export

    return {field.name.lstrip("_"): field.name for field in dataclasses.fields(export.Exported)}


def has_hlo_shardings() -> bool:
    """Return whether an `Exported` of this JAX can have the compiler's shardings.

    JAX from 0.12 on keeps the fields and does not use them. The gate is that of `make_exported`.
    """
    return "has_named_shardings" in _fields_of_exported()


def failed_legalization(error: Exception) -> tuple[str, str, str] | None:
    """Return the place, the scope and the name of an operation that has no form at a version.

    MLIR raises one class for all that its passes refuse, and the error has no fields: it reads
    `f.py:3:9: error: failed to legalize operation 'vhlo.composite_v2' that was …`, or has a scope
    where the operation has no file of its own (mlir/lib/Transforms/Utils/DialectConversion.cpp).
    The module cannot be asked before, since jaxlib does not say since which version an operation
    is.
    Without the gate, or for any other error, it is None, and messages have MLIR's first line. It
    can go when jaxlib says that.
    """
    match = re.search(r"(?:(\S+): error: (.*))?failed to legalize operation '([^']+)'", str(error))
    return None if match is None else (match[1] or "", match[2] or "", match[3])


def parse_fault(error: Exception) -> tuple[str, str]:
    """Return what MLIR's parser does not understand of a text, and its name there, if known.

    It is `quantization`, `dialect` with the name of one, `redefinition`, `operation` with the
    number of its line, or empty for anything else. There is no parsed module to ask, and the parser
    raises one class for all of them, which differ by their text alone
    (mlir/lib/AsmParser/Parser.cpp). Without the gate the remedy in a message is a general one. It
    can go when the error says what it is of.
    """
    text = str(error)
    if "!quant." in text or '!"quant"' in text:
        return "quantization", ""
    if dialect := re.search(r"Dialect `(\w+)' not\s+found", text):
        return "dialect", dialect[1]
    if re.search(r"redefinition\s+of\s+symbol", text):
        return "redefinition", ""
    if re.search(r"unregistered\s+dialect", text):
        line = re.search(r'error: "[^"]*":(\d+):', text)
        return "operation", line[1] if line else ""
    return "", ""
