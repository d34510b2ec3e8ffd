"""How the try of a program ended."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from xla_call_module.errors import InteropError

__all__ = ["FAILURES", "Outcome", "of_exception"]

FAILURES = ("wrong", "crashed", "killed", "hung")
_REASON = 160
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one check of one program.

    Attributes:
        check: its name; `export` where JAX itself does not export the program.
        kind: `right`, `refused`, or one of `FAILURES`; `inapplicable` where JAX has no reference.
        reason: what differs, or the error.
        compared: how many elements were.
        skipped: how many were not, since they jump.
        warned: the warnings.
    """

    check: str
    kind: str
    reason: str = ""
    compared: int = 0
    skipped: int = 0
    warned: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Without what is empty."""
        return {name: value for name, value in asdict(self).items() if value}

    @property
    def key(self) -> str:
        """What failures of one cause share, as far as one can tell."""
        if self.kind == "wrong":
            label = self.reason.partition("{")[0]
            return f"wrong {self.check} {label}"
        return f"{self.kind} {self.check}: {_NUMBERS.sub('N', self.reason)[:60]}"


def of_exception(check: str, error: BaseException, **more: Any) -> Outcome:
    """A refusal, or a crash."""
    kind = "refused" if isinstance(error, InteropError) else "crashed"
    text = " ".join(str(error).split())
    return Outcome(check, kind, f"{type(error).__name__}: {text}"[: _REASON * 3], **more)
