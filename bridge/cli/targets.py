"""The target of an export: an object of a Python module, or a serialized `Exported`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from bridge.exporting.exported_file import read_exported
from xla_call_module.errors import InteropError, StructureError, shown_as_base


@shown_as_base
class CodeError(StructureError):
    """The user's own code raised an error, which is the cause."""


@dataclass(frozen=True, slots=True)
class Target:
    """An object to be exported.

    Attributes:
        name: `module:function` as the user wrote it, or the name of a file.
        value: the object, or the `Exported` in the file.
        file: the source file; None where the module has none.
    """

    name: str
    value: Any
    file: Path | None


def find_target(name: str, folder: Path) -> Target:
    """Return the object that a name stands for."""
    if (path := folder / name).is_file() and not name.endswith(".py"):
        return Target(path.name, read_exported(path), path)
    module_name, colon, attributes = name.partition(":")
    if not colon or not module_name or not attributes:
        raise StructureError(
            f"{name!r} is neither a file nor of the form module:function. To do: write it as "
            "package.module:function, module:object.method, or name a file that holds a "
            "serialized jax.export.Exported."
        )
    module = import_module(module_name, folder, written="{}:function")
    value = module
    for number, attribute in enumerate(parts := attributes.split(".")):
        if not hasattr(value, attribute):
            where = ".".join([module_name, *parts[:number]])
            near = get_close_matches(attribute, dir(value), n=1)
            cure = f"Did you mean {near[0]!r}?" if near else f"To do: define it in {where}."
            raise StructureError(f"{where} has no {attribute!r}. {cure}")
        value = getattr(value, attribute)
    file = getattr(module, "__file__", None)
    return Target(name, value, Path(file) if file else None)


def import_module(name: str, folder: Path, *, written: str = "{}") -> Any:
    """Return the module of a name."""
    if name.endswith(".py") or "/" in name:
        as_module = name.removesuffix(".py").strip("/.").replace("/", ".")
        raise StructureError(
            f"{name} is a path, and the name of a module is expected. To do: write "
            f"{written.format(as_module)}, in the folder above it."
        )
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except InteropError:
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _broken(name, error) from error
        raise StructureError(
            f"There is no module {error.name!r} in {folder} or where Python looks for packages. "
            "To do: run the command in the folder where the module is, or install it."
        ) from error
    except Exception as error:
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> CodeError:
    return CodeError(
        f"{name} cannot be imported: {type(error).__name__}: {error} To do: mend it; "
        f"python -c 'import {name}' shows the same."
    )
