"""Outcomes of the try of a program."""

from __future__ import annotations

import re
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from xla_call_module.errors import InteropError

FAILURES = ("wrong", "crashed", "killed", "hung")
_LONGEST = 480
# What differs between failures of one cause: numbers, names of nodes, what TensorFlow puts first.
_VARYING = re.compile(
    r"0x[0-9a-f]+|\d+|\{\{.*?\}\}|Graph execution error: Detected at.*?<stack traces unavailable>"
)


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
        comparisons: how many arrays were compared.
    """

    check: str
    kind: str
    reason: str = ""
    compared: int = 0
    skipped: int = 0
    warned: tuple[str, ...] = ()
    comparisons: int = 0

    def to_json(self) -> dict[str, Any]:
        """Without what is empty."""
        return {name: value for name, value in asdict(self).items() if value}

    @property
    def key(self) -> str:
        """Return what failures of one cause share, as far as one can tell."""
        if self.kind == "wrong":
            label = self.reason.partition("{")[0]
            return f"wrong {self.check} {label}"
        text = " ".join(_VARYING.sub("", self.reason).split())
        return f"{self.kind} {self.check}: {text[:60]}"


# What TensorFlow itself cannot do: tapes make zeros for results that have no cotangent, and it has
# none of float8. Where that is an error's cause, its text says nothing. And factorizations raise
# where JAX's have NaN, as docs/how-to/servers_without_xla.md says.
_LIMITS = re.compile(
    r"No OpKernel was registered to support Op 'ZerosLike'.*DT_FLOAT8"
    r"|Error while casting from dtype int64 to float8_\w+"
    r"|decomposition was not successful|Input matrix is not invertible"
)


def of_exception(check: str, error: BaseException, **more: Any) -> Outcome:
    """A refusal, by this project or by TensorFlow, or a crash."""
    text = " ".join(str(error).split())[:_LONGEST]
    is_limit = _LIMITS.search(f"{text} {error.__cause__}") is not None
    is_refusal = isinstance(error, InteropError) or is_limit
    kind = "refused" if is_refusal else "crashed"
    where = "" if kind == "refused" else f" [{_where(error)}]"
    return Outcome(check, kind, f"{type(error).__name__}: {text}{where}", **more)


def _where(error: BaseException) -> str:
    """The last lines of this project that the error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "site-packages" not in f.filename and "fuzzing" not in f.filename]
    return ", ".join(f"{Path(f.filename).name}:{f.lineno}" for f in ours[-2:])
