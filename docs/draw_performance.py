"""Draws the plots of `docs/reference/performance.md`, and writes its tables, of `benchmarks.json`.

`python docs/draw_performance.py` does both anew. On a logarithmic axis each row has a point for the
median of its rounds, and a line from the lowest to the highest; left of the line at 1 less is taken
than by the other way.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

DOCS = Path(__file__).parent
RECORD = DOCS / "reference" / "benchmarks.json"
PAGE = DOCS / "reference" / "performance.md"
README = DOCS.parent / "README.md"
LEFT, RIGHT, EDGE, ROW, TOP = 500, 900, 970, 24, 46
LESS, MORE, LINE, TEXT = "#16a34a", "#ea580c", "#8492a6", "#748094"
MAX_LABEL = 84  # characters of a row
# The plots: for each its title, and the benchmarks that it is made of.
PLOTS = {
    "files": (
        "Files, written and read",
        "whole_process save_step save_in_shards first_result saved_size cold_start real_models",
    ),
    "calls": (
        "Calls",
        (
            "eager eager_network in_function loaded_calls call_tf conversions large_constant "
            "batch_buckets"
        ),
    ),
    "gradients": ("Gradients", "gradients_eager gradients_in_function"),
    "state": ("Models that change", "decoding variables_of_steps training_memory"),
    "lifted": ("Functions lifted to JAX", "lifted_batches lifted_run_time lifted_size"),
    "onnx": ("ONNX Runtime", "onnx_models"),
    "litert": ("LiteRT", "litert_networks litert_conversion"),
    "linalg": ("Linear algebra", "linalg"),
}
# What is measured against a unit, and not against another way to do the same.
_ABSOLUTE = re.compile(r"in units of|: seconds|CPU seconds")
# What is told of networks: a line for each, with a column for each peer.
_NETWORK = re.compile(r"(?P<network>.+), (?P<what>size|latency): LiteRT / (?P<peer>.+)")
# The same for results that are ratios: a line for each network, with a column for each quantity.
_RATIOS_OF_NETWORKS = (
    re.compile(
        r"(?P<network>.+?), (?P<column>(?:forward|gradient)(?:, compilation)?|equations)"
        r": lifted / .*original"
    ),
    re.compile(r"(?P<network>.+), (?P<column>threads: .+)"),
    re.compile(r"forward and gradient, (?P<mode>.+), (?P<network>.+): (?P<column>.+)"),
    re.compile(r"(?P<network>\w+), (?P<column>N = 256: .+)"),
)
_HEADLINE = "export and save, whole process: {} / jax2tf"
_RATIOS = "| what | ratio |"
_FIGURES = f"{_RATIOS} ours | the other |"
_SECTION = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_README = re.compile(r"[\d.]+ of the CPU time, [\d.]+ of the memory")


def read_record() -> dict[str, Any]:
    """Return what the benchmarks have measured."""
    record: dict[str, Any] = json.loads(RECORD.read_text())
    return record


def pictures() -> dict[Path, str]:
    """Return each plot by the path of its file."""
    record = read_record()
    return {
        DOCS / "assets" / f"performance_{name}.svg": _draw(title, list(_ratios(record, names)))
        for name, (title, names) in PLOTS.items()
    }


def texts() -> dict[Path, str]:
    """Return the pages with the figures of the record."""
    record = read_record()
    page = _SECTION.sub(lambda m: f"{m[1]}\n{_section(m[2], record)}\n{m[3]}", PAGE.read_text())
    return {PAGE: page, README: _README.sub(_headline(record), README.read_text())}


def _results(record: Mapping[str, Any], names: str) -> Iterator[dict[str, Any]]:
    for name in names.split():
        yield from record["runs"].get(name, {"results": []})["results"]


def _ratios(record: Mapping[str, Any], names: str) -> Iterator[dict[str, Any]]:
    """Yield the results that are ratios to another way."""
    for result in _results(record, names):
        if "median" in result and not _ABSOLUTE.search(result["name"]):
            yield result


def _section(name: str, record: Mapping[str, Any]) -> str:
    if name == "noted":
        rows = "\n".join(f"| {what} | {text} |" for what, text in record["noted"]["rows"])
        return f"| what, against its peer | ratio |\n|---|---|\n{rows}"
    if name == "runs":
        return "\n".join(_runs(record))
    title, names = PLOTS[name]
    results = list(_results(record, names))
    networks = [*_networks(results), *_ratios_of_networks(results)]
    patterns = (_NETWORK, *_RATIOS_OF_NETWORKS)
    others = [
        each for each in results if not any(pattern.match(each["name"]) for pattern in patterns)
    ]
    tables = [
        *_table(_RATIOS, [each for each in others if not each["ours"]]),
        *_table(_FIGURES, [each for each in others if each["ours"]]),
    ]
    picture = f"![{title}: a plot of the ratios below]"
    picture += f"(../assets/performance_{name}.svg)"
    return "\n".join([picture, "", *networks, *tables]).rstrip("\n")


def _table(head: str, results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table; none where it would be empty."""
    columns = head.count("|") - 1
    rows = [f"| {' | '.join(_cells(result)[:columns])} |" for result in results]
    return [head, f"|---|{'--:|' * (columns - 1)}", *rows, ""] if rows else []


def _networks(results: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table with a row for each network, if that is what was measured."""
    found: dict[str, dict[str, Any]] = {}
    for result in results:
        if named := _NETWORK.match(result["name"]):
            found.setdefault(named["network"], {})[named["what"], named["peer"]] = result
    if not found:
        return
    columns = list(dict.fromkeys(key for row in found.values() for key in row))
    titles = [f"{what}, {peer}" for what, peer in columns]
    yield f"| network | size | latency | {' | '.join(titles)} |"
    yield f"|---|{'--:|' * (len(columns) + 2)}"
    for network, row in found.items():
        ours = [
            next(result["ours"] for (what, _), result in row.items() if what == kind)
            for kind in ("size", "latency")
        ]
        peers = [_beside(row[key]) if key in row else "" for key in columns]
        yield f"| {' | '.join([network, *ours, *peers])} |"
    yield ""


def _ratios_of_networks(results: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table of ratios with a row for each network and their peers' figures."""
    found: dict[str, dict[str, str]] = {}
    for result in results:
        for pattern in _RATIOS_OF_NETWORKS:
            if named := pattern.match(result["name"]):
                _, ratio, ours, peer = _cells(result)
                parts = named.groupdict()
                row = found.setdefault(parts.pop("network"), {})
                row[": ".join(parts.values())] = f"{ratio}: {ours} / {peer}" if ours else ratio
    if not found:
        return
    columns = list(dict.fromkeys(key for row in found.values() for key in row))
    yield f"| | {' | '.join(columns)} |"
    yield f"|---|{'--:|' * len(columns)}"
    for network, row in found.items():
        yield f"| {network} | {' | '.join(row.get(key, '') for key in columns)} |"
    yield ""


def _beside(result: Mapping[str, Any]) -> str:
    """Return what the peer has, and the ratio to it."""
    ratio = f" ({result['median']:g})" if "median" in result else ""
    return f"{result['peer']}{ratio}"


def _cells(result: Mapping[str, Any]) -> list[str]:
    name = result["name"].replace("|", "\\|")
    if _ABSOLUTE.search(name):
        return [name, "", result["ours"], ""]
    if "median" not in result:
        return [name, "", result["ours"], result["peer"]]
    return [name, f"{result['median']:g}", result["ours"], result["peer"]]


def _runs(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each set of benchmarks that ran on one day with the same versions."""
    together: dict[tuple[str, str, str], list[str]] = {}
    for run in record["runs"].values():
        versions = ", ".join(f"{key} {value}" for key, value in run["versions"].items())
        hardware, _, load = run["machine"].rpartition(", ")
        together.setdefault((run["date"], versions, hardware), []).append(load.split()[-1])
    for (date, versions, hardware), loads in sorted(together.items()):
        numbers = sorted(float(load) for load in loads if load != "load")
        yield f"- {date}, {versions}. {hardware}, load {numbers[0]} to {numbers[-1]}."


def _headline(record: Mapping[str, Any]) -> str:
    found = {result["name"]: result["median"] for result in _results(record, "whole_process")}
    cpu, memory = (found[_HEADLINE.format(what)] for what in ("CPU time", "peak memory"))
    return f"{cpu:.2f} of the CPU time, {memory:.2f} of the memory"


def _draw(title: str, results: list[dict[str, Any]]) -> str:
    lowest, highest = _decades(results)
    height = TOP + ROW * len(results) + 14
    parts = [f"<title>{title}: time and memory against the other way</title>"]
    for power in range(lowest, highest + 1):
        x = _place(10.0**power, lowest, highest)
        dash = "" if power == 0 else ' stroke-dasharray="2 4"'
        line = f'<line x1="{x:g}" y1="{TOP - 12}" x2="{x:g}" y2="{height - 10}"'
        parts.append(f'{line} stroke="{LINE}"{dash}/>')
        parts.append(_text(x, TOP - 20, f"{10.0**power:g}", "middle"))
    for number, result in enumerate(results):
        parts += _draw_row(result, TOP + ROW * number + 8, lowest, highest)
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {EDGE} {height}" role="img" '
        'font-family="system-ui, Segoe UI, Helvetica, Arial, sans-serif" font-size="11.5">'
    )
    return "\n".join([opening, *parts, "</svg>\n"])


def _draw_row(result: Mapping[str, Any], y: int, lowest: int, highest: int) -> Iterator[str]:
    name, median = result["name"], result["median"]
    cut = name[: MAX_LABEL - 1].rstrip(" ,:(") + "…"
    yield _text(LEFT - 14, y + 4, name if len(name) <= MAX_LABEL else cut, "end")
    colour = LESS if median <= 1 else MORE
    start, middle, stop = (
        _place(result[key], lowest, highest) for key in ("lowest", "median", "highest")
    )
    yield (
        f'<line x1="{start:g}" y1="{y}" x2="{stop:g}" y2="{y}" stroke="{colour}" '
        'stroke-width="2" stroke-opacity="0.5"/>'
    )
    yield (
        f'<circle cx="{middle:g}" cy="{y}" r="5" fill="{colour}">'
        f"<title>{escape(name)}: {median:g}</title></circle>"
    )
    yield _text(EDGE - 6, y + 4, f"{median:g}", "end")


def _decades(results: list[dict[str, Any]]) -> tuple[int, int]:
    """Return the powers of ten at both ends of the axis, which has 1 on it."""
    low = min((result["lowest"] for result in results), default=1.0)
    high = max((result["highest"] for result in results), default=1.0)
    return min(math.floor(math.log10(low)), -1), max(math.ceil(math.log10(high)), 1)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:g}" y="{y}" text-anchor="{anchor}" fill="{TEXT}">{escape(text)}</text>'


def _place(ratio: float, lowest: int, highest: int) -> float:
    share = (math.log10(ratio) - lowest) / (highest - lowest)
    return round(LEFT + share * (RIGHT - LEFT), 1)


if __name__ == "__main__":
    for path, text in {**pictures(), **texts()}.items():
        path.write_text(text)
