"""Bundles that are written whole, for the tests that read them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from savedmodel.variables.bundle_layout import BundleStrings, BundleTensor, lay_out
from savedmodel.variables.bundle_writer import write_data_files, write_index


def write_bundle(
    prefix: str | os.PathLike[str],
    tensors: Iterable[BundleTensor | BundleStrings],
    *,
    num_shards: int | None = 1,
    written: Callable[[int], None] | None = None,
) -> None:
    """Write the tensors as a bundle; its files are on the disk at the end."""
    layout = lay_out(tensors, num_shards)
    entries = write_data_files(prefix, layout, written=written)
    write_index(prefix, {**entries, **layout.known}, layout.num_files)
