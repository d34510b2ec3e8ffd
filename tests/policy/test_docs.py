"""What the documentation names exists."""

from __future__ import annotations

import re

import pytest

from tests.policy.source import ROOT

PAGES = sorted(
    [
        *ROOT.glob("docs/**/*.md"),
        *(page for page in ROOT.glob("*.md") if page.name != "CHANGELOG.md"),
    ]
)
_PATH = re.compile(
    r"(?<![\w/.-])(?:bridge|savedmodel|xla_call_module|tests|examples|docs)/[\w./-]*\w/?"
)
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


def missing_paths(text):
    """Return the files and folders of this project that a text names and that are not there."""
    return [path for path in _PATH.findall(text) if not (ROOT / path).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_and_links_lead_somewhere(page):
    text = page.read_text()
    assert missing_paths(text) == []
    links = _LINK.findall(_FENCED.sub("", text))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_a_missing_path_is_found():
    assert missing_paths("see `bridge/elsewhere.py` and `bridge/save.py`") == [
        "bridge/elsewhere.py"
    ]
