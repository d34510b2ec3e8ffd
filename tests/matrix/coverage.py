"""`python -m tests.matrix.coverage [CASE ...]`: what works where, function by function.

Each function of the matrix is saved and run in TensorFlow, differentiated there, loaded in JAX, and
converted to ONNX, to LiteRT and to TFLite. What became of it goes into
docs/reference/coverage.json, and from there into the tables of docs/reference/coverage.md. Without
names all functions are measured, which takes a quarter of an hour; `--column` measures one place
alone, `--page` only writes the tables.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.matrix.cells import consume
from tests.matrix.files import write_cases
from tests.matrix.functions import FAMILIES
from tests.matrix.grid import Outcome
from tests.matrix.report import write_between
from tests.matrix.written import DEFAULT, read_written
from tests.policy.source import ROOT

RECORD = ROOT / "docs" / "reference" / "coverage.json"
PAGE = ROOT / "docs" / "reference" / "coverage.md"
BEGIN, END = "<!-- coverage -->", "<!-- end of coverage -->"
COLUMNS = ("TensorFlow", "gradient", "back to JAX", "ONNX", "LiteRT", "TFLite")
# The column of TensorFlow's converter, which ends the process on some modules.
_OF_CONVERTER = "TFLite"
_WORDS = {
    Outcome.PASSED: "right",
    Outcome.REFUSED: "refused",
    Outcome.FAILED: "wrong",
    Outcome.DIED: "refused",
    Outcome.ABSENT: "–",
}
_PACKAGES = (
    "jax",
    "tensorflow",
    "tensorflow-cpu",
    "onnx",
    "onnxruntime",
    "ai-edge-litert",
)
_UNKNOWN = "not measured"
_MAX_REASON = 200
_SILENCE = 180.0  # seconds
_WORKERS = 3  # processes
_BATCH = 30  # functions, after which the record is written


def read_record(path: Path = RECORD) -> dict[str, Any]:
    """Return what was measured last."""
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def measure(
    names: Sequence[str], columns: Sequence[str] = COLUMNS
) -> dict[str, dict[str, dict[str, str]]]:
    """Return the cells of some functions, and the reasons of those that are not right."""
    cells: dict[str, dict[str, str]] = {}
    reasons: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "files")
        folder.mkdir()
        write_cases(folder, [DEFAULT], names)
        answers = [
            (f"{entry.case}/{column}", Outcome.REFUSED, entry.error)
            for entry in read_written(folder)
            for column in columns
            if entry.error
        ]
        refused = {path for path, _, _ in answers}
        pending = [f"{name}/{column}" for name in names for column in columns]
        command = [sys.executable, "-m", "tests.matrix.coverage_cells", str(folder)]
        pending = [path for path in pending if path not in refused]
        with ThreadPoolExecutor(_WORKERS) as threads:
            parts = [pending[start::_WORKERS] for start in range(_WORKERS)]
            found = threads.map(lambda part: list(consume(command, part, silence=_SILENCE)), parts)
            answers += [answer for part in found for answer in part]
        for path, outcome, message in answers:
            name, _, column = path.partition("/")
            if outcome is Outcome.DIED and column != _OF_CONVERTER:
                raise RuntimeError(f"the process that measures {path} has ended: {message}")
            cells.setdefault(name, {})[column] = _WORDS[outcome]
            if outcome not in (Outcome.PASSED, Outcome.ABSENT):
                plain = message.replace(f"{folder}/", "").replace(f"{ROOT}/", "")
                text = " ".join(plain.split())
                died = "it ends the process: " if outcome is Outcome.DIED else ""
                reasons.setdefault(name, {})[column] = f"{died}{text}"[:_MAX_REASON]
    return {"cells": cells, "reasons": reasons}


def table(record: Mapping[str, Any], families: Mapping[str, Sequence[str]]) -> str:
    """Return the section of the page: a table of counts, one of functions, and their reasons.

    Functions with the same results share a row.

    Args:
        record: what was measured.
        families: the names of the functions of each family.
    """
    unknown = dict.fromkeys(COLUMNS, _UNKNOWN)
    cells = {name: record["cells"].get(name, unknown) for n in families.values() for name in n}
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    head = ["| functions | |" + "".join(f" {column} |" for column in COLUMNS)]
    head.append("|---|--:|" + "---|" * len(COLUMNS))
    lines = [f"Measured on {record['date']} with {versions}.", "", *head]
    for family, names in families.items():
        counts = (_count([cells[name][column] for name in names]) for column in COLUMNS)
        lines.append(f"| {family} | {len(names)} | {' | '.join(counts)} |")
    lines += ["", "| | functions | right but for |", "|---|---|---|"]
    for family, names in families.items():
        rows: dict[tuple[str, ...], list[str]] = {}
        for name in names:
            rows.setdefault(tuple(cells[name][column] for column in COLUMNS), []).append(
                f"`{name}`"
            )
        for number, (row, alike) in enumerate(rows.items()):
            title = "" if number else family
            lines.append(f"| {title} | {', '.join(alike)} | {_but_for(row)} |")
    lines.append("")
    for family, names in families.items():
        lines += _reasons(record["reasons"], names, f"all of {family}")
    return "\n".join(lines)


def _count(words: Sequence[str]) -> str:
    """Return how many are right, as a bare number, and how many are not."""
    counts = {word: words.count(word) for word in ("right", "refused", "wrong", _UNKNOWN)}
    return (
        ", ".join(
            str(count) if word == "right" else f"{count} {word}"
            for word, count in counts.items()
            if count
        )
        or "–"
    )


def _but_for(row: Sequence[str]) -> str:
    """Return the columns in which functions are not right: "LiteRT, TFLite refused"."""
    if {*row} == {_UNKNOWN}:
        return _UNKNOWN
    found: dict[str, list[str]] = {}
    for column, word in zip(COLUMNS, row, strict=True):
        found.setdefault(word, []).append(column)
    found.pop("right", None)
    return "; ".join(f"{', '.join(columns)} {word}" for word, columns in found.items())


def _reasons(
    reasons: Mapping[str, Mapping[str, str]], names: Sequence[str], every: str
) -> Iterator[str]:
    """Yield why functions are not right, but for TFLite, whose reasons are in the record."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in names:
        for column, reason in reasons.get(name, {}).items():
            if column != _OF_CONVERTER:
                sentence = _of_any_function(reason.partition(" To do:")[0].replace("`", "'"))
                found.setdefault((column, sentence), []).append(f"`{name}`")
    for (column, sentence), alike in found.items():
        those = every if len(alike) == len(names) else ", ".join(alike)
        yield f"- {those}, {column}: `{sentence}`"


def _of_any_function(sentence: str) -> str:
    """Return a message without the name of the function of the tests that it is about."""
    return re.sub(r"(?<=Error: )\w+(?= was exported)", "it", re.sub(r" of _\w+", "", sentence))


def names_of_families() -> dict[str, list[str]]:
    """Return the names of the functions of each family."""
    return {family: [case.name for case in cases] for family, cases in FAMILIES.items()}


def _versions() -> Iterator[tuple[str, str]]:
    for name in _PACKAGES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue


def main() -> None:
    """Measure, and write the record and the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix.coverage")
    parser.add_argument("names", metavar="CASE", nargs="*", help="by default all")
    parser.add_argument(
        "--column", action="append", choices=COLUMNS, help="measure this one alone; may be repeated"
    )
    parser.add_argument("--page", action="store_true", help="write the page of the record alone")
    options = parser.parse_args()
    families = names_of_families()
    every = [name for names in families.values() for name in names]
    chosen = [] if options.page else options.names or every
    for start in range(0, len(chosen), _BATCH):
        _write_record(chosen[start : start + _BATCH], every, options.column or COLUMNS)
        print(f"{min(start + _BATCH, len(chosen))} of {len(chosen)} functions", flush=True)
    write_between(PAGE, table(read_record(), families), BEGIN, END)


def _write_record(names: Sequence[str], every: Sequence[str], columns: Sequence[str]) -> None:
    """Measure some columns of some functions, and put them in the place of older ones."""
    old = read_record() if RECORD.exists() else {"cells": {}, "reasons": {}}
    found = measure(names, columns)
    record: dict[str, Any] = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "versions": dict(_versions()),
    }
    for part in ("cells", "reasons"):
        known = dict(old[part])
        for name in names:
            kept = {c: why for c, why in known.get(name, {}).items() if c not in columns}
            known[name] = kept | found[part].get(name, {})
        record[part] = {name: known[name] for name in every if known.get(name)}
    RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
