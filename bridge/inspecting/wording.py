"""Words for tensors, sizes, numbers and releases, which all texts about files share."""

from __future__ import annotations

from bridge.inspecting.tensor_report import TensorReport
from xla_call_module.dimensions import aval_text

_UNITS = ("B", "KB", "MB", "GB", "TB")


def readers(tensorflow: str) -> str:
    """Return the words about the oldest TensorFlow that reads a file or a signature."""
    if tensorflow.startswith(">"):
        return f"readable by no TensorFlow up to {tensorflow.removeprefix('> ')}"
    return f"readable from TensorFlow {tensorflow} on"


def aval(tensor: TensorReport) -> str:
    """Return dtype and shape as JAX prints them, with the dtype in JAX where it is another."""
    element = f" ({tensor.element})" if tensor.element else ""
    return aval_text(tensor.dtype, tensor.shape) + element


def size(count: float) -> str:
    """Return a number of bytes as text, such as `1.5 MB`."""
    for unit in _UNITS:
        if count < 1000 or unit == _UNITS[-1]:
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural for all but one."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def printable(text: str, *, kept: str = "") -> str:
    """Return the text with escapes for control characters, which a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text
    )
