"""The arguments of commands: their text forms, and their declarations, each made once.

The arguments that are options of `bridge.save` are in `SAVE_ARGUMENTS`, and have the defaults that
`save` gives them; others that several commands take are in `_SHARED`. A command with a request of
its own declares each further argument at the field that holds it.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Mapping
from typing import Any, TypeVar

from bridge.core.operations_option import OPERATIONS
from bridge.formats.file_format import TOLERANCE
from xla_call_module.linalg.linalg_option import LINALG

_Request = TypeVar("_Request")


def expand_home(path: str) -> str:
    """Return a path with the home folder in place of a leading `~`.

    A shell does not do it within `--html=~/page.html`.
    """
    return os.path.expanduser(path)


def to_parts(text: str) -> list[str]:
    """Return the parts of a text between its commas.

    >>> to_parts("cpu, cuda,")
    ['cpu', 'cuda']
    """
    return [part.strip() for part in text.split(",") if part.strip()]


def to_sizes(text: str) -> tuple[int, ...]:
    """Return batch sizes such as `1,8,32`. Whether a batch may have them is checked later."""
    try:
        return tuple(map(int, to_parts(text)))
    except ValueError as error:
        message = f"{text!r} is not a list of batch sizes such as 1,8,32"
        raise argparse.ArgumentTypeError(message) from error


def to_names(text: str) -> list[str] | dict[str, str]:
    """Return names such as `a,b`, or a mapping to new names such as `old=new`."""
    parts = to_parts(text)
    pairs = [part.split("=", 1) for part in parts if "=" in part]
    if pairs and len(pairs) < len(parts):
        raise argparse.ArgumentTypeError(f"{text!r} mixes names and old=new")
    return {old.strip(): new.strip() for old, new in pairs} if pairs else parts


def to_labels(text: str) -> tuple[str, list[str]]:
    """Return the output and the texts that `OUTPUT=FILE` says; the file has a text a line."""
    output, _, path = text.partition("=")
    if not output or not path:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an OUTPUT=FILE, such as score=labels.txt"
        )
    try:
        with open(expand_home(path), encoding="utf-8") as file:
            return output, file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be read: {error}") from error


def to_updates(text: str) -> int | dict[str, Any]:
    """Return positions such as `0`, `train=0`, `cache=1,opt/mu=2` or `decode:cache=1`.

    >>> to_updates("prefill:cache=1,decode:cache=1,train=0")
    {'prefill': {'cache': 1}, 'decode': {'cache': 1}, 'train': 0}
    """
    wrong = argparse.ArgumentTypeError(
        f"{text!r} is neither a position such as 0 nor a list such as train=0 or decode:cache=1"
    )
    try:
        if "=" not in text:
            return int(text)
        positions: dict[str, Any] = {}
        for part in to_parts(text):
            place, _, position = part.rpartition("=")
            *signature, key = (name.strip() for name in place.split(":"))
            within = positions.setdefault(signature[0], {}) if signature else positions
            if not key or len(signature) > 1 or not isinstance(within, dict) or key in within:
                raise wrong
            within[key] = int(position)
    except ValueError as error:
        raise wrong from error
    return positions


SAVE_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "gradient_order": {
        "type": int,
        "metavar": "N",
        "help": "how many times TensorFlow can differentiate it; by default 1",
    },
    "residuals": {
        "action": "store_true",
        "help": "store what the gradient needs instead of computing it again: less time, "
        "more memory",
    },
    "tensorflow": {"metavar": "VERSION", "help": "the oldest TensorFlow that must read it"},
    "disabled_checks": {
        "type": to_parts,
        "metavar": "CHECKS",
        "help": "safety checks that TensorFlow skips, such as platform,shape_assertions",
    },
    "linalg": {
        "choices": LINALG,
        "help": f"whether calls of LAPACK are replaced; by default {LINALG[0]}",
    },
    "batch_buckets": {
        "type": to_sizes,
        "metavar": "SIZES",
        "help": "batch sizes that requests are padded to, such as 1,8,32,128",
    },
    "updates": {
        "type": to_updates,
        "metavar": "POSITIONS",
        "help": "where in the results the new parameters stand, which a call then assigns: 0; "
        "cache=1 for a part of them; train=0 or decode:cache=1 for one of several signatures",
    },
    "operations": {
        "choices": OPERATIONS,
        "help": "what the file runs: modules that XLA compiles, or TensorFlow's own operations, "
        f"for servers without XLA; by default {OPERATIONS[0]}",
    },
    "for_converters": {
        "action": "store_true",
        "help": "with --operations tensorflow: for what reads the graph and does not run it, such "
        "as the converters of TFLite and TF.js",
    },
    "exact": {
        "flag": "--inexact",
        "action": "store_false",
        "help": "with --operations tensorflow: leave NaN and signs of zeros to TensorFlow, for "
        "fewer nodes",
    },
}
# Of a file of parameters, for `export` and `update`.
PARAMS_KEY: Mapping[str, Any] = {
    "metavar": "A/B",
    "help": "the part of the file that is the parameters",
}
PARAMS_SEPARATOR: Mapping[str, Any] = {
    "metavar": "SIGN",
    "help": "the sign at which the keys of the file are split",
}
_SHARED: Mapping[str, Mapping[str, Any]] = {
    "artifact": {
        "flag": "artifact",
        "metavar": "SAVEDMODEL_OR_ARTIFACT",
        "type": expand_home,
        "help": "the folder of a SavedModel, or the file of a serialized Exported or of StableHLO",
    },
    "base_path": {
        "flag": "base_path",
        "metavar": "BASE",
        "type": expand_home,
        "help": "the folder above the versions",
    },
    "imports": {
        "flag": "--import",
        "action": "append",
        "metavar": "MODULE",
        "default": [],
        "help": "import a module first, from here or from where Python looks, which has classes "
        "of the file's pytrees",
    },
    "json": {"action": "store_true", "default": False, "help": "print JSON"},
    "keep": {"metavar": "COUNT", "type": int, "default": None, "help": "how many versions stay"},
    "params_key": {**PARAMS_KEY, "default": None},
    "params_separator": {**PARAMS_SEPARATOR, "default": None},
    "tolerance": TOLERANCE,
    "path": {"flag": "path", "type": expand_home, "help": "the folder with saved_model.pb"},
    "platform": {"default": "cpu", "help": "one of those that it was lowered for"},
    "platforms": {
        "metavar": "NAMES",
        "type": to_parts,
        "default": None,
        "help": "those that stay, such as cpu,tpu",
    },
    "python": {
        "metavar": "OTHER",
        "type": expand_home,
        "default": None,
        "help": "the Python of another environment with TensorFlow",
    },
    "vjp_order": {
        "flag": "--gradient-order",
        "type": int,
        "default": 0,
        "metavar": "N",
        "help": "1 for the VJP, and so on",
    },
}


def argument(default: Any = dataclasses.MISSING, **declaration: Any) -> Any:
    """Return a field of a request that declares the argument which it holds."""
    return dataclasses.field(default=default, metadata=declaration)


def add_arguments(parser: argparse.ArgumentParser, *names: str) -> None:
    """Let a command take arguments that are declared here."""
    for name in names:
        _add(parser, name, {**SAVE_ARGUMENTS, **_SHARED}[name])


def add_declared(
    parser: argparse.ArgumentParser, declarations: Mapping[str, Mapping[str, Any]]
) -> None:
    """Let a command take the arguments that a format declares for itself."""
    for name, declaration in declarations.items():
        _add(parser, name, declaration)


def read_save_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return those options of `bridge.save` that the user has given."""
    return {name: value for name, value in vars(options).items() if name in SAVE_ARGUMENTS}


def add_fields(parser: argparse.ArgumentParser, request: type) -> None:
    """Let a command take the arguments that a dataclass declares at its fields."""
    for field in dataclasses.fields(request):
        if field.metadata:
            required = field.default is dataclasses.MISSING
            _add(parser, field.name, field.metadata, required=required)


def read_fields(parsed: argparse.Namespace, request: type[_Request], **more: Any) -> _Request:
    """Return the request that a command line makes."""
    declared = {field.name for field in dataclasses.fields(request) if field.metadata}  # type: ignore[arg-type]  # a dataclass
    return request(**{k: v for k, v in vars(parsed).items() if k in declared}, **more)


def _add(
    parser: argparse.ArgumentParser,
    name: str,
    declaration: Mapping[str, Any],
    *,
    required: bool = False,
) -> None:
    keywords = dict(declaration)
    flag = keywords.pop("flag", f"--{name.replace('_', '-')}")
    if flag == name:
        parser.add_argument(name, **keywords)
        return
    # The default is that of the field, or of the function that is called.
    missing = {"required": True} if required else {"default": argparse.SUPPRESS}
    parser.add_argument(flag, dest=name, **(missing | keywords))
