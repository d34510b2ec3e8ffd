"""The optimizers of ONNX Runtime, against ONNX's reference evaluator and against one another.

    python -m tests.bridge.onnx.optimizers [tests …] [--folder FOLDER] [--one-by-one]

takes the models that the tests of this folder run (or those named, as pytest has them), runs each
at every level, and names the optimizers without which a wrong one is right. With `--one-by-one` it
runs each model without each of the optimizers, too: so it finds what two of them do to each other.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx

from tests.bridge.onnx.checking import FOLDER, evaluate, run
from tests.operations.judging import difference

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


def _collect(folder, tests):
    """Run tests that keep in the folder what they run."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    subprocess.run(command, env={**os.environ, FOLDER: str(folder)}, check=False)


def _report(folder, *, one_by_one):
    """Print what is found of each model in a folder; how many are changed."""
    changed = 0
    paths = sorted(Path(folder).glob("*.onnx"))
    for path in paths:
        model = onnx.load(path)
        with np.load(path.with_suffix(".npz")) as stored:
            arrays = list(stored.values())
        found = differences(model, arrays, one_by_one=one_by_one)
        found += _against_reference(model, arrays)
        changed += bool(found)
        for line in found:
            print(f"{path.name} ({len(model.graph.node)} nodes): {line}", flush=True)
    print(f"{len(paths)} models, {changed} with differences")
    return changed


def _against_reference(model, arrays):
    """Compare what ONNX Runtime computes without optimizers with the reference evaluator."""
    if sum(array.size for array in arrays) > _AT_ONCE:
        return []
    try:
        expected = evaluate(model, arrays)
    except Exception:  # noqa: BLE001 - what it does not have, the tests leave to the runtime as well
        return []
    difference = _difference(_results(model, arrays, level="NONE"), expected)
    return [f"NONE, against the reference: {difference}"] if difference else []


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tests", nargs="*", default=["tests/bridge/onnx"])
    parser.add_argument("--folder", help="of models that are there, or to keep them")
    parser.add_argument("--one-by-one", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(given.folder or made)
        folder.mkdir(parents=True, exist_ok=True)
        if not any(folder.glob("*.onnx")):
            _collect(folder, given.tests)
        return int(_report(folder, one_by_one=given.one_by_one) > 0)


if __name__ == "__main__":
    sys.exit(main())
