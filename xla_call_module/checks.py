"""Safety checks of a call that may be switched off."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from xla_call_module.errors import StructureError

_CUSTOM_CALL = "custom_call:"
_PLAIN = ("platform", "shape_assertions")


@dataclass(frozen=True, slots=True)
class DisabledCheck:
    """One entry of the op's `disabled_checks` attribute.

    Attributes:
        name: `platform`, `shape_assertions`, or `custom_call:` and a target. TensorFlow compares
            it exactly and ignores names that it does not know, so an unknown one is refused here.

    Example:
        >>> DisabledCheck("platform")
        DisabledCheck(name='platform')
    """

    name: str

    def __post_init__(self) -> None:
        """Refuse a name that would have no effect."""
        if self.name in _PLAIN:
            return
        if self.name.startswith(_CUSTOM_CALL) and self.name != _CUSTOM_CALL:
            return
        near = get_close_matches(self.name.strip().lower(), (*_PLAIN, f"{_CUSTOM_CALL}TARGET"), n=1)
        cure = f" Did you mean {near[0]!r}?" if near else ""
        raise StructureError(
            f"The safety check {self.name!r} is unknown; expected 'platform', "
            f"'shape_assertions' or 'custom_call:TARGET'.{cure}"
        )

    @property
    def custom_call(self) -> str | None:
        """The target that may be called although it is not known to be stable, if this is one."""
        return self.name.removeprefix(_CUSTOM_CALL) if self.name.startswith(_CUSTOM_CALL) else None

    def __str__(self) -> str:
        """Return the entry as TensorFlow spells it."""
        return self.name


PLATFORM = DisabledCheck("platform")
SHAPE_ASSERTIONS = DisabledCheck("shape_assertions")


def parse_checks(checks: Iterable[object]) -> tuple[DisabledCheck, ...]:
    """Return the checks that a user names, without repeats, in their order.

    Example:
        >>> parse_checks(["platform", "custom_call:my_target"])[1].custom_call
        'my_target'
    """
    if isinstance(checks, str | DisabledCheck):
        checks = (checks,)
    if not isinstance(checks, Iterable):
        raise StructureError(
            f"disabled_checks is {checks!r}; expected a sequence of 'platform', "
            "'shape_assertions' and 'custom_call:TARGET', which may be empty."
        )
    return tuple(
        dict.fromkeys(
            check if isinstance(check, DisabledCheck) else DisabledCheck(str(check))
            for check in checks
        )
    )


def unite(*groups: Iterable[DisabledCheck]) -> tuple[DisabledCheck, ...]:
    """Return the checks that any of several parties switches off: a node, TF_XLA_FLAGS, a caller.

    That is what TensorFlow does: a flag can only disable more than the node does
    (tensorflow/compiler/tf2xla/kernels/xla_call_module_loader.cc).
    """
    return tuple(dict.fromkeys(check for group in groups for check in group))
