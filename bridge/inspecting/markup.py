"""HTML and SVG elements, in which every text from outside is escaped.

What is built is also well-formed XML, so that any parser reads it.
"""

from __future__ import annotations

from html import escape

__all__ = ["Markup", "element", "join"]

_VOID = frozenset({"br", "col", "hr", "meta"})


class Markup(str):
    """A text that is markup already; any other text is escaped."""

    __slots__ = ()


def element(
    tag: str, *children: str, attributes: dict[str, object] | None = None, **more: object
) -> Markup:
    """An element around its children.

    Args:
        tag: its name.
        children: markup as it is, and text, which is escaped.
        attributes: those whose names are no Python names.
        more: other attributes; a trailing underscore of the name is left out, and one whose value
            is None, too.

    Example:
        >>> element("p", "a < b", element("br"), class_="note")
        '<p class="note">a &lt; b<br /></p>'
    """
    named = {name.rstrip("_").replace("_", "-"): value for name, value in more.items()}
    written = "".join(
        f' {name}="{escape(_visible(str(value)))}"'
        for name, value in ((attributes or {}) | named).items()
        if value is not None
    )
    inside = join(*children)
    if not inside and tag in _VOID:
        return Markup(f"<{tag}{written} />")
    return Markup(f"<{tag}{written}>{inside}</{tag}>")


def join(*children: str) -> Markup:
    """Markup and escaped texts in sequence."""
    return Markup(
        "".join(
            str(child) if isinstance(child, Markup) else escape(_visible(child))
            for child in children
        )
    )


def _visible(text: str) -> str:
    """The text without what XML has no place for: control characters and lone surrogates."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n " else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
