"""The request of `jax-tf-bridge export`, and the declarations of its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bridge.cli.command_arguments import (
    PARAMS_KEY,
    PARAMS_SEPARATOR,
    argument,
    expand_home,
    to_names,
    to_parts,
    to_sizes,
)
from savedmodel.model import DEFAULT_SIGNATURE


def _to_patterns(text: str) -> list[str]:
    return [] if text.strip() == "none" else to_parts(text)


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """The arguments of the command: each field has its declaration, which says what it holds.

    Attributes:
        options: the options of `bridge.save` that are given.
    """

    target: str = argument(
        flag="target",
        type=expand_home,
        help="module:function, module:object.method, or a file with a serialized Exported",
    )
    out: str = argument(metavar="DIR", type=expand_home, help="the folder to make")
    args: Sequence[str] = argument((), action="append", metavar="SPECS", help="see above")
    constraints: Sequence[str] = argument(
        (),
        flag="--constraint",
        action="append",
        metavar="'b >= 2'",
        help="between symbolic dimensions",
    )
    params: str | None = argument(None, metavar="PATH", type=expand_home, help="see above")
    params_key: str | None = argument(None, **PARAMS_KEY)
    params_separator: str | None = argument(None, **PARAMS_SEPARATOR)
    trainable: Sequence[str] = argument(
        ("*",),
        type=_to_patterns,
        metavar="NAMES",
        help="names of parameters, such as head,*/bias; none for none; by default all",
    )
    platforms: Sequence[str] | None = argument(
        None, type=to_parts, metavar="NAMES", help="by default cpu,cuda,tpu"
    )
    x64: bool = argument(
        default=False, action="store_true", help="with 64-bit dtypes (jax_enable_x64)"
    )
    signature: str = argument(
        DEFAULT_SIGNATURE, metavar="KEY", help=f"by default {DEFAULT_SIGNATURE}"
    )
    inputs: Sequence[str] | Mapping[str, str] | None = argument(
        None, type=to_names, metavar="NAMES", help="a,b or old=new,…"
    )
    outputs: Sequence[str] | Mapping[str, str] | None = argument(
        None, type=to_names, metavar="NAMES", help="a,b or old=new,…"
    )
    warmup: Sequence[int] = argument(
        (),
        type=to_sizes,
        metavar="SIZES",
        help="batch sizes that TensorFlow Serving warms up with, such as 1,8,32",
    )
    overwrite: bool = argument(
        default=False, action="store_true", help="replace a SavedModel at DIR"
    )
    revision: str | None = argument(
        None, metavar="TEXT", help="the revision of the source, where git does not know it"
    )
    options: Mapping[str, Any] = field(default_factory=dict)
