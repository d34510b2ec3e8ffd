"""The records of releases: what each TensorFlow reads and lacks, and how long StableHLO is read.

To support a new release, add a record to `RELEASES`: ask its wheel for the two versions, run
`tests/matrix` with it, and put what it does not run into `lacks`. Then see whether each of
`DEVIATIONS` ends with it. To support a new JAX, add its jaxlib to `JAXLIBS` and the versions of
StableHLO that came since to `STABLEHLO_DATES`. Nothing else in the project knows a number of a
release.
"""

from __future__ import annotations

import datetime
import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from xla_call_module.errors import VersionError

StablehloVersion = tuple[int, int, int]

# The calling conventions, https://docs.jax.dev/en/latest/export/export.html
# #calling-convention-versions: 6 brought the safety checks, 10 the flag that a module's shardings
# are Shardy's. What does not use the flag is written without it, so that older releases read it.
FIRST_CONVENTION = 6
LAST_WITHOUT_SHARDY = 9
SHARDY_CONVENTION = 10
LAST_CONVENTION = SHARDY_CONVENTION
CONVENTIONS = range(FIRST_CONVENTION, LAST_CONVENTION + 1)


class Feature(enum.Enum):
    """A feature that some releases read and do not run, whatever the version of its operation."""

    # 2.17 and older read a composite and then refuse it.
    COMPOSITE = "stablehlo.composite"
    # The XLA of 2.18 and older ends the process on a dot with an explicit algorithm.
    DOT_ALGORITHM = "stablehlo.dot_general with an explicit algorithm"
    # 2.17 and older read a gather or scatter with batching dimensions, new in StableHLO 1.1, and
    # then refuse it. At an older version it has another form, where the shapes of its indices are
    # static.
    BATCHING_DIMENSIONS = "a gather or scatter with batching dimensions"
    # The custom calls of MHLO are found by running each in each release.
    MHLO_ACOS = "mhlo.acos"
    MHLO_ACOSH = "mhlo.acosh"
    MHLO_ASIN = "mhlo.asin"
    MHLO_ASINH = "mhlo.asinh"
    MHLO_ATANH = "mhlo.atanh"
    MHLO_COSH = "mhlo.cosh"
    MHLO_ERF = "mhlo.erf"
    MHLO_SINH = "mhlo.sinh"
    MHLO_TOPK = "mhlo.topk"
    MHLO_OTHER = "another custom call of MHLO"
    SHARDY = "a sharding that only Shardy has"
    # 2.15 and older count the platform index among the arguments that there have to be besides it.
    PLATFORM_INDEX_ALONE = "a function for several platforms that takes nothing"
    # XlaCallModule takes no module that has dynamic shapes after their refinement, bounds or not.
    SIZE_OF_DATA = "a size that depends on data"


BEFORE_BATCHING_DIMENSIONS: StablehloVersion = (1, 0, 0)
_HYPERBOLIC = frozenset({
    Feature.MHLO_ACOS, Feature.MHLO_ACOSH, Feature.MHLO_ASIN, Feature.MHLO_ASINH,
    Feature.MHLO_ATANH, Feature.MHLO_COSH, Feature.MHLO_SINH, Feature.MHLO_OTHER,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Release:
    """One consumer of XlaCallModule nodes.

    Attributes:
        tensorflow: the release, for example `(2, 18)`.
        convention: the highest calling convention that it takes.
        stablehlo: the newest portable artifact that it reads.
        lacks: the features that it reads, but does not run.
        reads_newer: whether it looks at the version of each operation, and not at the artifact's,
            so that it runs what a newer JAX wrote as long as nothing in it is newer.
    """

    tensorflow: tuple[int, int]
    convention: int
    stablehlo: StablehloVersion
    lacks: frozenset[Feature] = frozenset()
    reads_newer: bool = False

    @property
    def name(self) -> str:
        """The release as a user writes it."""
        return ".".join(map(str, self.tensorflow))

    @property
    def shardy(self) -> bool:
        """Return whether the op has the `use_shardy_partitioner` attribute."""
        return self.convention >= SHARDY_CONVENTION

    @property
    def writes_convention(self) -> int:
        """The calling convention of what is written for it without Shardy."""
        return min(self.convention, LAST_WITHOUT_SHARDY)


_LACKS_2_21 = frozenset({Feature.SIZE_OF_DATA})
_LACKS_2_20 = _LACKS_2_21 | _HYPERBOLIC
_LACKS_2_19 = _LACKS_2_20 | {Feature.SHARDY}
_LACKS_2_18 = _LACKS_2_19 | {Feature.DOT_ALGORITHM}
_LACKS_2_17 = _LACKS_2_18 | {Feature.COMPOSITE, Feature.BATCHING_DIMENSIONS}
_LACKS_2_15 = _LACKS_2_17 | {
    Feature.MHLO_ERF, Feature.MHLO_TOPK, Feature.PLATFORM_INDEX_ALONE,
}  # fmt: skip
# Versions are asked of each release's wheel: tensorflow.compiler.tf2xla.python.xla
# .call_module_maximum_supported_version() and tensorflow.compiler.mlir.stablehlo.stablehlo
# .get_current_version(). What it lacks is found by running it.
OLDEST = Release((2, 14), 8, (0, 14, 8), _LACKS_2_15)
NEWEST = Release((2, 21), 10, (1, 13, 7), _LACKS_2_21, reads_newer=True)
# What is written for no release in particular keeps the operations that this one runs, as a
# composite may have a faster form in the consumer than its definition.
KEPT_FOR_ANY = Release((2, 18), 9, (1, 7, 3), _LACKS_2_18)
RELEASES = (
    OLDEST,
    Release((2, 15), 8, (0, 14, 24), _LACKS_2_15),
    Release((2, 16), 9, (0, 17, 7), _LACKS_2_17),
    Release((2, 17), 9, (1, 1, 1), _LACKS_2_17),
    KEPT_FOR_ANY,
    Release((2, 19), 9, (1, 9, 1), _LACKS_2_19),
    Release((2, 20), 10, (1, 12, 1), _LACKS_2_20, reads_newer=True),
    NEWEST,
)


def oldest_running(features: Iterable[Feature]) -> Release | None:
    """Return the oldest release from which on each one runs all of some features; None for none."""
    wanted = frozenset(features)
    oldest = None
    for release in reversed(RELEASES):
        if release.lacks & wanted:
            break
        oldest = release
    return oldest


@dataclass(frozen=True, slots=True)
class Deviation:
    """A computation of which some TensorFlow releases return other numbers than JAX.

    The probe of the same name in `bridge/verifying/tensorflow_probes.py` asks an imported
    TensorFlow for it; 2.14, 2.16, 2.18, 2.20 and 2.21 were probed.

    Attributes:
        name: the name of the probe.
        description: the words for it in messages.
        operations: the operations that have it, as `operations_behind` takes them.
        special: the numbers that differ: `nan`, or empty where all may.
        since: the first release that has it.
        until: the last release that has it; None where the newest known one still does.
        remedy: the words for what this package does about it.
        platform: the platform on which it was found; the others do not have it, or were not asked.
    """

    name: str
    description: str
    operations: frozenset[str]
    special: str
    since: tuple[int, int]
    until: tuple[int, int] | None
    remedy: str
    platform: str = "cpu"


_NAMED = "`verify` names it, and does not fail where it explains what differs"
DEVIATIONS = (
    # XLA's CPU compiler has `a >= b ? a : b` for a maximum where xla_cpu_enable_fast_min_max is on,
    # as it is in TensorFlow: NaN is lost on one side of it, and so in reductions, windows and
    # cumulative maxima. Written as a comparison and a selection it is kept, which on 2 cores takes
    # 1.05 (by a constant) to 1.5 times as long, 1.1 in windows, and 1.8 to 7.5 in reductions.
    Deviation(
        "maximum_of_nan",
        "the maximum or minimum of a number and NaN is the number",
        frozenset({"stablehlo.maximum", "stablehlo.minimum"}),
        "nan",
        OLDEST.tensorflow,
        None,
        f"nothing, since keeping NaN costs time; {_NAMED}",
    ),
    # In 2.21 of a few elements only.
    Deviation(
        "clamp_of_nan",
        "NaN that is clamped becomes a number, in erf, too",
        frozenset({"stablehlo.clamp"}),
        "nan",
        OLDEST.tensorflow,
        None,
        f"nothing, since keeping NaN costs time; {_NAMED}",
    ),
    # Its own expansion of erf clamps; where the module has the expansion, the clamp is in it.
    Deviation(
        "erf_of_nan",
        "the error function of NaN is a number",
        frozenset({"chlo.erf", "mhlo.erf"}),
        "nan",
        OLDEST.tensorflow,
        (2, 15),
        _NAMED,
    ),
    # XLA took a conversion to float8 and back for one that it may leave out
    # (xla/service/simplify_fp_conversions.cc).
    Deviation(
        "float8_conversion",
        "a number that is converted to float8 and back is not rounded",
        frozenset({"stablehlo.convert f8E4M3FN", "stablehlo.convert f8E5M2"}),
        "",
        (2, 16),
        (2, 17),
        "nothing; `verify` names it",
    ),
    # Its XLA verifies that a program for CPU has no 4-bit integers.
    Deviation(
        "int4_inside",
        "a program with integers of 4 bits in it does not run on the CPU",
        frozenset({"stablehlo.convert i4", "stablehlo.convert ui4"}),
        "",
        (2, 15),
        (2, 15),
        "nothing",
    ),
    # XLA pads such products for cuBLAS; JAX 0.11.2 has it in `jax.jit`, too. Those of uint8, and of
    # int8 converted to int32 first, are right. Older releases were not run on a GPU.
    Deviation(
        "int8_product",
        "a product of int8 in int32, of which a size is no multiple of 4, is twice too large",
        frozenset({"stablehlo.dot_general i8"}),
        "",
        NEWEST.tensorflow,
        None,
        "what is made for `cuda` converts the operands to int32 there "
        "(`passes/int8_products.py`); `verify` names it where that is not so",
        platform="cuda",
    ),
)


def parse_release(text: str) -> Release:
    """Return the release for a version such as `2.18` or `2.18.1`.

    A release newer than the table is taken to be as able as the newest in it.

    Example:
        >>> parse_release("2.18.1").stablehlo
        (1, 7, 3)
    """
    try:
        match = re.match(r"([0-9]{1,4})\.([0-9]{1,4})(?![0-9])", text)
    except TypeError:  # a number, of which 2.20 would be 2.2
        match = None
    if match is None:
        raise VersionError(f"{text!r} is not a TensorFlow version; expected one such as '2.18'.")
    wanted = int(match[1]), int(match[2])
    if wanted < OLDEST.tensorflow:
        raise VersionError(
            f"TensorFlow {text} is older than {OLDEST.name}, the oldest release that reads "
            "what this package writes. To do: name a newer one."
        )
    return max(
        (release for release in RELEASES if release.tensorflow <= wanted),
        key=lambda release: release.tensorflow,
    )


def parse_stablehlo_version(text: str) -> StablehloVersion:
    """Return the three numbers of a StableHLO version such as `1.13.7`."""
    match = re.fullmatch(r"([0-9]{1,9})\.([0-9]{1,9})\.([0-9]{1,9})", text)
    if match is None:
        raise VersionError(f"{text!r} is not a StableHLO version; expected one such as '1.13.7'.")
    return int(match[1]), int(match[2]), int(match[3])


# When each minor version of StableHLO began: the first commit in which
# stablehlo/dialect/Version.h has it (https://github.com/openxla/stablehlo).
STABLEHLO_DATES: Mapping[tuple[int, int], datetime.date] = {
    version: datetime.date.fromisoformat(text)
    for version, text in {
        (0, 9): "2023-02-27", (0, 10): "2023-04-19", (0, 11): "2023-05-01", (0, 12): "2023-05-24",
        (0, 13): "2023-05-31", (0, 14): "2023-06-16", (0, 15): "2023-11-08", (0, 16): "2023-11-29",
        (0, 17): "2023-12-20", (0, 19): "2024-03-13", (0, 20): "2024-05-10", (1, 0): "2024-05-13",
        (1, 1): "2024-05-15", (1, 2): "2024-07-03", (1, 3): "2024-07-10", (1, 4): "2024-07-16",
        (1, 5): "2024-07-29", (1, 6): "2024-08-14", (1, 7): "2024-09-04", (1, 8): "2024-10-24",
        (1, 9): "2025-01-28", (1, 10): "2025-03-19", (1, 11): "2025-06-12", (1, 12): "2025-06-24",
        (1, 13): "2025-08-18", (1, 14): "2026-03-02", (1, 15): "2026-03-27", (1, 16): "2026-04-09",
        (1, 18): "2026-06-26", (1, 19): "2026-08-04", (1, 20): "2026-08-13",
    }.items()
}  # fmt: skip
# https://openxla.org/stablehlo/compatibility
_PROMISED_YEARS = 5
# The newest StableHLO that some releases of jaxlib read, the oldest release first; each of them
# reads from 0.9.0 on (`jaxlib.mlir.dialects.stablehlo.get_current_version()`).
JAXLIBS: Mapping[str, StablehloVersion] = {
    "0.9.0": (1, 13, 7), "0.9.2": (1, 14, 0), "0.10.2": (1, 17, 0), "0.11.0": (1, 18, 0),
    "0.12.0.1": (1, 22, 0),
}  # fmt: skip


def promised_until(version: StablehloVersion) -> datetime.date | None:
    """Return until when StableHLO promises to read artifacts of a version; None for no promise.

    It is five years from the first day of that minor version; of one that is not known, from that
    of the one before it.

    Example:
        >>> promised_until((1, 13, 7)).isoformat()
        '2030-08-18'
    """
    known = [minor for minor in STABLEHLO_DATES if minor <= version[:2]]
    if not known:
        return None
    since = STABLEHLO_DATES[max(known)]
    return since.replace(year=since.year + _PROMISED_YEARS)


def jaxlib_for(version: StablehloVersion) -> str:
    """Return the first known release of jaxlib that reads artifacts of a version of StableHLO.

    Example:
        >>> jaxlib_for((1, 15, 0)), jaxlib_for((9, 0, 0))
        ('0.10.2 or newer', 'newer than 0.12.0.1')
    """
    able = [jaxlib for jaxlib, newest in JAXLIBS.items() if version <= newest]
    return f"{able[0]} or newer" if able else f"newer than {list(JAXLIBS)[-1]}"
