"""The list of files that one JAX wrote for the matrix, as a value and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

DEFAULT = "default"
VALUES = "values.npz"
_NAME = "written.json"


@dataclass(frozen=True, slots=True)
class Written:
    """The outcome of one case for one target.

    Attributes:
        case: its name.
        target: the `tensorflow=` of `bridge.save`, or `default` for None.
        oldest: the oldest TensorFlow that reads the file; empty where there is none.
        error: type and message of what was raised; empty where there is a file.
    """

    case: str
    target: str
    oldest: str = ""
    error: str = ""

    @property
    def path(self) -> str:
        """Of the SavedModel, below the folder with all of them."""
        return f"{self.case}/{self.target}"


def read_written(folder: Path) -> tuple[Written, ...]:
    """Return what a process wrote into a folder."""
    return tuple(Written(**fields) for fields in json.loads((folder / _NAME).read_text()))


def write_written(folder: Path, written: Sequence[Written]) -> None:
    """The list that `read_written` reads."""
    (folder / _NAME).write_text(json.dumps([asdict(entry) for entry in written], indent=1))


def release_of(text: str) -> tuple[int, ...]:
    """A release such as `2.18` as numbers, which can be compared."""
    return tuple(map(int, text.split(".")))
