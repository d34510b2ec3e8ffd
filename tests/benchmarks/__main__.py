"""`python -m tests.benchmarks [NAME ...]`: a table of ratios against the peers, in one run.

With `--record` they also go into docs/reference/benchmarks.json, in the place of those of an
earlier run of the same benchmark; `python docs/draw_performance.py` draws the plots of the
documentation of it, and writes the tables.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
warnings.simplefilter("ignore")

from rich.console import Console  # noqa: E402 - TensorFlow reads the environment when imported
from rich.table import Table  # noqa: E402

from tests.benchmarks import (  # noqa: E402
    buckets,
    called,
    calls,
    constants,
    exactness,
    files,
    gradients,
    lifted,
    linalg,
    litert,
    loading,
    looking,
    migration,
    onnx_models,
    plain_operations,
    real_models,
    rounds,
    scaling,
    serving,
    shape_checks,
    state,
)
from tests.benchmarks.measure import Ratio  # noqa: E402
from tests.benchmarks.recording import record  # noqa: E402

BENCHMARKS = {
    "whole_process": files.whole_process,
    "import_time": files.import_time,
    "save_step": files.save_step,
    "save_in_shards": files.save_in_shards,
    "new_weights": files.new_weights,
    "eager": calls.eager,
    "eager_network": calls.eager_network,
    "conversions": calls.conversions,
    "in_function": calls.in_function,
    "gradients_eager": gradients.gradients_eager,
    "gradients_in_function": gradients.gradients_in_function,
    "lifted_batches": lifted.lifted_batches,
    "lifted_run_time": lifted.lifted_run_time,
    "lifted_size": lifted.lifted_size,
    "linalg": linalg.linalg,
    "large_constant": constants.large_constant,
    "exactness": exactness.exactness,
    "saved_size": gradients.saved_size,
    "first_result": loading.first_result,
    "load_four_gigabytes": loading.load_four_gigabytes,
    "loaded_calls": loading.loaded_calls,
    "inspect_large": looking.inspect_large,
    "call_tf": called.call_tf,
    "migration": migration.migration,
    "plain_operations": plain_operations.plain_operations,
    "onnx_models": onnx_models.onnx_models,
    "litert_networks": litert.litert_networks,
    "litert_conversion": litert.litert_conversion,
    "batch_buckets": buckets.batch_buckets,
    "cold_start": serving.cold_start,
    "shape_checks": shape_checks.shape_checks,
    "decoding": state.decoding,
    "variables_of_steps": state.variables_of_steps,
    "training_memory": state.training_memory,
    "scaling": scaling.scaling,
    "real_models": real_models.real_models,
    "rounds": rounds.rounds,
}


def main(arguments: list[str]) -> int:
    """Run some or all; 1 where a ratio exceeds its limit."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks")
    parser.add_argument("names", metavar="NAME", nargs="*", help=", ".join(BENCHMARKS))
    parser.add_argument("--record", action="store_true", help="write benchmarks.json of the docs")
    options = parser.parse_args(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    if unknown := [name for name in options.names if name not in BENCHMARKS]:
        console.print(f"unknown: {', '.join(unknown)}; known: {', '.join(BENCHMARKS)}")
        return 2
    results: list[Ratio] = []
    for name in options.names or BENCHMARKS:
        with console.status(name):
            found = list(BENCHMARKS[name]())
        if options.record:
            record(name, found)
        results += found
    console.print(_table(results))
    return 0 if all(result.holds for result in results) else 1


def _table(results: list[Ratio]) -> Table:
    table = Table("what", "ours", "peer", "ratio", "lowest – highest", "must be", "")
    for result in results:
        limit = "" if result.limit is None else f"<= {result.limit:.3g}"
        spread = f"{min(result.ratios):.3g} – {max(result.ratios):.3g}"
        mark = "" if result.limit is None else "yes" if result.holds else "NO"
        table.add_row(
            result.name, result.ours, result.peer, f"{result.median:.3g}", spread, limit, mark
        )
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
