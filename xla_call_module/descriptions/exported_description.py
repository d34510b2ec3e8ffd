"""`ExportedDescription`: all fields of a `jax.export.Exported` but its module, as a value.

Source: jax/_src/export/_export.py, `Exported`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from xla_call_module.dimensions import Shape, evaluate
from xla_call_module.errors import FormatError, StructureError
from xla_call_module.pytrees.tree_nodes import TreeNode
from xla_call_module.shardings.array_sharding import Sharding

MEMORIES = ("device", "host", "any")
# As many as any flatbuffer of JAX can say.
MAX_DEVICES = 2**32 - 1
_RELATIONS = (">=", "<=", "==")


@dataclass(frozen=True, slots=True)
class AbstractDevice:
    """The kind of the devices of a mesh, which JAX from 0.9 on keeps with the mesh.

    Attributes:
        kind: the name of the hardware, such as `cpu` or `TPU v5 lite`.
        num_cores: how many cores each has; None where that is not said.
        platform: the platform; empty in what older versions of JAX wrote.
    """

    kind: str
    num_cores: int | None
    platform: str


@dataclass(frozen=True, slots=True)
class AvalDescription:
    """One abstract value: the type of an array.

    Attributes:
        shape: the logical shape, symbolic dimensions as text.
        dtype: the logical dtype as JAX prints it, `key<fry>` and `float0` included.
        weak_type: whether it is weakly typed, as Python numbers are.
        memory: the memory space: `device`, `host` or `any`.
        sharding: the sharding in the type, which JAX from 0.9 on has; None for none.
    """

    shape: Shape
    dtype: str
    weak_type: bool = False
    memory: str = "device"
    sharding: Sharding | None = None

    def __post_init__(self) -> None:
        """Refuse what no aval has."""
        for dim in self.shape:
            if not isinstance(dim, str) and dim < 0:
                raise FormatError(f"An aval has the shape {self.shape}.")
            evaluate(dim, {})  # refuses a text that is no dimension
        if self.memory not in MEMORIES:
            raise FormatError(
                f"An aval is in the memory {self.memory!r:.40}; expected one of "
                f"{', '.join(MEMORIES)}."
            )


@dataclass(frozen=True, slots=True)
class ExportedDescription:
    """All fields of an `Exported` but its module and its VJP.

    Attributes:
        in_tree: the structure of `(args, kwargs)`.
        in_shardings: the sharding of each argument; None where it is left open.
        constraints: those of the scope of all symbolic dimensions, such as `b >= 4`, in its order.
        platforms: the platforms in the order of the platform index; JAX's names.
        ordered_effects: the types of the ordered effects, as `module.name`.
        disabled_checks: `platform` and `custom_call:TARGET`, in its order.
        kept: indices of the arguments that the module takes, ascending.
        uses_global_constants: whether its module has symbolic sizes or a platform index.
        device: the kind of devices of the meshes of its shardings; None where that is not said.
        unknown: the canonical JSON text of the fields that a newer minor version has; or empty.
    """

    fun_name: str
    in_tree: TreeNode
    out_tree: TreeNode
    in_avals: tuple[AvalDescription, ...]
    out_avals: tuple[AvalDescription, ...]
    in_shardings: tuple[Sharding | None, ...]
    out_shardings: tuple[Sharding | None, ...]
    constraints: tuple[str, ...]
    nr_devices: int
    platforms: tuple[str, ...]
    ordered_effects: tuple[str, ...]
    unordered_effects: tuple[str, ...]
    disabled_checks: tuple[str, ...]
    calling_convention_version: int
    kept: tuple[int, ...]
    uses_global_constants: bool
    device: AbstractDevice | None = None
    unknown: str = ""

    def __post_init__(self) -> None:
        """Refuse what no `Exported` is."""
        counts = [
            (self.in_tree.num_leaves, self.in_avals, self.in_shardings),
            (self.out_tree.num_leaves, self.out_avals, self.out_shardings),
        ]
        for leaves, avals, shardings in counts:
            if leaves != len(avals) or len(shardings) != len(avals):
                raise FormatError(
                    f"{self.fun_name} is described with pytrees of {leaves} leaves, {len(avals)} "
                    f"avals and {len(shardings)} shardings. To do: write the file again."
                )
        in_range = all(0 <= index < len(self.in_avals) for index in self.kept)
        if not in_range or list(self.kept) != sorted(set(self.kept)):
            raise FormatError(
                f"{self.fun_name}: kept arguments {list(self.kept)[:16]} are not ascending "
                f"indices of its {len(self.in_avals)} arguments."
            )
        if not 0 < self.nr_devices <= MAX_DEVICES:
            raise FormatError(f"{self.fun_name} is described for {self.nr_devices} devices.")
        for constraint in self.constraints:
            _check_constraint(constraint)

    def with_platforms(self, platforms: tuple[str, ...]) -> ExportedDescription:
        """Return the same function, lowered for other platforms."""
        return replace(self, platforms=platforms)


def _check_constraint(text: str) -> None:
    relations = [relation for relation in _RELATIONS if relation in text]
    sides = text.split(relations[0]) if len(relations) == 1 else ()
    if len(sides) != 2:
        raise StructureError(
            f"{text!r:.80} is not a constraint of symbolic dimensions; expected one such as 'b >= "
            "4'."
        )
    for side in sides:
        evaluate(side.strip(), {})


@dataclass(frozen=True, slots=True)
class SerializedExported:
    """The content of JAX's own serialization of an `Exported`: also the module and the VJPs.

    Attributes:
        module: the StableHLO portable artifact; empty where it was taken out.
        vjp: its VJP; None where it was serialized without one.
        version: the version of the serialization, which is 2 or 3 for all up to 11.
        jax: the version of JAX that wrote it; empty before version 12.
    """

    description: ExportedDescription
    module: bytes
    vjp: SerializedExported | None
    version: int
    jax: str


class DescribedName(str):
    """The name of a function that a newer release described, with the fields that are unknown here.

    An `Exported` has no place of its own for them, and each copy of one keeps its name.

    Attributes:
        unknown: as in `ExportedDescription`.
    """

    __slots__ = ("unknown",)

    unknown: str

    @classmethod
    def of(cls, name: str, unknown: str) -> str:
        """Return the name; as it is where there is nothing to keep."""
        if not unknown:
            return str(name)
        made = cls(name)
        made.unknown = unknown
        return made
