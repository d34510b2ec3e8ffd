"""An extension of griffe: sections of docstrings that are titled `Example:` become examples."""

from __future__ import annotations

import re
from typing import Any

import griffe

_TITLE = re.compile(r"^Example:$", re.MULTILINE)


class ExampleSections(griffe.Extension):
    """The section `Example:` of a docstring as `Examples:`, the only title that griffe knows."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the title in the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = _TITLE.sub("Examples:", obj.docstring.value)
