"""The command `jax-tf-bridge explain`: what helps against a class of errors."""

from __future__ import annotations

import argparse
import re
from importlib.resources import files

from xla_call_module.errors import StructureError

# The page of the documentation, to which this name is a link in the sources.
_PAGE = "troubleshooting.md"
_SECTION = re.compile(r"^## (\w+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def add_explain(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "error", metavar="ERROR", nargs="?", help="a class, such as StructureError; by default all"
    )


def run_explain(options: argparse.Namespace) -> int:
    """Print the section of a class of errors, and return the exit status."""
    page = files("bridge.cli").joinpath(_PAGE).read_text("utf-8")
    sections = {name: text for name, text in _SECTION.findall(page) if name.endswith("Error")}
    wanted = options.error
    shown = [name for name in sections if wanted is None or name.lower() == wanted.lower()]
    if not shown:
        raise StructureError(
            f"There is no class {wanted}; expected one of {', '.join(sections)}. To do: name one, "
            "as it stands before the message."
        )
    for name in shown:
        text = _LINK.sub(r"\1", _COMMENT.sub("", sections[name]))
        print(f"{name}\n\n{text.strip()}\n")
    return 0
