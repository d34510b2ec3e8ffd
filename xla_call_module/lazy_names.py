"""Packages whose public names load what they need when they are first used.

Importing such a package takes next to nothing, and a part of it can be imported without the rest.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def load_lazily(package: str) -> None:
    """Let the names in a package's `__all__` be found in the modules that its `_HOMES` says.

    A name stays what it is when a submodule of the same name is imported, which Python then binds
    on the package: `bridge.load` is the function, always.
    """
    sys.modules[package].__class__ = _Package


class _Package(ModuleType):
    """A package with `__all__` and `_HOMES`, by name the module that has it.

    Where it has `_MODULES` too, these submodules need no import of their own; each is listed where
    the package is installed that it names, since `help` imports what is listed. Where it has
    `_DISTRIBUTION`, its `__version__` is that of this distribution. `_INSTEAD` has names that other
    packages would have, and what to call instead.
    """

    def __getattr__(self, name: str) -> Any:
        homes = self.__dict__["_HOMES"]
        if name == "__version__" and "_DISTRIBUTION" in self.__dict__:
            from importlib import metadata

            return metadata.version(self.__dict__["_DISTRIBUTION"])
        if name in self.__dict__.get("_MODULES", ()):
            return import_module(f"{self.__name__}.{name}")
        if name not in homes:
            instead = self.__dict__.get("_INSTEAD", {}).get(name)
            cure = f". To do: call {instead}" if instead else ""
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}{cure}")
        value = getattr(import_module(homes[name]), name)
        super().__setattr__(name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in self.__dict__["_HOMES"] and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        special = [name for name in super().__dir__() if name.startswith("__")]
        version = ["__version__"] if "_DISTRIBUTION" in self.__dict__ else []
        needed = self.__dict__.get("_MODULES", {})
        modules = [name for name, package in needed.items() if find_spec(package)]
        return sorted({*special, *version, *modules, *self.__dict__["_HOMES"]})
