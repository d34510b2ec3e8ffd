"""A page of Markdown as the blocks of code on it."""

from __future__ import annotations

import re
from dataclasses import dataclass

LANGUAGES = ("python", "shell", "text", "yaml", "json", "html", "js", "ebnf", "mermaid", "protobuf")
_FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
_COMMENTS = re.compile(r"(?:<!--[^>]*-->\s*)+\Z")
_COMMENT = re.compile(r"<!--\s*(.*?)\s*-->", re.DOTALL)
_DIRECTIVE = re.compile(r"(continues|output|raises|exit|file|not run)(?:(?:: | )(.+))?", re.DOTALL)
_DEVICES = re.compile(r"<!-- devices (\d+) -->")
_NEEDS = re.compile(r"<!-- needs (\w+) -->\s")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block, with what the comments before it say.

    Attributes:
        line: the line of the page on which it begins.
        language: the word behind the fence.
        code: the text in it.
        span: where this text begins and ends on the page.
        directives: each word of a comment, with what follows it.
    """

    line: int
    language: str
    code: str
    span: tuple[int, int]
    directives: dict[str, str]


@dataclass(frozen=True, slots=True)
class Page:
    """The blocks of a page, the number of devices, and the module that it asks for, if any."""

    blocks: tuple[Block, ...]
    devices: int
    needs: str | None


def read_page(text: str) -> Page:
    """Return the blocks of a page.

    Raises:
        ValueError: a fence has an unknown language, or a comment before it says something unknown.
    """
    blocks = []
    for fence in _FENCE.finditer(text):
        line = text.count("\n", 0, fence.start()) + 1
        if fence[1] not in LANGUAGES:
            raise ValueError(f"line {line}: the language {fence[1]!r} is none of {LANGUAGES}.")
        directives = _directives(text[: fence.start()], line)
        blocks.append(Block(line, fence[1], fence[2], fence.span(2), directives))
    devices = _DEVICES.search(text)
    needs = _NEEDS.search(text)
    return Page(tuple(blocks), int(devices[1]) if devices else 1, needs[1] if needs else None)


def _directives(before, line):
    """Return what the comments say that end a text."""
    comments = _COMMENTS.search(before.rstrip())
    found = {}
    for comment in _COMMENT.findall(comments[0]) if comments else ():
        directive = _DIRECTIVE.fullmatch(comment)
        if directive is None:
            raise ValueError(f"line {line}: the comment {comment!r} says nothing about a block.")
        found[directive[1]] = directive[2] or ""
    return found
