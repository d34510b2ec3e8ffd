"""The cost of a call for concrete sizes, by the analyses of the JAX stages.

The figures are XLA's own: `cost_analysis` and `memory_analysis` of what `jax.jit` compiles
(https://docs.jax.dev/en/latest/jax.stages.html). For a platform that is not at hand nothing can be
compiled; a call is then counted as it is lowered, before XLA has optimized it, and its memory is
unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from bridge.core.backend import platform_of, require_own_runtime
from bridge.loading.exported_from_call import exported_from_call
from bridge.loading.signature_calls import call_of_order, calls_of
from savedmodel.model import SavedModel
from xla_call_module.call import CallModule
from xla_call_module.checks import PLATFORM
from xla_call_module.dimensions import evaluate_shape
from xla_call_module.errors import PlatformError, ShardingError, StructureError
from xla_call_module.stablehlo.refining import refine


@dataclass(frozen=True, slots=True)
class CostReport:
    """The cost of one call of a module; None where the analyses have no figure.

    Attributes:
        signature: the key of the signature.
        order: 0 for the function, 1 for its gradient.
        platform: the platform that the cost was counted for.
        sizes: the sizes of the dimension variables.
        compiled: whether the optimized program was counted, or the module before optimization.
        flops: the number of floating-point operations.
        transcendentals: the number of those that are transcendental functions, such as `exp`.
        bytes_accessed: the number of bytes that operations read and write.
        argument_bytes: the number of bytes of the arguments, parameters included.
        result_bytes: the number of bytes of the results.
        temporary_bytes: the number of bytes of temporary buffers.
        peak_bytes: the number of bytes of all three, with shared buffers counted once.
    """

    signature: str
    order: int
    platform: str
    sizes: Mapping[str, int]
    compiled: bool
    flops: float | None
    transcendentals: float | None
    bytes_accessed: float | None
    argument_bytes: int | None
    result_bytes: int | None
    temporary_bytes: int | None
    peak_bytes: int | None


def parse_sizes(texts: Iterable[str]) -> dict[str, int]:
    """Return the sizes in texts such as `b=8,seq=16`.

    Example:
        >>> parse_sizes(["b=8,seq=16"])
        {'b': 8, 'seq': 16}
    """
    sizes = {}
    for part in filter(None, ",".join(texts).split(",")):
        name, _, number = (piece.strip() for piece in part.partition("="))
        if not name.isidentifier() or not number.isdecimal() or not 0 < int(number) < 2**31:
            raise StructureError(
                f"{part!r} is not a size. To do: write a dimension variable and its size, at "
                "least 1, such as b=8."
            )
        sizes[name] = int(number)
    return sizes


def costs_of_model(
    model: SavedModel,
    *,
    order: int = 0,
    platform: str | None = None,
    batch: int | None = None,
    sizes: Mapping[str, int] | None = None,
) -> tuple[CostReport, ...]:
    """Return the cost of each call of each signature."""
    given = dict(sizes or {})
    chains = [
        (signature, call_of_order(signature, chain, order))
        for signature in model.signatures
        for chain in calls_of(signature)
    ]
    known = {name for _, call in chains for name in call.symbols}
    if unknown := sorted(given.keys() - known):
        raise StructureError(
            f"{', '.join(unknown)} is not a dimension variable of the file; it has "
            f"{', '.join(sorted(known)) or 'none'}. To do: name some of these."
        )
    costs = []
    for signature, call in chains:
        default = {} if batch is None else dict.fromkeys(call.symbols, batch)
        chosen = {name: size for name, size in (default | given).items() if name in call.symbols}
        costs.append(cost_of(call, signature.key, order, platform=platform, sizes=chosen))
    return tuple(costs)


def cost_of(
    call: CallModule,
    signature: str,
    order: int,
    *,
    platform: str | None,
    sizes: Mapping[str, int],
) -> CostReport:
    """Return the cost of one call."""
    _check(call, sizes)
    devices = _devices(platform)
    chosen = platform or platform_of(devices[0])
    if chosen not in call.platforms and PLATFORM not in call.disabled_checks:
        raise PlatformError(
            f"{call.name} was exported for {', '.join(call.platforms)}, not for {chosen}. To do: "
            f"ask for one of these with --platform."
        )
    require_own_runtime(f"what {call.name} costs")
    with jax.enable_x64(True):
        lowered = _lower(call if devices else _static(call, sizes), sizes, chosen, devices)
        compiled = lowered.compile() if devices else None
    costs = _analysis(lowered if compiled is None else compiled)
    memory = None if compiled is None else compiled.memory_analysis()
    return CostReport(
        signature=signature,
        order=order,
        platform=chosen,
        sizes=dict(sizes),
        compiled=compiled is not None,
        flops=costs.get("flops"),
        transcendentals=costs.get("transcendentals", 0.0),
        bytes_accessed=costs.get("bytes accessed"),
        **_memory(memory),
    )


def _check(call: CallModule, sizes: Mapping[str, int]) -> None:
    if call.nr_devices > 1:
        raise ShardingError(
            f"{call.name} was exported for {call.nr_devices} devices, and costs are those of one "
            "device. To do: export it without shardings."
        )
    if unsized := [name for name in call.symbols if name not in sizes]:
        raise StructureError(
            f"{call.name} has the dimension variables {', '.join(call.symbols)}, and "
            f"{', '.join(unsized)} has no size. To do: give --batch N, or --size {unsized[0]}=N."
        )
    if shapeless := [spec.path for spec in call.args if spec.shape is None]:
        raise StructureError(
            f"{call.name}: the shape of {shapeless[0]} is not in the file, so its cost cannot be "
            "counted. To do: save the file with this package."
        )


def _static(call: CallModule, sizes: Mapping[str, int]) -> CallModule:
    if not call.symbols:
        return call
    shapes = [evaluate_shape(spec.shape or (), sizes) for spec in call.operands]
    return refine(call, [[size for size in shape if size is not None] for shape in shapes])


def _devices(platform: str | None) -> Sequence[Any]:
    try:
        return jax.devices(platform)
    except RuntimeError:  # no such backend
        return ()


def _lower(
    call: CallModule, sizes: Mapping[str, int], platform: str, devices: Sequence[Any]
) -> Any:
    arguments = [
        jax.ShapeDtypeStruct(evaluate_shape(spec.shape or (), sizes), spec.dtype.numpy)
        for spec in call.operands
    ]
    with jax.default_device(devices[0] if devices else None):
        traced = jax.jit(exported_from_call(call).call).trace(*arguments)
        return traced.lower(lowering_platforms=(platform,))


def _analysis(stage: Any) -> Mapping[str, float]:
    """Return the cost analysis of a stage; older versions of JAX return a list with one."""
    analysis = stage.cost_analysis() or {}
    analysis = analysis[0] if isinstance(analysis, list) else analysis
    return {key: value for key, value in analysis.items() if value >= 0}


def _memory(stats: Any) -> dict[str, int | None]:
    names = ("argument_bytes", "result_bytes", "temporary_bytes", "peak_bytes")
    if stats is None:
        return dict.fromkeys(names)
    parts = (
        int(stats.argument_size_in_bytes),
        int(stats.output_size_in_bytes),
        int(stats.temp_size_in_bytes),
    )
    return dict(zip(names, (*parts, sum(parts) - int(stats.alias_size_in_bytes)), strict=True))
