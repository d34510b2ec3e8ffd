"""`CallModule`: one call of a StableHLO module, as a value."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xla_call_module.checks import SHAPE_ASSERTIONS, DisabledCheck
from xla_call_module.dimensions import Shape, aval_text, evaluate, evaluate_shape, solve, symbols
from xla_call_module.dtypes import DType, dtype_from_name
from xla_call_module.errors import FormatError, PlatformError, StructureError, VersionError
from xla_call_module.platforms import PLATFORMS
from xla_call_module.pytrees.tree_nodes import Trees
from xla_call_module.shardings.array_sharding import Sharding
from xla_call_module.versions import CONVENTIONS, StablehloVersion, parse_stablehlo_version

# The entry of `CallModule.changes` of a VJP that JAX made of a lifted function.
MADE_OF_OPERATIONS = "made of the operations of the function, without the rules of its author"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One flat argument or result of a call, as it crosses into TensorFlow.

    Attributes:
        shape: the physical shape, symbolic dimensions as text; None where the rank is unknown
            (a node that another program wrote).
        dtype: the physical element type.
        path: the pytree path, such as `args[0]['w']` or `result[1]`.
        name: what the Python function calls it, such as `params['w']`; empty where unknown.
        element: JAX's logical dtype where it is another: `float0` (a cotangent of an integer,
            carried as bool) or `key<fry>` (a typed PRNG key, carried as its uint32 key data).
        is_zero: whether the module returns zeros there whatever its arguments are. A gradient
            that is so belongs to an argument on which nothing depends.
        sharding: how it lies on the devices of the call; None where that is left open.
    """

    shape: Shape | None
    dtype: DType
    path: str
    name: str = ""
    element: str = ""
    is_zero: bool = False
    sharding: Sharding | None = None

    @property
    def static_shape(self) -> tuple[int | None, ...] | None:
        """The shape with None for each symbolic dimension."""
        if self.shape is None:
            return None
        return tuple(dim if isinstance(dim, int) else None for dim in self.shape)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` reads."""
        fields: dict[str, Any] = {
            "shape": None if self.shape is None else list(self.shape),
            "dtype": self.dtype.name,
            "path": self.path,
        }
        optional = {"name": self.name, "element": self.element, "is_zero": self.is_zero}
        return fields | {key: value for key, value in optional.items() if value}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], *, where: str) -> TensorSpec:
        """Return the spec that `to_json` wrote.

        Raises:
            FormatError: the object has another form.
            StructureError, DtypeError: a dimension or the dtype is not one that JAX has.
        """
        shape, path = fields.get("shape"), fields.get("path")
        if not isinstance(path, str) or not (shape is None or _is_shape(shape)):
            raise FormatError(f"{where}: {str(fields)[:200]} does not describe a tensor.")
        evaluate_shape(tuple(shape or ()), {})  # refuses a text that is no dimension
        return cls(
            shape=None if shape is None else tuple(shape),
            dtype=dtype_from_name(str(fields.get("dtype")), where=f"{path} in {where}"),
            path=path,
            name=str(fields.get("name", "")),
            element=str(fields.get("element", "")),
            is_zero=bool(fields.get("is_zero", False)),
        )

    def __str__(self) -> str:
        """Return the aval as JAX prints it, such as `float32[b,3]`."""
        return aval_text(self.dtype.name, self.shape)


@dataclass(frozen=True, slots=True)
class CallModule:
    """One call of a StableHLO module: all that an XlaCallModule node says, checked.

    It is made from a `jax.export.Exported` by `from_exported` and from a node by `decode_node`.

    Attributes:
        name: the name of the Python function.
        module: the StableHLO portable artifact (VHLO bytecode).
        version: the calling convention,
            https://docs.jax.dev/en/latest/export/export.html#module-calling-convention.
        platforms: what the module was lowered for, in the order of its platform index; JAX's names.
        args: every flat argument, also those that the module does not take.
        results: every flat result.
        kept: indices into `args` of the module's arguments, ascending.
        disabled_checks: the safety checks that do not apply to this call.
        uses_shardy: whether the module's shardings are Shardy's.
        nr_devices: the number of devices that the module was partitioned for.
        function_list: names of TensorFlow functions that the module calls by `tf.call_tf_function`.
        functions: the definitions of these and of what they call, as serialized FunctionDefs; empty
            where the file or the process has them.
        exported: the description of the `Exported` that it was made of, as JSON; of an older file
            the `Exported` without its module, as JAX serialized it. Empty where there is none.
        trees: the structures of its arguments and results in an older file, where JAX could not
            serialize them; otherwise they are in the description.
        residual_results: how many of the last results are kept for the backward pass of the same
            function, and are none of its own.
        residual_args: how many of the last arguments come from the forward pass in that way.
        hoisted: the keys of the constants that are arguments after all others.
        changes: what was done to the module since it was exported, in words.
    """

    name: str
    module: bytes
    version: int
    platforms: tuple[str, ...]
    args: tuple[TensorSpec, ...]
    results: tuple[TensorSpec, ...]
    kept: tuple[int, ...]
    disabled_checks: tuple[DisabledCheck, ...] = ()
    uses_shardy: bool = False
    nr_devices: int = 1
    function_list: tuple[str, ...] = ()
    functions: tuple[bytes, ...] = ()
    exported: bytes = b""
    trees: Trees | None = None
    residual_results: int = 0
    residual_args: int = 0
    hoisted: tuple[str, ...] = ()
    changes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        """Refuse what no node can say."""
        if list(self.kept) != sorted(set(self.kept)) or not set(self.kept) <= set(
            range(len(self.args))
        ):
            raise StructureError(
                f"{self.name}: kept arguments {list(self.kept)} are not ascending indices "
                f"of its {len(self.args)} arguments. To do: name each once, in order."
            )
        if not (
            0 <= self.residual_results <= len(self.results)
            and 0 <= self.residual_args <= len(self.args) - len(self.hoisted)
        ):
            raise StructureError(
                f"{self.name}: {self.residual_results} of its {len(self.results)} results and "
                f"{self.residual_args} of its {len(self.args)} arguments cannot be residuals. "
                "To do: count the last of them."
            )
        if not self.platforms or not set(self.platforms) <= set(PLATFORMS):
            raise PlatformError(
                f"{self.name} is for the platforms {list(self.platforms)}; expected some of "
                f"{', '.join(PLATFORMS)}. To do: export it again with platforms= of these."
            )
        if self.version not in CONVENTIONS:
            raise VersionError(
                f"{self.name} has calling convention {self.version}; understood are "
                f"{min(CONVENTIONS)} to {max(CONVENTIONS)}. To do: export it again, under "
                "jax.config.jax_export_calling_convention_version of these if JAX is newer."
            )
        read_artifact_version(self.module)

    @property
    def gradient_source(self) -> str:
        """The origin of a call that is a VJP: "saved" from JAX, or "lifted" from operations."""
        return "lifted" if MADE_OF_OPERATIONS in self.changes else "saved"

    @property
    def operands(self) -> tuple[TensorSpec, ...]:
        """The arguments that the node takes, in its order."""
        return tuple(self.args[index] for index in self.kept)

    @property
    def own_args(self) -> tuple[TensorSpec, ...]:
        """The arguments but for residuals and constants."""
        return self.args[: len(self.args) - self.residual_args - len(self.hoisted)]

    @property
    def constants(self) -> dict[int, str]:
        """The keys of the constants by their index in `args`."""
        first = len(self.args) - len(self.hoisted)
        return {first + position: key for position, key in enumerate(self.hoisted)}

    @property
    def own_results(self) -> tuple[TensorSpec, ...]:
        """The results but for residuals."""
        return self.results[: len(self.results) - self.residual_results]

    @property
    def is_differentiable(self) -> bool:
        """Return whether some result and some argument have an element type with derivatives.

        What the module does not take counts, too: its gradient is zeros, or what somebody has
        written (`jax.custom_vjp`).
        """
        return all(
            any(spec.dtype.differentiable for spec in specs)
            for specs in (self.own_args, self.own_results)
        )

    @property
    def has_platform_index(self) -> bool:
        """Return whether argument 0 of `main` is the platform index, which TensorFlow fills in."""
        return len(self.platforms) > 1

    @property
    def symbols(self) -> tuple[str, ...]:
        """The dimension variables of the arguments, sorted."""
        dims = (dim for spec in self.args for dim in spec.shape or ())
        return tuple(sorted(frozenset[str]().union(*map(symbols, dims))))

    @property
    def stablehlo_version(self) -> StablehloVersion:
        """The version of the portable artifact."""
        return read_artifact_version(self.module)


def bind_symbols(
    name: str,
    specs: Sequence[TensorSpec],
    sizes: Sequence[Sequence[int | None] | None],
    *,
    disabled_checks: Collection[DisabledCheck] = (),
) -> dict[str, int]:
    """Return the dimension variables that follow from the shapes of arguments."""
    values: dict[str, int] = {}
    if SHAPE_ASSERTIONS not in disabled_checks:
        values = solve([spec.shape or () for spec in specs], sizes)
    for spec, arrived in zip(specs, sizes, strict=True):
        if spec.shape is None or arrived is None:
            continue
        if len(spec.shape) != len(arrived):
            raise StructureError(
                f"{spec.path} of {name} has shape {tuple(arrived)}, of rank {len(arrived)}; "
                f"expected {spec}."
            )
        for axis, (dim, size) in enumerate(zip(spec.shape, arrived, strict=True)):
            wanted = evaluate(dim, values)
            if None not in (wanted, size) and wanted != size:
                known = ", ".join(f"{symbol} = {values[symbol]}" for symbol in sorted(symbols(dim)))
                raise StructureError(
                    f"{spec.path} of {name} has shape {tuple(arrived)}; expected {spec}, "
                    f"whose dimension {axis} is {wanted}{f' with {known}' if known else ''}."
                )
    if empty := [symbol for symbol, value in values.items() if value < 1]:
        raise StructureError(
            f"{name}: the dimension variable {empty[0]} would be {values[empty[0]]}; "
            "jax.export takes dimension variables to be at least 1. To do: pass arrays that have "
            "elements."
        )
    return values


# MLIR bytecode begins with a magic number, a version varint and the producer's name, and a
# portable artifact's producer is its StableHLO version
# (https://mlir.llvm.org/docs/BytecodeFormat/, stablehlo/dialect/Serialization.cpp).
_ARTIFACT_HEADER = re.compile(rb"ML\xefR.StableHLO_v(\d+\.\d+\.\d+)\x00", re.DOTALL)


def read_artifact_version(module: bytes) -> StablehloVersion:
    """Return the StableHLO version in a portable artifact's header."""
    if (match := _ARTIFACT_HEADER.match(module[:64])) is None:
        raise FormatError(
            f"The module's {len(module)} bytes begin with {module[:12]!r}; a StableHLO portable "
            "artifact begins with b'ML\\xefR' and its version. To do: take "
            "Exported.mlir_module_serialized unchanged."
        )
    return parse_stablehlo_version(match[1].decode())


def _is_shape(shape: object) -> bool:
    return isinstance(shape, list) and all(
        isinstance(dim, str) or (type(dim) is int and dim >= 0) for dim in shape
    )
