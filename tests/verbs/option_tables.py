"""The tables of options x modes x platforms, and who else tests an option.

A table's rows are made so that each two levels of each two factors meet in some row. They follow
from the factors alone, so that a row that fails is the same everywhere.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from bridge.core.operations_option import OPERATIONS

Row = dict[str, str]


@dataclass(frozen=True)
class Table:
    """The options of a verb.

    Attributes:
        verb: as in `bridge.save`.
        factors: for each option or other factor the names of its levels; the first are the usual.
        excluded: pairs of (factor, level) that do not go together.
    """

    verb: str
    factors: dict[str, tuple[str, ...]]
    excluded: tuple[frozenset[tuple[str, str]], ...] = ()

    def rows(self) -> list[Row]:
        """Rows in which every two levels meet that go together."""
        missing = {
            frozenset(pair)
            for one, other in itertools.combinations(self.factors, 2)
            for pair in itertools.product(
                [(one, level) for level in self.factors[one]],
                [(other, level) for level in self.factors[other]],
            )
        } - set(self.excluded)
        rows = []
        while missing:
            row = dict(min(sorted(pair) for pair in missing))
            for factor in sorted(self.factors, key=lambda name: -len(self.factors[name])):
                if factor not in row:
                    row[factor] = self._best(row, factor, missing, len(rows))
            found = {frozenset(pair) for pair in itertools.combinations(row.items(), 2)}
            assert not found.isdisjoint(missing), f"{row} has nothing new"
            missing -= found
            rows.append(row)
        return rows

    def _best(self, row: Row, factor: str, missing: set[frozenset], turn: int) -> str:
        """The level with which a row has most of what is missing, the next in turn of several."""
        levels = self.factors[factor]
        turned = [levels[(turn + i) % len(levels)] for i in range(len(levels))]
        fitting = [
            level
            for level in turned
            if not any(frozenset([(factor, level), item]) in self.excluded for item in row.items())
        ]
        assert fitting, f"nothing of {factor} goes with {row}"
        return max(
            fitting,
            key=lambda level: sum(
                frozenset([(factor, level), item]) in missing for item in row.items()
            ),
        )


def _pairs(*pairs: tuple[tuple[str, str], tuple[str, str]]) -> tuple[frozenset, ...]:
    return tuple(map(frozenset, pairs))


_FUNCTIONS = ("elementwise", "product", "chosen", "unused", "written", "factored", "looped")
_MODES = ("eager", "graph", "jit")
_SHARED = {
    "function": _FUNCTIONS,
    "sizes": ("static", "symbolic"),
    "platforms": ("default", "one", "cpu last"),
    "residuals": ("no", "yes"),
    "hoist_constants": ("default", "none", "all"),
    "linalg": ("portable", "lapack"),
    "disabled_checks": ("none", "platform", "shape_assertions"),
    "operations": OPERATIONS,
    "mode": _MODES,
}
# TensorFlow does not have the library.
_LAPACK = (("function", "factored"), ("linalg", "lapack"))

SAVE = Table(
    "save",
    {
        **_SHARED,
        "origin": ("written", "saved again", "retargeted"),
        "model": ("function", "exported", "two signatures"),
        "params": ("none", "trainable", "frozen", "partly"),
        "gradient_order": ("1", "0", "2"),
        "tensorflow": ("newest", "2.16"),
        "names": ("default", "mapping", "sequence"),
        "defaults": ("none", "given"),
        "batch_buckets": ("none", "given"),
        "files": ("default", "shards", "manifest"),
    },
    _pairs(
        _LAPACK,
        (("batch_buckets", "given"), ("sizes", "static")),
        (("batch_buckets", "given"), ("operations", "tensorflow")),
        # An argument that no module takes has no name of its own.
        (("function", "unused"), ("names", "default")),
        (("function", "unused"), ("names", "mapping")),
    ),
)
UPDATES = Table(
    "save",
    {
        **_SHARED,
        "function": ("counted", "swapped", "chosen", "unread", "written", "factored", "looped"),
        "mode": (*_MODES, "session"),
        "origin": ("written", "saved again", "retargeted"),
        "model": ("function", "exported", "mixed", "donated"),
        "tree": ("dict", "named tuple", "tied", "with None", "registered", "dataclass"),
        "extra": ("float", "key", "keys", "narrow", "others"),
        "trainable": ("all", "none"),
        "gradient_order": ("1", "0", "2"),
        "tensorflow": ("newest", "2.14"),
        "names": ("default", "given"),
        "defaults": ("none", "given"),
        "batch_buckets": ("none", "of the other"),
        "files": ("default", "shards", "manifest"),
        "rest": ("dict", "single", "nothing"),
    },
    _pairs(
        _LAPACK,
        (("batch_buckets", "of the other"), ("sizes", "static")),
        (("batch_buckets", "of the other"), ("operations", "tensorflow")),
        # XLA has no mutexes.
        (("mode", "jit"), ("operations", "tensorflow")),
        (("batch_buckets", "of the other"), ("model", "function")),
        (("batch_buckets", "of the other"), ("model", "donated")),
        (("rest", "nothing"), ("names", "given")),
    ),
)
CONVERT = Table(
    "convert",
    {
        **_SHARED,
        "sizes": ("static", "symbolic", "auto", "constrained"),
        "fun": ("function", "exported"),
        "origin": ("live", "saved", "saved again"),
        "with_gradient": ("yes", "no"),
        "gradient_order": ("1", "2"),
    },
    _pairs(
        _LAPACK,
        (("fun", "exported"), ("sizes", "auto")),
        (("fun", "exported"), ("sizes", "constrained")),
    ),
)
LAYER = Table(
    "ExportedLayer",
    {
        "framework": ("keras", "tf_keras"),
        "exported": ("function", "exported", "file", "file with residuals"),
        "function": _FUNCTIONS,
        "gradient_order": ("1", "0", "2"),
        "trainable": ("yes", "no"),
        "operations": OPERATIONS,
        "mode": _MODES,
        "origin": ("live", "saved"),
    },
    # A layer has linear algebra as loops, which XLA is to compile as modules.
    _pairs((("mode", "jit"), ("operations", "tensorflow"))),
)
ONNX = Table(
    "save_onnx",
    {
        "model": ("function", "file", "file with residuals"),
        "function": _FUNCTIONS,
        "params": ("none", "given"),
        "gradient_order": ("0", "1", "2"),
        "platform": ("default", "cpu"),
        "names": ("default", "given"),
        "external_data": ("auto", "no", "yes"),
    },
)
CALL_TF = Table(
    "call_tf",
    {
        "fun_tf": ("function", "converted", "loaded", "loaded with residuals"),
        "shapes": ("none", "given"),
        "graph": ("no", "yes"),
        "variables": ("default", "argument", "constant"),
        "compiled": ("yes", "no"),
        "has_side_effects": ("default", "no"),
        "mode": ("eager", "jit", "exported"),
    },
    _pairs(
        # What TensorFlow runs is in no file, and has its variables as they are.
        (("compiled", "no"), ("graph", "yes")),
        (("compiled", "no"), ("mode", "exported")),
        (("compiled", "no"), ("variables", "argument")),
        (("compiled", "no"), ("variables", "constant")),
        (("graph", "yes"), ("variables", "default")),
        (("mode", "exported"), ("variables", "default")),
    ),
)
