"""The report of a file with one function: a serialized `Exported`, or StableHLO."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from bridge.core.names import input_names, output_names
from bridge.inspecting.order_report import report_order
from bridge.inspecting.report import FileReport, SignatureReport, StoredFile, report_function
from xla_call_module.call import CallModule
from xla_call_module.flags import read_flags


def report_of_calls(
    path: str | os.PathLike[str],
    calls: Sequence[CallModule],
    *,
    writer: str,
    any_platform: bool = False,
) -> FileReport:
    """Return the report of a file with one function: a serialized `Exported`, or StableHLO."""
    signature = _report_calls(calls)
    if any_platform:
        main, *others = signature.orders
        counts = tuple(dataclasses.replace(count, platforms=()) for count in main.counts)
        main = dataclasses.replace(main, counts=counts)
        signature = dataclasses.replace(signature, platforms=(), orders=(main, *others))
    size = os.path.getsize(path)
    flags = read_flags()
    return FileReport(
        path=os.fspath(path),
        bytes=size,
        tensorflow=signature.tensorflow,
        signatures=(signature,),
        writer=writer,
        files=(StoredFile(os.path.basename(path), size),),
        flags=(*flags.ignored, *flags.fatal),
    )


def _report_calls(calls: Sequence[CallModule]) -> SignatureReport:
    """Return the report of a function with its gradients, which is in no SavedModel."""
    call = calls[0]
    names = input_names(call.name, call, range(len(call.args)), None)
    used = (index in call.kept for index in range(len(call.args)))
    return report_function(
        call.name,
        [calls],
        inputs=zip(names, call.args, used, strict=True),
        outputs=zip(output_names(call.name, call, None), call.results, strict=True),
        report_of_order=report_order,
    )
