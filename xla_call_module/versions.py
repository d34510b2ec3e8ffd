"""What each TensorFlow release reads: the calling convention, StableHLO, Shardy."""

from __future__ import annotations

import re
from dataclasses import dataclass

from xla_call_module.errors import VersionError

__all__ = [
    "CONVENTIONS",
    "RELEASES",
    "Release",
    "StablehloVersion",
    "parse_release",
    "parse_stablehlo_version",
]

StablehloVersion = tuple[int, int, int]

# The calling conventions that are understood: 6 brought the safety checks, 10 the Shardy flag
# (https://docs.jax.dev/en/latest/export/export.html#calling-convention-versions).
CONVENTIONS = range(6, 11)


@dataclass(frozen=True, slots=True)
class Release:
    """One consumer of XlaCallModule nodes.

    Attributes:
        tensorflow: the release, for example `(2, 18)`.
        convention: the highest calling convention that it takes
            (https://docs.jax.dev/en/latest/export/export.html#calling-convention-versions).
        stablehlo: the newest portable artifact that it reads.
    """

    tensorflow: tuple[int, int]
    convention: int
    stablehlo: StablehloVersion

    @property
    def name(self) -> str:
        """The release as a user writes it."""
        return ".".join(map(str, self.tensorflow))

    @property
    def shardy(self) -> bool:
        """Whether the op has the `use_shardy_partitioner` attribute (calling convention 10)."""
        return self.convention >= 10


# Asked of each release's wheel: tensorflow.compiler.tf2xla.python.xla
# .call_module_maximum_supported_version() and tensorflow.compiler.mlir.stablehlo.stablehlo
# .get_current_version().
RELEASES = (
    Release((2, 14), 8, (0, 14, 8)),
    Release((2, 15), 8, (0, 14, 24)),
    Release((2, 16), 9, (0, 17, 7)),
    Release((2, 17), 9, (1, 1, 1)),
    Release((2, 18), 9, (1, 7, 3)),
    Release((2, 19), 9, (1, 9, 1)),
    Release((2, 20), 10, (1, 12, 1)),
    Release((2, 21), 10, (1, 13, 7)),
)


def parse_release(text: str) -> Release:
    """The release for a version such as `2.18` or `2.18.1`.

    A release newer than the table is taken to be as able as the newest in it.

    Raises:
        VersionError: no version, or one older than the table.

    Example:
        >>> parse_release("2.18.1").stablehlo
        (1, 7, 3)
    """
    try:
        match = re.match(r"([0-9]{1,4})\.([0-9]{1,4})(?![0-9])", text)
    except TypeError:  # a number, of which 2.20 would be 2.2
        match = None
    if match is None:
        raise VersionError(f"{text!r} is no TensorFlow version; expected one such as '2.18'.")
    wanted = int(match[1]), int(match[2])
    if wanted < RELEASES[0].tensorflow:
        raise VersionError(
            f"TensorFlow {text} is older than {RELEASES[0].name}, the oldest release that reads "
            "what this package writes. To do: name a newer one."
        )
    return [release for release in RELEASES if release.tensorflow <= wanted][-1]


def parse_stablehlo_version(text: str) -> StablehloVersion:
    """Three numbers of a StableHLO version such as `1.13.7`.

    Raises:
        VersionError: the text has another form.
    """
    match = re.fullmatch(r"([0-9]{1,9})\.([0-9]{1,9})\.([0-9]{1,9})", text)
    if match is None:
        raise VersionError(f"{text!r} is no StableHLO version; expected one such as '1.13.7'.")
    return int(match[1]), int(match[2]), int(match[3])
