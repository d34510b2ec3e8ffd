"""The description of an `Exported` from its fields, and an `Exported` from a description.

Every JAX that this runs with can read what JAX 0.7.1 or a later one wrote: shardings are converted
to the form that the installed version has.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import export
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from xla_call_module._jax import (
    abstract_device,
    abstract_device_of,
    effect_name,
    effect_of,
    has_hlo_shardings,
    hlo_sharding,
    hlo_shardings,
    logical_device_ids,
    make_exported,
    named_shardings,
    with_logical_device_ids,
)
from xla_call_module.descriptions.exported_description import (
    AbstractDevice,
    AvalDescription,
    DescribedName,
    ExportedDescription,
)
from xla_call_module.errors import (
    DtypeError,
    FormatError,
    InteropError,
    ShardingError,
    UnsupportedError,
    refusing_damage,
)
from xla_call_module.pytrees.tree_nodes import TreeNode
from xla_call_module.pytrees.tree_restoring import restore_tree
from xla_call_module.shardings.array_sharding import Sharding, name_axes, place
from xla_call_module.shardings.mesh_placement import Mesh, MeshAxis
from xla_call_module.shardings.sharding_jax import sharding_from_jax, sharding_to_jax
from xla_call_module.shardings.sharding_protos import sharding_from_proto, sharding_to_proto
from xla_call_module.symbolic_shapes import constraints_of, limited_reading, parse_shape

# How the dtypes of typed PRNG keys are called, and what makes a key.
_KEYS = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}
_CUSTOM_CALL = "custom_call:"
_PLATFORM = "platform"

Shardings = tuple[Sharding | None, ...]


def describe_fields(
    exported: export.Exported, in_tree: TreeNode, out_tree: TreeNode
) -> ExportedDescription:
    """Return the description of an `Exported` whose structures are known."""
    named, hlo = named_shardings(exported), hlo_shardings(exported)
    avals = [*exported.in_avals, *exported.out_avals]
    sides = (
        (exported.in_avals, named[0], hlo[0]),
        (exported.out_avals, named[1], hlo[1]),
    )
    in_shardings, out_shardings = (
        tuple(itertools.starmap(_describe_sharding, zip(*side, strict=True))) for side in sides
    )
    own = [aval.sharding for aval in avals if hasattr(aval, "sharding")]
    return ExportedDescription(
        fun_name=str(exported.fun_name),
        in_tree=in_tree,
        out_tree=out_tree,
        in_avals=tuple(map(_describe_aval, exported.in_avals)),
        out_avals=tuple(map(_describe_aval, exported.out_avals)),
        in_shardings=in_shardings,
        out_shardings=out_shardings,
        constraints=constraints_of(avals),
        nr_devices=exported.nr_devices,
        platforms=tuple(exported.platforms),
        ordered_effects=tuple(map(_describe_effect, exported.ordered_effects)),
        unordered_effects=tuple(map(_describe_effect, exported.unordered_effects)),
        disabled_checks=tuple(map(_describe_check, exported.disabled_safety_checks)),
        calling_convention_version=exported.calling_convention_version,
        kept=tuple(exported.module_kept_var_idx),
        uses_global_constants=bool(exported.uses_global_constants),
        device=_describe_device([*named[0], *named[1], *own]),
        unknown=getattr(exported.fun_name, "unknown", ""),
    )


def _describe_aval(aval: Any) -> AvalDescription:
    mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    has_axes = mesh is not None and bool(mesh.axis_names)
    space = getattr(aval, "memory_space", None)
    return AvalDescription(
        shape=tuple(str(dim) if export.is_symbolic_dim(dim) else int(dim) for dim in aval.shape),
        dtype="float0" if aval.dtype == jax.dtypes.float0 else str(aval.dtype),
        weak_type=bool(aval.weak_type),
        memory="device" if space is None else str(getattr(space, "name", space)).lower(),
        sharding=sharding_from_jax(aval.sharding, len(aval.shape)) if has_axes else None,
    )


def _describe_sharding(aval: Any, named: Any, hlo: Any) -> Sharding | None:
    if named is not None:
        return sharding_from_jax(named, len(aval.shape))
    return None if hlo is None else sharding_from_proto(hlo.to_proto().SerializeToString())


def _describe_device(shardings: Iterable[Any]) -> AbstractDevice | None:
    for sharding in shardings:
        mesh = getattr(sharding, "mesh", None)
        if mesh is not None and (device := abstract_device_of(mesh)) is not None:
            return AbstractDevice(*device)
    return None


def _describe_effect(effect: Any) -> str:
    kind = type(effect)
    try:
        if kind() == effect:
            return effect_name(kind)
    except Exception:  # noqa: BLE001 - whatever its class raises without arguments
        pass
    raise UnsupportedError(
        f"The effect {effect} cannot be made without arguments, so a file cannot hold it. To do: "
        "leave it out of what is exported."
    )


def _describe_check(check: export.DisabledSafetyCheck) -> str:
    target = check.is_custom_call()
    return _PLATFORM if target is None else f"{_CUSTOM_CALL}{target}"


def restore_fields(
    description: ExportedDescription,
    *,
    size: int,
    trees: tuple[Any, Any] | None = None,
    module: bytes = b"",
    meshes: Callable[[], Sequence[Mesh]] = tuple,
    vjp: Callable[[], export.Exported] | None = None,
    stand_ins: bool = False,
) -> export.Exported:
    """Return the `Exported` of a description."""
    with refusing_damage(f"The description of {description.fun_name:.80}"):
        try:
            named, hlo = _restore_shardings(description, meshes)
            with limited_reading(size):
                in_avals, out_avals = _restore_avals(description, named)
            fields = _plain_fields(description) | {"in_avals": in_avals, "out_avals": out_avals}
            in_tree, out_tree = trees or restore_trees(
                description.in_tree, description.out_tree, stand_ins=stand_ins
            )
        except (AssertionError, NotImplementedError) as error:
            if isinstance(error, InteropError):
                raise
            raise ValueError(f"JAX refuses it: {error}") from error
    fields |= {"in_tree": in_tree, "out_tree": out_tree, "mlir_module_serialized": module}
    made: export.Exported = make_exported(
        fields, named, hlo, None if vjp is None else lambda _: vjp()
    )
    return made


def _plain_fields(description: ExportedDescription) -> dict[str, Any]:
    """Return the public fields that are the same in all versions of JAX."""
    return {
        "fun_name": DescribedName.of(description.fun_name, description.unknown),
        "nr_devices": description.nr_devices,
        "platforms": description.platforms,
        "ordered_effects": tuple(map(_restore_effect, description.ordered_effects)),
        "unordered_effects": tuple(map(_restore_effect, description.unordered_effects)),
        "disabled_safety_checks": tuple(map(_restore_check, description.disabled_checks)),
        "calling_convention_version": description.calling_convention_version,
        "module_kept_var_idx": description.kept,
        "uses_global_constants": description.uses_global_constants,
    }


def restore_trees(*trees: TreeNode, stand_ins: bool = False) -> tuple[Any, Any]:
    """Return both treedefs; made together, since functions in their static data are the same."""
    both: Any = restore_tree(TreeNode("tuple", children=trees), stand_ins=stand_ins)
    in_tree, out_tree = both.children()
    return in_tree, out_tree


def _restore_avals(
    description: ExportedDescription, named: Sequence[Sequence[Any]]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    scope = export.SymbolicScope(description.constraints)
    made: dict[tuple[AvalDescription, Any], Any] = {}

    def restored(avals: Sequence[AvalDescription], shardings: Sequence[Any]) -> Iterator[Any]:
        for pair in zip(avals, shardings, strict=True):
            if pair not in made:
                made[pair] = _restore_aval(*pair, description.device, scope)
            yield made[pair]

    in_avals = tuple(restored(description.in_avals, named[0]))
    return in_avals, tuple(restored(description.out_avals, named[1]))


def _restore_aval(
    aval: AvalDescription, named: Any, device: AbstractDevice | None, scope: export.SymbolicScope
) -> Any:
    sizes: Any = aval.shape
    shape = parse_shape(sizes, scope=scope) if any(isinstance(d, str) for d in sizes) else sizes
    options: dict[str, Any] = {}
    if aval.memory != "device":
        options["memory_space"] = jax.memory.Space[aval.memory.capitalize()]
    if aval.sharding is not None:
        options["sharding"] = _to_named(aval.sharding, device)
    elif named is not None and named.mesh.axis_names:  # an older JAX had none in its avals
        options["sharding"] = _of_type(named, len(shape))
    return jax.core.ShapedArray(shape, _restore_dtype(aval.dtype), aval.weak_type, **options)


def _of_type(named: NamedSharding, rank: int) -> NamedSharding:
    """Return a sharding as a type has it: with an entry for each dimension."""
    spec: Any = named.spec
    dims = [None if dim is PartitionSpec.UNCONSTRAINED else dim for dim in spec]
    return NamedSharding(named.mesh, PartitionSpec(*dims, *[None] * (rank - len(dims))))


def _restore_dtype(name: str) -> Any:
    if name == "float0":
        return jax.dtypes.float0
    if name in _KEYS:
        return jax.eval_shape(lambda: jax.random.key(0, impl=_KEYS[name])).dtype
    try:
        return np.dtype(name)
    except TypeError as error:
        raise DtypeError(
            f"An argument or result has the dtype {name!r:.40}, which the installed JAX does not "
            "have. To do: take the JAX that wrote it, or a newer one."
        ) from error


def _restore_effect(name: str) -> Any:
    effect = effect_of(name)
    if effect is None:
        raise UnsupportedError(
            f"An Exported has the effect {name!r:.80}, which JAX {jax.__version__} does not have. "
            "To do: import what registers it, or leave it out of what is exported."
        )
    return effect


def _restore_check(name: str) -> export.DisabledSafetyCheck:
    if name == _PLATFORM:
        return export.DisabledSafetyCheck.platform()
    if name.startswith(_CUSTOM_CALL):
        return export.DisabledSafetyCheck.custom_call(name.removeprefix(_CUSTOM_CALL))
    raise FormatError(f"An Exported has the disabled safety check {name!r:.80}, which is unknown.")


def _restore_shardings(
    description: ExportedDescription, meshes: Callable[[], Sequence[Mesh]]
) -> tuple[list[list[Any]], list[list[Any]]]:
    """Return the shardings by names and those of the compiler, in the form that JAX has."""
    sides = (
        (description.in_avals, description.in_shardings),
        (description.out_avals, description.out_shardings),
    )
    given = [s for _, side in sides for s in side if s is not None]
    nothing: list[list[Any]] = [[None] * len(side) for _, side in sides]
    are_named = all(sharding.placement is not None for sharding in given)
    known = () if are_named else meshes()
    # Names of our own are a makeshift, for a JAX that takes nothing else.
    namer = _Namer(description, known, invents=not has_hlo_shardings())
    if are_named or namer.has_mesh or not has_hlo_shardings():
        return [list(map(namer.named, *side)) for side in sides], nothing
    return nothing, [list(map(_to_hlo, *side)) for side in sides]


def _to_hlo(aval: AvalDescription, sharding: Sharding | None) -> Any:
    if sharding is None:
        return None
    physical = len(aval.shape) + (aval.dtype in _KEYS)
    return hlo_sharding(sharding_to_proto(sharding.of_rank(physical)))


def _to_named(sharding: Sharding, device: AbstractDevice | None) -> NamedSharding:
    named = sharding_to_jax(sharding)
    if device is None or not named.mesh.axis_names:
        return named
    mesh: Any = named.mesh
    kind = abstract_device(device.kind, device.num_cores, device.platform or _platform_of(device))
    with_device = AbstractMesh(
        mesh.axis_sizes, mesh.axis_names, axis_types=mesh.axis_types, abstract_device=kind
    )
    made = NamedSharding(with_device, named.spec, memory_kind=named.memory_kind)
    return with_logical_device_ids(made, logical_device_ids(named))  # type: ignore[no-any-return]


def _platform_of(device: AbstractDevice) -> str:
    """Return the platform of hardware that was written without it, as JAX takes it to be."""
    kind = device.kind.lower()
    named = [platform for platform in ("cpu", "tpu") if platform in kind]
    return named[0] if named else "gpu"


class _Namer:
    """The names of a mesh's axes for shardings of the compiler, one mesh for all of them."""

    def __init__(
        self, description: ExportedDescription, meshes: Sequence[Mesh], *, invents: bool
    ) -> None:
        self._device = description.device
        pairs = [
            (sharding, sharding.rank if sharding.rank is not None else len(aval.shape))
            for avals, shardings in (
                (description.in_avals, description.in_shardings),
                (description.out_avals, description.out_shardings),
            )
            for aval, sharding in zip(avals, shardings, strict=True)
            if sharding is not None and sharding.placement is None
        ]
        invented = _unnamed_meshes(description.nr_devices, pairs) if invents else ()
        candidates = [*meshes, *invented]
        fitting = (mesh for mesh in candidates if mesh.size == description.nr_devices)
        self._mesh = next((mesh for mesh in fitting if _names_all(mesh, pairs)), None)

    @property
    def has_mesh(self) -> bool:
        """Return whether there is a mesh of which all shardings are."""
        return self._mesh is not None

    def named(self, aval: AvalDescription, sharding: Sharding | None) -> NamedSharding | None:
        """Return a sharding by names."""
        if sharding is None:
            return None
        if sharding.placement is None:
            if self._mesh is None:
                raise ShardingError(
                    f"JAX {jax.__version__} has only shardings by the names of a mesh's axes, and "
                    f"no mesh fits the sharding {sharding} and the others of an older file. To do: "
                    "export the function again."
                )
            rank = len(aval.shape) if sharding.rank is None else sharding.rank
            placement = name_axes(sharding, self._mesh, rank)
            dims = placement.dims[: len(aval.shape)]  # of keys the last one is their data
            placement = dataclasses.replace(placement, dims=dims)
            sharding = place(placement, len(aval.shape), memory=sharding.memory)
        return _to_named(sharding, self._device)


def _unnamed_meshes(nr_devices: int, pairs: Sequence[tuple[Sharding, int]]) -> Iterator[Mesh]:
    """Yield meshes that shardings without names may be about: their own axes, or the finest."""
    shapes = [sharding.order.reshape for sharding, _ in pairs if sharding.order is not None]
    for sizes in (*sorted(set(shapes), key=len, reverse=True), tuple(_factors(nr_devices))):
        yield Mesh(tuple(MeshAxis(f"axis_{i}", size) for i, size in enumerate(sizes)))


def _names_all(mesh: Mesh, pairs: Sequence[tuple[Sharding, int]]) -> bool:
    try:
        for sharding, rank in pairs:
            name_axes(sharding, mesh, rank)
    except ShardingError:
        return False
    return True


def _factors(number: int) -> Iterator[int]:
    """Yield the prime factors of a number of devices, the smallest first."""
    factor = 2
    while factor * factor <= number:
        if number % factor:
            factor += 1
        else:
            yield factor
            number //= factor
    if number > 1:
        yield number
