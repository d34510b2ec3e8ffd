"""A pass as a value, and how passes run one after another on one parsed module.

To write one, give a `ModulePass` what it ensures, how to see that it does not hold, and how to make
it hold; then put it into the order of `xla_call_module.passes.pipeline`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from xla_call_module.call import CallModule
from xla_call_module.dtypes import Array
from xla_call_module.errors import ArgumentError
from xla_call_module.stablehlo.modules import open_context, parse_module, serialize_module


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A call and its parsed module, as passes take and return it.

    Attributes:
        call: the call. Where the module is rewritten, the bytes in `call.module` are the old ones
            until it is serialized.
        module: the parsed module, which lives as long as the context that it was parsed in. Passes
            change it in place.
        constants: the values that passes took out of the module, by their keys.
        is_rewritten: whether the module is another one than that in the bytes of the call.
    """

    call: CallModule
    module: Any
    constants: Mapping[str, Array] = field(default_factory=dict)
    is_rewritten: bool = False

    def rewritten(self, change: str = "", *, module: Any = None, **fields: Any) -> ParsedCall:
        """Return the call after its module was changed."""
        changes = (*self.call.changes, *([change] if change else []))
        return dataclasses.replace(
            self,
            call=dataclasses.replace(self.call, changes=changes, **fields),
            module=self.module if module is None else module,
            is_rewritten=True,
        )

    def serialized(self, *others: CallModule) -> CallModule:
        """Return the call with the module as it is now, at the StableHLO version that it had."""
        if not self.is_rewritten:
            return self.call
        version = max(call.stablehlo_version for call in (self.call, *others))
        artifact = serialize_module(self.module, version)
        return dataclasses.replace(self.call, module=artifact)


def _always(_: CallModule) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class ModulePass:
    """One rewrite of a parsed module.

    Attributes:
        name: the name in messages and on the command line.
        ensures: what holds of the module afterwards, as a sentence.
        violation: returns the first thing in a call that contradicts what the pass ensures; empty
            where it holds. It is why the pass runs.
        rewrite: returns the call after the module was changed.
        requires: the names of the passes that have to come before it where they run at all.
        may_apply: whether the pass may have something to do, for a call that is not parsed yet. It
            saves parsing, which costs more than most passes.
    """

    name: str
    ensures: str
    violation: Callable[[ParsedCall], str]
    rewrite: Callable[[ParsedCall], ParsedCall]
    requires: tuple[str, ...] = ()
    may_apply: Callable[[CallModule], bool] = _always


@dataclass(frozen=True, slots=True)
class UnparsedCall:
    """A call that is made once its module is parsed, such as that of an `Exported`."""

    module: bytes
    make: Callable[[Any], CallModule]


@contextmanager
def open_call(call: CallModule | UnparsedCall) -> Iterator[ParsedCall]:
    """Yield the call with its module parsed, for as long as the context of the module lasts."""
    with open_context(len(call.module)):
        yield _parse(call)


@contextmanager
def open_pair(
    first: CallModule | UnparsedCall, second: CallModule | UnparsedCall
) -> Iterator[tuple[ParsedCall, ParsedCall]]:
    """Yield two calls with their modules parsed, in one context."""
    with open_context(len(first.module) + len(second.module)):
        yield _parse(first), _parse(second)


def _parse(call: CallModule | UnparsedCall) -> ParsedCall:
    module = parse_module(call.module)
    return ParsedCall(call if isinstance(call, CallModule) else call.make(module), module)


def run_passes(call: CallModule, passes: Sequence[ModulePass]) -> CallModule:
    """Return the call after some passes: parsed once and serialized once, at its own version.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from xla_call_module import from_exported
        >>> from xla_call_module.passes.linear_algebra import lower_linalg
        >>> spec = jax.ShapeDtypeStruct((3, 3), "float32")
        >>> call = from_exported(jax.export.export(jax.jit(jnp.linalg.cholesky))(spec))
        >>> run_passes(call, [lower_linalg()]).changes
        ('linear algebra in portable operations',)
    """
    check_order_of(passes)
    if not any(step.may_apply(call) for step in passes):
        return call
    with open_call(call) as parsed:
        return run_on_module(parsed, passes).serialized()


def run_on_module(parsed: ParsedCall, passes: Iterable[ModulePass]) -> ParsedCall:
    """Return a parsed call after those of the passes that have something to do."""
    for step in passes:
        if (parsed.is_rewritten or step.may_apply(parsed.call)) and step.violation(parsed):
            parsed = step.rewrite(parsed)
    return parsed


def check_order_of(passes: Sequence[ModulePass]) -> None:
    """Refuse passes of which one comes before another that it requires."""
    for index, step in enumerate(passes):
        late = [later.name for later in passes[index + 1 :] if later.name in step.requires]
        if late:
            raise ArgumentError(
                f"The pass {step.name} requires {', '.join(late)}, which comes after it. To do: "
                "run them in the order of xla_call_module.passes.pipeline."
            )
