"""HTML and SVG as trees of `xml.etree`, as text, and the style sheets of the page and of an image.

The text of a page is also well-formed XML, and whatever comes from a file is escaped in it; XML has
no place for control characters and lone surrogates.
"""

from __future__ import annotations

from xml.etree.ElementTree import Element, tostring

from bridge.inspecting.wording import printable


def element(tag: str, *children: str | Element, **attributes: object) -> Element:
    """Return an element around texts and other elements.

    Example:
        >>> to_markup(element("p", "a < b", element("b", "c"), class_="note"))
        '<p class="note">a &lt; b<b>c</b></p>'
    """
    made = Element(
        tag,
        {
            name.rstrip("_").replace("_", "-"): printable(str(value), kept="\n")
            for name, value in attributes.items()
            if value is not None
        },
    )
    for child in children:
        if isinstance(child, Element):
            made.append(child)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + printable(child, kept="\n")
        else:
            made.text = (made.text or "") + printable(child, kept="\n")
    return made


def to_markup(root: Element) -> str:
    """Return the text of an element, which HTML and XML read alike."""
    text = tostring(root, encoding="unicode", short_empty_elements=False)
    return text.replace("></meta>", " />")  # the only element here that HTML has no end of


IMAGE_STYLE = (
    "text { font: 13px system-ui, sans-serif; fill: #1d1d1b; } .small { font-size: 11px; } "
    ".ontile { font-size: 11px; fill: #14202b; } .tile { stroke: #ffffff; stroke-width: 2; } "
    ".page { fill: #ffffff; }"
)
PAGE_STYLE = """
:root {
  color-scheme: light dark;
  --page: #fbfbfa; --card: #ffffff; --line: #e2e1dd; --text: #1d1d1b; --quiet: #6b6a65;
  --accent: #2f6f9f; --accent-soft: #dcebf5; --good: #3d7f55; --good-soft: #ddefe2;
  --warm: #9a6423; --warm-soft: #f6e8d5; --off: #efeeea;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #161719; --card: #1e2023; --line: #34373c; --text: #e9e8e4; --quiet: #9b9a94;
    --accent: #7fb9e0; --accent-soft: #22394a; --good: #86c79c; --good-soft: #21392a;
    --warm: #dfb076; --warm-soft: #42321f; --off: #292b2f;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1000px; margin: 0 auto; padding: 40px 24px 72px; }
h1 { font-size: 24px; line-height: 1.3; margin: 0 0 6px; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 44px 0 12px; overflow-wrap: anywhere; }
h3 { font-size: 12px; font-weight: 600; letter-spacing: .06em; text-transform: uppercase;
  color: var(--quiet); margin: 26px 0 8px; }
p { margin: 6px 0; }
.quiet { color: var(--quiet); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 16px 20px; margin: 12px 0; overflow-x: auto; }
.facts { display: grid; grid-template-columns: max-content 1fr; gap: 4px 20px; margin: 0; }
.facts dt { color: var(--quiet); }
.facts dd { margin: 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 500; color: var(--quiet); font-size: 13px; }
th, td { padding: 4px 16px 4px 0; vertical-align: top; }
tr + tr td { border-top: 1px solid var(--line); }
.bars td { white-space: nowrap; }
.bars td:first-child { overflow-wrap: anywhere; min-width: 150px; white-space: normal; }
.number { text-align: right; white-space: nowrap; }
code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  font-size: 13px; }
.bar { height: 8px; min-width: 2px; border-radius: 4px; background: var(--accent); }
.bars td:last-child { width: 30%; min-width: 120px; vertical-align: middle; }
svg { display: block; max-width: 100%; height: auto; }
svg[width="920"] { min-width: 640px; }
svg text { fill: var(--text); font-size: 13px; }
svg .small { font-size: 11px; fill: var(--quiet); }
svg .strong { font-weight: 600; }
svg .box { fill: var(--card); stroke: var(--line); }
svg .input { fill: var(--accent-soft); stroke: var(--accent); }
svg .output { fill: var(--good-soft); stroke: var(--good); }
svg .bound { fill: var(--warm-soft); stroke: var(--warm); }
svg .module { fill: var(--card); stroke: var(--text); }
svg .off { fill: var(--off); stroke: var(--line); }
svg .unused { stroke-dasharray: 4 4; opacity: .7; }
svg .wire { fill: none; stroke: var(--quiet); stroke-width: 1.3; }
svg .tip { fill: var(--quiet); }
svg .variable { fill: var(--accent-soft); stroke: var(--card); stroke-width: 2; }
svg .constant { fill: var(--warm-soft); stroke: var(--card); stroke-width: 2; }
svg .graph { fill: var(--good-soft); stroke: var(--card); stroke-width: 2; }
svg .tile { stroke: var(--card); stroke-width: 2; }
svg text.ontile { fill: #14202b; font-size: 11px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; color: var(--quiet); font-size: 13px; }
.legend svg { display: inline-block; vertical-align: -1px; margin-right: 6px; }
.arrays { display: flex; flex-wrap: wrap; gap: 24px 40px; }
"""
