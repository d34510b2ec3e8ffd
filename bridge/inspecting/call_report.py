"""The report of a file with one function: a serialized `Exported`, or StableHLO."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Sequence

from bridge.core.names import input_names, output_names
from bridge.inspecting.operation_counts import most_frequent
from bridge.inspecting.report import (
    FileReport,
    OrderReport,
    SignatureReport,
    StoredFile,
    newest,
    report_checks,
    report_order,
)
from bridge.inspecting.written_file import TensorReport
from xla_call_module.call import CallModule
from xla_call_module.flags import read_flags

__all__ = ["report_of_calls"]


def report_of_calls(
    path: str | os.PathLike[str],
    calls: Sequence[CallModule],
    *,
    writer: str,
    any_platform: bool = False,
) -> FileReport:
    """Return the report of a file with one function: a serialized `Exported`, or StableHLO.

    Args:
        path: the file.
        calls: the call of the function, then those of its gradients.
        writer: the program that wrote the file, or its format.
        any_platform: whether the file does not say for which platforms it is.

    Raises:
        FormatError: a module is damaged.
        OSError: the file is gone.
    """
    orders = tuple(
        dataclasses.replace(report_order(call), order=order) for order, call in enumerate(calls)
    )
    signature = _report_calls(calls, orders)
    if any_platform:
        counts = tuple(dataclasses.replace(count, platforms=()) for count in orders[0].counts)
        main = dataclasses.replace(orders[0], counts=counts)
        signature = dataclasses.replace(signature, platforms=(), orders=(main, *orders[1:]))
    size = os.path.getsize(path)
    flags = read_flags()
    return FileReport(
        path=os.fspath(path),
        bytes=size,
        tensorflow=signature.tensorflow,
        signatures=(signature,),
        parameters=(),
        metadata={},
        writer=writer,
        saved_again=False,
        files=(StoredFile(os.path.basename(path), size),),
        assets=(),
        warmup=None,
        manifest=None,
        flags=(*flags.ignored, *flags.fatal),
        others={},
    )


def _report_calls(calls: Sequence[CallModule], orders: tuple[OrderReport, ...]) -> SignatureReport:
    """Return the report of a function with its gradients, which is in no SavedModel."""
    call, main = calls[0], orders[0]
    names = input_names(call.name, call, range(len(call.args)), None)
    used = set(call.kept)
    return SignatureReport(
        key=call.name,
        function=call.name,
        inputs=tuple(
            TensorReport.of(name, spec, used=index in used)
            for index, (name, spec) in enumerate(zip(names, call.args, strict=True))
        ),
        outputs=tuple(
            TensorReport.of(name, spec)
            for name, spec in zip(output_names(call.name, call, None), call.results, strict=True)
        ),
        platforms=call.platforms,
        calling_convention=call.version,
        stablehlo=main.stablehlo,
        tensorflow=newest([order.tensorflow for order in orders]),
        disabled_checks=tuple(map(str, call.disabled_checks)),
        checks=report_checks(call),
        custom_calls=main.custom_calls,
        gradient_order=len(calls) - 1,
        module_bytes=main.module_bytes,
        devices=call.nr_devices,
        parameters=(),
        operations=most_frequent(sum((Counter(o.operations) for o in orders), Counter[str]())),
        orders=orders,
        batch_buckets=(),
    )
