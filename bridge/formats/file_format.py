"""`FileFormat`: a format of files that hold functions, with what the verbs and the command need."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bridge.formats.runnable import Runnable
    from bridge.inspecting.report import FileReport
    from bridge.inspecting.written_file import WrittenFile
    from bridge.verifying.comparison import Tolerance
    from bridge.verifying.trials import Trial
    from bridge.verifying.verification import VerifyRow
    from xla_call_module.dtypes import Array


def to_tolerance_numbers(text: str) -> tuple[float, ...]:
    """Return tolerances such as `1e-3` or `1e-3,1e-6`. Whether they are ones is checked later."""
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        message = f"{text!r} is neither rtol nor rtol,atol, such as 1e-3,1e-6"
        raise argparse.ArgumentTypeError(message) from error


# The declaration of `--tolerance`, of every command that compares a file with JAX.
TOLERANCE: Mapping[str, Any] = {
    "metavar": "RTOL[,ATOL]",
    "default": None,
    "type": to_tolerance_numbers,
    "help": "the allowed difference, as numpy.testing takes it; by default that of the least "
    "precise dtype that a result was computed with",
}


@dataclass(frozen=True, slots=True)
class Conversion:
    """A request for a file of a format, made of another file.

    Attributes:
        source: the folder of a SavedModel, or the file of a serialized `Exported` or of StableHLO.
        signatures: the signatures of a SavedModel that it is to have; empty for the default ones.
        gradient_order: how many times the functions are differentiated first.
        options: the options that the format alone has, by name; those left out have their defaults.
    """

    source: str
    target: str
    signatures: tuple[str, ...] = ()
    platform: str = "cpu"
    gradient_order: int = 0
    overwrite: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConvertCommand:
    """The command that writes files of a format.

    Attributes:
        options: for each name in `Conversion.options` the keywords of
            `ArgumentParser.add_argument`, and its flag as `flag`.
    """

    name: str
    suffix: str
    options: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class RuntimeCall:
    """One call of a file, to be measured."""

    path: str
    signature: str
    inputs: Mapping[str, Array]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Runtime:
    """A program that calls files of a format.

    Attributes:
        option: its name on the command line.
        wheels: the distributions of which one is to be installed.
        modules: the modules that are imported before its calls are measured.
        prepare: loads a file on one core, and returns a function that calls it and returns the
            results in the order of `RuntimeCall.outputs`.
    """

    name: str
    option: str
    wheels: tuple[str, ...]
    modules: tuple[str, ...]
    prepare: Callable[[RuntimeCall], Callable[[], Sequence[Any]]]

    def version(self) -> str:
        """Return the version that is installed; empty for none."""
        for wheel in self.wheels:
            try:
                return metadata.version(wheel)
            except metadata.PackageNotFoundError:
                continue
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """A format of files that hold functions.

    Attributes:
        name: a file of the format with its article, such as `an ONNX model`, for messages.
        recognises: returns whether a path with these first bytes leads to one; for a folder, or
            what is not there, there are none.
        inspect: returns the report of a path, or of a SavedModel's open folder; nothing is run.
        open: returns the function of a signature, or of the default one, to be called.
        is_source: whether JAX computes what is in a file, so that files of other formats are made
            of it.
        compare: returns the rows of trials that a file was run on; None where `bridge.verify` does
            not take such files, or compares them in TensorFlow.
        runtime: the program that calls files; None for JAX.
        convert: writes a file; None where `bridge.save` or JAX does.
    """

    name: str
    recognises: Callable[[str, bytes], bool]
    inspect: Callable[[Any], FileReport]
    open: Callable[[str, str | None], Runnable]
    is_source: bool = False
    compare: Callable[[str, Sequence[Trial], Tolerance], Sequence[VerifyRow]] | None = None
    runtime: Runtime | None = None
    convert: Callable[[Conversion], WrittenFile] | None = None
    command: ConvertCommand | None = None
