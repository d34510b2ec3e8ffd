"""The page on browsers quotes the examples that are run in one."""

import re

import pytest

from tests.policy.source import ROOT

PAGE = (ROOT / "docs/how-to/browsers.md").read_text()


@pytest.mark.parametrize(("number", "example"), [(0, "browser"), (1, "litert_in_a_browser")])
def test_each_quoted_line_is_in_the_example(number, example):
    text = (ROOT / "examples" / example / "index.html").read_text()
    quoted = re.findall(r"```js\n(.*?)```", PAGE, re.DOTALL)
    assert len(quoted) == 2
    assert [line for line in quoted[number].splitlines() if line not in text] == []
