"""The pipeline: which passes make a call fit for a consumer, in which order, and why so.

Each verb describes what it makes by a `Target` and hands its calls to `prepare`, or the orders of a
differentiable function to `prepare_chain`. A module is parsed once at the start, or not at all
where its bytes tell that no pass has something to do, and serialized once at the end.

To add a pass, write a `ModulePass` in a file of this folder and put it into `passes_for`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass

from xla_call_module.analyses.readable import is_read_as_written
from xla_call_module.call import CallModule
from xla_call_module.dtypes import Array
from xla_call_module.errors import StructureError
from xla_call_module.passes.asserting import read_shape_check
from xla_call_module.passes.constants import hoist_constants
from xla_call_module.passes.cut_convolutions import CUT_BEFORE_CONVOLUTIONS
from xla_call_module.passes.exported_form import DROP_LOCATIONS, RETURN_FUNCTIONS, note_changes
from xla_call_module.passes.int8_products import WIDEN_INT8_PRODUCTS
from xla_call_module.passes.module_pass import (
    ModulePass,
    ParsedCall,
    UnparsedCall,
    check_order_of,
    open_call,
    run_on_module,
)
from xla_call_module.passes.obstacles import oldest_release
from xla_call_module.passes.older_forms import forms_for
from xla_call_module.passes.retargeting import label_for, serialize_for
from xla_call_module.shape_checks import ShapeCheck
from xla_call_module.versions import Release, parse_release


class Artifact(enum.Enum):
    """At which StableHLO version a module is serialized in the end."""

    FOR_RELEASE = "always at one that the release reads"
    IF_NEEDED = "as it is where the release reads it, though it may be newer"
    UNCHANGED = "at the one that it has, for the releases that read it as it is"
    NEWEST = "at the newest one that the release reads, which may be newer than it was"


@dataclass(frozen=True, slots=True)
class Target:
    """The consumer of a call, and the form that it needs.

    Attributes:
        tensorflow: the release that reads it; None for the oldest that runs it without another
            form of its composites.
        artifact: at which version the module is serialized.
        platforms: those that stay, in the order of the platform index; None for all.
        portable_linalg: whether calls of linear algebra libraries are replaced.
        hoist_from: from how many bytes on a constant becomes an argument; None for no constant.
        locations: whether the module keeps its source locations, which errors quote.
        is_exported: whether the module is that of an `Exported`, which itself says what was done to
            it, and has the TensorFlow functions that it calls.
        for_file: whether `Prepared` has what a file says of the calls besides.
    """

    tensorflow: Release | None = None
    artifact: Artifact = Artifact.FOR_RELEASE
    platforms: tuple[str, ...] | None = None
    portable_linalg: bool = False
    hoist_from: int | None = None
    locations: bool = True
    is_exported: bool = False
    for_file: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """The result of a pipeline.

    Attributes:
        calls: the call, or the orders of a chain.
        constants: the values of the constants that were taken out and were not known, by key.
        releases: for each call the oldest release that runs it, None for none; where the target is
            a file.
        shape_check: the shape assertions of the first call apart from it, where the target is a
            file and the call does not assert as much itself.
    """

    calls: tuple[CallModule, ...]
    constants: Mapping[str, Array]
    releases: tuple[Release | None, ...] = ()
    shape_check: ShapeCheck | None = None

    def __add__(self, higher: Prepared) -> Prepared:
        """Return these orders of a chain, and then higher ones."""
        return Prepared(
            (*self.calls, *higher.calls),
            {**self.constants, **higher.constants},
            (*self.releases, *higher.releases),
            self.shape_check if self.calls else higher.shape_check,
        )


def passes_for(
    target: Target, *, known: Container[str] = (), fits: bool = False
) -> tuple[ModulePass, ...]:
    """Return the passes for a target, in their order.

    Args:
        target: the consumer.
        known: the keys of the constants that are stored already.
        fits: whether the target reads the module at the version that it has.
    """
    steps: list[ModulePass] = []
    if target.platforms is not None:
        # It imports JAX, which looking at a file does without, and so does the next.
        from xla_call_module.passes.platform_selection import select_platforms

        # First, since what only another platform runs needs no other pass.
        steps.append(select_platforms(target.platforms))
    if target.portable_linalg:
        from xla_call_module.passes.linear_algebra import lower_linalg

        # Before constants are taken out, as the replacements bring some, and functions.
        steps.append(lower_linalg())
    if target.artifact is not Artifact.UNCHANGED:
        # After the platforms, which say whether a GPU runs it.
        steps += [WIDEN_INT8_PRODUCTS, CUT_BEFORE_CONVOLUTIONS]
    if target.hoist_from is not None:
        steps.append(hoist_constants(target.hoist_from, known=known))
    is_kept = fits or target.artifact is Artifact.UNCHANGED
    if not is_kept:
        # A module for GSPMD is parsed again, which costs less without its constants.
        steps += forms_for(target.tensorflow)
    if target.is_exported:
        release = None if is_kept else target.tensorflow
        steps += [RETURN_FUNCTIONS, note_changes(release)]
    if not target.locations:
        # Last, since the errors of all others quote them.
        steps.append(DROP_LOCATIONS)
    check_order_of(steps)
    return tuple(steps)


def prepare(
    call: CallModule | UnparsedCall,
    target: Target,
    *,
    known: Container[str] = (),
    is_first: bool = True,
) -> Prepared:
    """Return one call as its target needs it.

    Example:
        >>> import jax
        >>> from xla_call_module import from_exported
        >>> from xla_call_module.versions import parse_release
        >>> spec = jax.ShapeDtypeStruct((3,), "float32")
        >>> call = from_exported(jax.export.export(jax.jit(jax.lax.erf))(spec))
        >>> prepare(call, Target(parse_release("2.18"))).calls[0].stablehlo_version
        (1, 7, 3)
    """
    if isinstance(call, CallModule) and _fits(call, target) and not target.for_file:
        steps = passes_for(target, known=known, fits=True)
        if not any(step.may_apply(call) for step in steps):
            return Prepared((_labelled(call, target),), {})
    with open_call(call) as parsed:
        fits = _fits(parsed.call, target)
        steps = passes_for(target, known=known, fits=fits)
        return _finished(run_on_module(parsed, steps), target, fits=fits, is_first=is_first)


def _fits(call: CallModule, target: Target) -> bool:
    """Return whether the target reads the module at the version that it has."""
    if target.artifact is not Artifact.IF_NEEDED or target.tensorflow is None:
        return target.artifact is Artifact.UNCHANGED
    return is_read_as_written(call, target.tensorflow)


def _finished(parsed: ParsedCall, target: Target, *, fits: bool, is_first: bool) -> Prepared:
    """Serialize a call after its passes."""
    if fits:
        call = _labelled(parsed.serialized(), target)
    else:
        is_newest = target.artifact is Artifact.NEWEST
        call = serialize_for(parsed, target.tensorflow, newest=is_newest)
    if not target.for_file:
        return Prepared((call,), parsed.constants)
    release = oldest_release(call, parsed.module)
    check = read_shape_check(ParsedCall(call, parsed.module)) if is_first else None
    return Prepared((call,), parsed.constants, (release,), check)


def _labelled(call: CallModule, target: Target) -> CallModule:
    """Return a call with the calling convention of the release, if the target has one."""
    if target.artifact is Artifact.UNCHANGED or target.tensorflow is None:
        return call
    return label_for(call, target.tensorflow, call.module)


def prepare_chain(
    calls: Iterable[CallModule | UnparsedCall],
    target: Target,
    *,
    known: Collection[str] = (),
) -> Prepared:
    """Return the orders of a differentiable function as their target needs them.

    The VJPs have no source locations then, whatever `target` says: these would be those of the
    program that asked for the VJPs.
    """
    made = Prepared((), {})
    without = dataclasses.replace(target, locations=False)
    for call in calls:
        wanted, values = without if made.calls else target, {*known, *made.constants}
        made += prepare(call, wanted, known=values, is_first=not made.calls)
    return made


def retarget(
    call: CallModule, tensorflow: str | Release | None = None, *, locations: bool = True
) -> CallModule:
    """Return the same computation as TensorFlow `tensorflow` reads it.

    Args:
        call: any call.
        tensorflow: the consumer, for example `"2.18"`; None for the oldest one that can run the
            computation without another form of its composites.
        locations: whether the module keeps its source locations, which errors quote.

    Returns:
        A call whose artifact, calling convention and Shardy flag that consumer reads. Arguments
        and results are the same.

    Raises:
        VersionError: an operation has no form that the consumer reads; the message names it, its
            place in the Python source, and the oldest TensorFlow that would do. Or `tensorflow`
            is no version.
        StructureError: it is no call.

    Example:
        >>> import jax
        >>> from xla_call_module import from_exported, retarget
        >>> spec = jax.ShapeDtypeStruct((3,), "float32")
        >>> call = from_exported(jax.export.export(jax.jit(jax.lax.erf))(spec))
        >>> retarget(call, "2.18").stablehlo_version
        (1, 7, 3)
    """
    if not isinstance(call, CallModule):
        raise StructureError(
            f"Expected a CallModule, got {type(call).__name__}. To do: make one with "
            "from_exported; bridge.retarget takes an Exported."
        )
    if tensorflow is not None and not isinstance(tensorflow, Release):
        tensorflow = parse_release(tensorflow)
    (made,) = prepare(call, Target(tensorflow, locations=locations)).calls
    return made
