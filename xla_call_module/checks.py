"""Safety checks of a call that may be switched off."""

from __future__ import annotations

from dataclasses import dataclass

from xla_call_module.errors import StructureError

__all__ = ["DisabledCheck"]

_CUSTOM_CALL = "custom_call:"


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
        if self.name in ("platform", "shape_assertions"):
            return
        if self.name.startswith(_CUSTOM_CALL) and self.name != _CUSTOM_CALL:
            return
        raise StructureError(
            f"The safety check {self.name!r} is unknown; expected 'platform', "
            "'shape_assertions' or 'custom_call:TARGET'."
        )

    @property
    def custom_call(self) -> str | None:
        """The target that may be called although it is not known to be stable, if this is one."""
        return self.name.removeprefix(_CUSTOM_CALL) if self.name.startswith(_CUSTOM_CALL) else None

    def __str__(self) -> str:
        """The entry as TensorFlow spells it."""
        return self.name
