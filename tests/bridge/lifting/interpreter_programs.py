"""`python -m tests.bridge.lifting.interpreter_programs FOLDER`: tests of StableHLO's interpreter.

The folder is `stablehlo/tests/interpret` of openxla/stablehlo. Each program of its files computes
with constants, and says by operations of the dialect `check` what its values are. Each is lifted
twice, with its constants in it and with them as arguments, and judged by what it says. Printed are
the programs that are not right, and how many are. Those of several devices, and those with
quantized types, which jaxlib has not, are left out.

    python -m tests.bridge.lifting.interpreter_programs FOLDER [--only TEXT]
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from jax import enable_x64

import bridge
from bridge.loading.exported_from_call import exported_from_call
from tests.bridge.lifting.reference_interpreter import differs, read_dense
from xla_call_module.errors import InteropError
from xla_call_module.mlir_files import call_of_file

_TYPE = r"tensor<(?:[^<>]|<[^<>]*>)*>"
_DENSE = r"dense<[^<>]*>"
_CHECK = re.compile(
    rf"check\.expect_(?P<kind>eq_const|almost_eq_const|eq|almost_eq|close)\s+(?P<value>%[\w#]+)\s*,"
    rf"\s*(?P<other>%[\w#]+|{_DENSE})(?P<options>[^:%]*):\s*(?P<type>{_TYPE})(?:\s*,\s*{_TYPE})?"
    r"(?P<more>\s*\{tolerance[^}]*\})?"
)
_FUNCTION = re.compile(r"func\.func (?:public )?@([\w.]+)\(\) \{")
_CONSTANT = re.compile(rf"^ {{2,4}}(%\w+) = stablehlo\.constant ({_DENSE}) : ({_TYPE})$", re.M)
_RETURN = re.compile(r"\n +(?:func\.)?return *\n")
_UNREAD = ("interpreter.", "!quant", "expect_serialized", "stablehlo.infeed", "stablehlo.outfeed")
# How exact `almost_eq` is, and how exact XLA is of narrow floats.
_ABSOLUTE, _ULPS = 1e-4, 3
_OF_SIZES = re.compile(r"depends on the values|of sizes|takes a constant")


@dataclass(frozen=True)
class InterpreterProgram:
    """One program of a file.

    Attributes:
        name: the name of the file, and the number of the program in it.
        text: the module, which returns pairs of a value and of what it is to be.
        tolerances: of each pair, by how much and by how many units in the last place its elements
            may differ.
    """

    name: str
    text: str
    tolerances: tuple[tuple[float, float], ...]


def programs_of(path: Path) -> Iterator[InterpreterProgram]:
    """Yield the programs of a file that can be read."""
    for number, part in enumerate(path.read_text().split("// -----\n")):
        code = re.sub(r"^ *//.*\n", "", part, flags=re.M)
        if "func.func" not in code or any(word in code for word in _UNREAD):
            continue
        checks = list(_CHECK.finditer(code))
        if checks and len(checks) == code.count("check.expect"):
            yield _program(f"{path.name}:{number}", code, checks)


def _program(name: str, code: str, checks: Sequence[re.Match[str]]) -> InterpreterProgram:
    """Return a program that returns what it checked."""
    for number, check in enumerate(checks):
        other, type_ = check["other"], check["type"]
        line = "" if other[0] == "%" else f"%expected{number} = stablehlo.constant {other}: {type_}"
        code = code.replace(check[0], line, 1)
    others = [c["other"] if c["other"][0] == "%" else f"%expected{n}" for n, c in enumerate(checks)]
    values = ", ".join(v for c, o in zip(checks, others, strict=True) for v in (c["value"], o))
    types = ", ".join(c["type"] for c in checks for _ in range(2))
    code = _FUNCTION.sub(lambda match: f"func.func @{match[1]}() -> ({types}) {{", code, count=1)
    code = _RETURN.sub(f"\n  return {values} : {types}\n", code)
    return InterpreterProgram(name, code, tuple(map(_tolerance, checks)))


def _tolerance(check: re.Match[str]) -> tuple[float, float]:
    if check["kind"].startswith("eq"):
        return 0, 0
    said = re.search(r"(tolerance|difference) = ([\d.]+)", f"{check['options']}{check['more']}")
    if check["kind"] == "close":
        return 0, float(said[2]) if said else _ULPS
    return (float(said[2]) if said else _ABSOLUTE), _ULPS


def with_arguments(text: str) -> tuple[str, list[Any]]:
    """Return a program whose constants are arguments, and their values."""
    entry = text.index("() -> (")
    found = [match for match in _CONSTANT.finditer(text, entry) if "expected" not in match[1]]
    values = [read_dense(f"{match[2]} : {match[3]}") for match in found]
    body = text[entry:]
    for match in found:
        body = body.replace(match[0] + "\n", "", 1)
    arguments = ", ".join(f"{match[1]}: {match[3]}" for match in found)
    return f"{text[:entry]}({arguments}){body[2:]}", values


def judge_program(program: InterpreterProgram) -> tuple[str, str]:
    """Return `right`, `xla`, `refused`, `wrong` or `raised`, and the reason.

    It is `xla` where XLA computes something else by the program itself, and `refused` does not say
    that sizes, which are constants of the program, cannot be arguments.
    """
    with enable_x64(True):
        verdict, reason = _judge(program, program.text, [])
        if verdict != "right":
            return verdict, f"constants: {reason}"
        text, values = with_arguments(program.text)
        verdict, reason = _judge(program, text, values) if values else ("right", "")
        if verdict == "refused" and _OF_SIZES.search(reason):
            return "right", ""
        return verdict, f"arguments: {reason}" if reason else ""


def _judge(program: InterpreterProgram, text: str, arrays: Sequence[Any]) -> tuple[str, str]:
    try:
        results = jax.tree.leaves(jax.jit(bridge.to_jax(text))(*arrays))
    except InteropError as error:
        return "refused", f"{type(error).__name__}: {error}"[:300]
    except Exception as error:  # noqa: BLE001 - which is what is looked for
        return "raised", f"{type(error).__name__}: {error}"[:300]
    pairs = zip(results[::2], results[1::2], program.tolerances, strict=True)
    faults = [
        differs(one, jax.device_get(other), absolute=absolute, ulps=ulps)
        for one, other, (absolute, ulps) in pairs
    ]
    fault = "; ".join(filter(None, faults))
    if not fault:
        return "right", ""
    return ("xla" if _is_xlas(text, arrays, results) else "wrong"), fault


def _is_xlas(text: str, arrays: Sequence[Any], results: Sequence[Any]) -> bool:
    """Return whether the program as it is has the same results."""
    call = call_of_file(Path("program.mlir"), text.encode(), narrow=True)
    sealed = jax.tree.leaves(exported_from_call(call).call(*arrays))
    return not any(differs(*pair) for pair in zip(results, jax.device_get(sealed), strict=True))


def main() -> int:
    """Judge the programs of a folder; return 1 if one is wrong or raises."""
    parser = argparse.ArgumentParser(description="Tests of StableHLO's interpreter, lifted.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="a part of the names of files")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    for path in sorted(options.folder.glob("*.mlir")):
        if options.only not in path.name:
            continue
        for program in programs_of(path):
            verdict, reason = judge_program(program)
            counts[verdict] += 1
            if verdict != "right":
                print(verdict, program.name, reason, flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    return int(bool(counts["wrong"] + counts["raised"]))


if __name__ == "__main__":
    sys.exit(main())
