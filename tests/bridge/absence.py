"""Processes in which a framework is not installed: TensorFlow, or JAX and jaxlib.

It imports nothing of ours, so that what is imported afterwards is watched, too.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from typing import Any

from tests.policy.source import ROOT

# Not the one of the fixture `preloaded`, which has TensorFlow imported.
_PYTHON = sys.executable


class _Blocker:
    """An import hook: some packages are not installed, and it is noted who looks for them."""

    def __init__(self, *packages: str) -> None:
        self.packages = packages
        self.tried: list[str] = []

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Refuse them."""
        if name.partition(".")[0] in self.packages:
            self.tried.append(name)
            raise ModuleNotFoundError(f"{name} is not to be imported here")
        return None


@contextlib.contextmanager
def without_tensorflow() -> Iterator[None]:
    """No import of TensorFlow succeeds inside, and none is tried."""
    assert "tensorflow" not in sys.modules
    blocker = _Blocker("tensorflow", "keras")
    sys.meta_path.insert(0, blocker)
    yield
    assert blocker.tried == []
    assert "tensorflow" not in sys.modules


@contextlib.contextmanager
def without_jax() -> Iterator[None]:
    """No import of JAX or jaxlib succeeds inside; TensorFlow and Keras may try one."""
    blocker = _Blocker("jax", "jaxlib")
    sys.meta_path.insert(0, blocker)
    yield
    assert not {"jax", "jaxlib"} & set(sys.modules)


def run_without_jax(code: str, *arguments: Any, **environment: str) -> str:
    """Return what code prints in a process of its own, which has neither JAX nor jaxlib.

    Args:
        code: Python source.
        arguments: its `sys.argv[1:]`.
        environment: variables besides those of this process.
    """
    return _run("without_jax", code, [], arguments, environment)


def run_without_tensorflow(code: str, *arguments: Any, **environment: str) -> str:
    """Return what code prints in a process of its own, where every warning is an error.

    Args:
        code: Python source.
        arguments: its `sys.argv[1:]`.
        environment: variables besides those of this process.
    """
    return _run("without_tensorflow", code, ["-W", "error"], arguments, environment)


def _run(
    context: str,
    code: str,
    options: Sequence[str],
    arguments: Sequence[Any],
    environment: Mapping[str, str],
) -> str:
    source = f"""
from tests.bridge.absence import {context}
with {context}():
    exec({code!r})
"""
    done = subprocess.run(
        [_PYTHON, *options, "-c", source, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
