"""The texts of command line options as the values that they mean."""

from __future__ import annotations

import argparse

import pytest

from bridge.cli.command_arguments import to_names, to_sizes, to_updates
from bridge.formats.file_format import to_tolerance_numbers


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (to_names, "a, b", ["a", "b"]),
        (to_names, "a = b, c=d", {"a": "b", "c": "d"}),
        (to_names, "a=b=c", {"a": "b=c"}),
        (to_sizes, "1, 8,32,", (1, 8, 32)),
        (to_tolerance_numbers, "1e-3,0", (1e-3, 0.0)),
        (to_updates, "2", 2),
        (to_updates, "a=0, b/c=1", {"a": 0, "b/c": 1}),
        (to_updates, "f:a=1, f:b=2, g=0", {"f": {"a": 1, "b": 2}, "g": 0}),
    ],
)
def test_what_is_read(read, text, value):
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (to_names, "a, b=c"),
        (to_names, "a=b, c"),
        (to_sizes, "1, x"),
        (to_tolerance_numbers, "small"),
        (to_updates, "a"),
        (to_updates, "a=x"),
        (to_updates, "=1"),
        (to_updates, "a=1, a=2"),
        (to_updates, "f:a=1, f:a=2"),
        (to_updates, "f=0, f:a=1"),
        (to_updates, "f:a=1, f=0"),
        (to_updates, "f:g:a=1"),
    ],
)
def test_what_is_refused(read, text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"mixes|is no|is neither"):
        read(text)
