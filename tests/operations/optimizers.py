"""The optimizers of ONNX Runtime, against ONNX's reference evaluator and against one another.

    python -m tests.operations.optimizers [WORD ...] [--one-by-one]

runs the models of the table's cases (or of those whose names have a word) at every level, and names
the optimizers without which a wrong one is right. With `--one-by-one` it runs each without each of
the optimizers, too: so it finds what two of them do to each other.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

import bridge
from bridge.core_ops.decompositions.complex_pairs import COMPLEX_AS_PAIRS
from tests.bridge.onnx.checking import evaluate, run
from tests.operations.cells import batches
from tests.operations.judging import difference
from tests.operations.table import CASES

LEVELS = ("NONE", "BASIC", "EXTENDED", "ALL")
# Those of graph_transformer_utils.cc that are on for the CPU without quantized operations.
OPTIMIZERS = (
    "EliminateIdentity", "EliminateSlice", "UnsqueezeElimination", "ExpandElimination",
    "CastElimination", "PreShapeNodeElimination", "NoopElimination", "DivMulFusion", "FuseReluClip",
    "GemmSumFusion", "GemmTransposeFusion", "NotWhereFusion", "ConvAddFusion", "ConvMulFusion",
    "ConvBNFusion", "PadFusion", "MatMul_BatchNormalization_Fusion", "LabelEncoderFusion",
    "ConstantSharing", "CommonSubexpressionElimination", "ConstantFolding", "MatMulAddFusion",
    "ReshapeFusion", "GeluFusionL1", "LayerNormFusionL1", "TransposeOptimizer",
    "TransposeOptimizer_CPUExecutionProvider", "GemmActivationFusion", "ConvActivationFusion",
    "GeluFusionL2", "LayerNormFusionL2", "SimplifiedLayerNormFusion", "AttentionFusion",
    "EmbedLayerNormFusion", "GatherSliceToSplitFusion", "GatherToSliceFusion",
    "MatmulTransposeFusion", "BiasGeluFusion", "SkipLayerNormFusion", "FastGeluFusion",
    "QuickGeluFusion", "BiasSoftmaxFusion", "MatMulScaleFusion", "MatMulNBitsFusion",
    "NchwcTransformer", "NhwcTransformer", "ConvAddActivationFusion",
)  # fmt: skip
# In units in the last place of the greatest number: what is fused is rounded less often.
_ULPS = {"float16": 10, "float32": 840, "float64": 450_000}
_AT_ONCE = 1 << 16  # elements up to which the reference evaluator takes no minutes


def differences(model, arrays, *, one_by_one=False):
    """Return what the optimizers change, as texts: the level, what is different, and who does it.

    Args:
        model: any.
        arrays: what its inputs are.
        one_by_one: whether it is run without each single optimizer, too.
    """
    expected = _results(model, arrays, level="NONE")
    if isinstance(expected, str):
        return [f"NONE: {expected}"]
    found = [
        f"{level}: {difference}; right without {_culprits(model, arrays, level)}"
        for level in LEVELS[1:]
        if (difference := _difference(_results(model, arrays, level=level), expected))
    ]
    for name in OPTIMIZERS if one_by_one else ():
        results = _results(model, arrays, level="ALL", disabled=[name])
        if difference := _difference(results, expected):
            found.append(f"without {name}: {difference}")
    return found


def _culprits(model, arrays, level):
    """The optimizers without one of which the results are right."""
    expected = _results(model, arrays, level="NONE")
    found = [
        name
        for name in OPTIMIZERS
        if not _difference(_results(model, arrays, level=level, disabled=[name]), expected)
    ]
    return " or ".join(found) or "no single one"


def _results(model, arrays, **options):
    """Return what ONNX Runtime computes, or the error as a text."""
    try:
        return run(model, arrays, **options)
    except Exception as error:  # noqa: BLE001 - its classes have no public names
        return f"{type(error).__name__}: {str(error)[:200]}"


def _difference(results, expected):
    """Return how results differ, as a text; empty if they do not."""
    if isinstance(results, str):
        return results
    for number, (one, other) in enumerate(zip(results, expected, strict=True)):
        name = np.asarray(other).dtype.name
        pair = np.asarray(one), np.asarray(other)
        if said := difference(*pair, ulps=_ULPS.get(name, 0), dtype=name, each=False):
            return f"result {number}: {said}"
    return ""


def _against_reference(model, arrays):
    """Compare what ONNX Runtime computes without optimizers with the reference evaluator."""
    if sum(array.size for array in arrays) > _AT_ONCE:
        return []
    try:
        expected = evaluate(model, arrays)
    except Exception:  # noqa: BLE001 - what it does not have, the table leaves to the runtime as well
        return []
    said = _difference(_results(model, arrays, level="NONE"), expected)
    return [f"NONE, against the reference: {said}"] if said else []


def _models(words, folder):
    """Yield each case of one dtype that ONNX has, its model and the arrays of a call."""
    cases = [case for case in CASES if not words or any(word in case.name for word in words)]
    for batch in batches(cases, ["static"], "first", alone=True):
        try:
            artifact = batch.artifact(folder)
            model = bridge.to_onnx(artifact.serialized)
        except Exception:  # noqa: BLE001 - the table has its reason
            continue
        for call in artifact.calls:
            arrays = [COMPLEX_AS_PAIRS.boundary.store(array) for array in call.arrays]
            yield f"{batch.cases[0].name}, {call.kind}", model, arrays


def main():
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.operations.optimizers")
    parser.add_argument("words", nargs="*", help="of the names of cases; by default all")
    parser.add_argument("--one-by-one", action="store_true")
    given = parser.parse_args()
    count = changed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, model, arrays in _models(given.words, Path(folder)):
            found = differences(model, arrays, one_by_one=given.one_by_one)
            found += _against_reference(model, arrays)
            count, changed = count + 1, changed + bool(found)
            for line in found:
                print(f"{name} ({len(model.graph.node)} nodes): {line}", flush=True)
    print(f"{count} models, {changed} with differences")
    return int(changed > 0)


if __name__ == "__main__":
    sys.exit(main())
