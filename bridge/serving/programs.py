"""Whether two versions have the same program, wherever it stands in the source."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from bridge.diff import module_digest
from savedmodel.files.folder import PROTO_FILE
from savedmodel.model import INTERNAL_SIGNATURE, SavedModel, Signature
from savedmodel.read import read, read_proto
from xla_call_module.call import CallModule
from xla_call_module.errors import InteropError

__all__ = ["PROGRAM_FILES", "have_same_program"]

# The graph with its modules, which have the lines of the source in them, and its hash.
PROGRAM_FILES = frozenset({PROTO_FILE, "fingerprint.pb"})


def have_same_program(first: Path, second: Path) -> bool:
    """Return whether two SavedModels differ in nothing but source locations and values.

    A file with a signature that is not calls of modules alone, as `compose` writes it and other
    programs, is not the same: nothing here reads the operations of it.
    """
    try:
        ours, theirs = read(first), read(second)
    except InteropError:
        return False
    if not (_is_read_whole(first, ours) and _is_read_whole(second, theirs)):
        return False
    forms = [[each.function.operations for each in model.signatures] for model in (ours, theirs)]
    return (
        forms[0] == forms[1]
        and dataclasses.replace(theirs, signatures=_located_as(ours, theirs)) == ours
    )


def _is_read_whole(folder: Path, model: SavedModel) -> bool:
    """Return whether each signature of a file is one of the model that was read of it."""
    keys = {key for graph in read_proto(folder).meta_graphs for key in graph.signature_def}
    return {key for key in keys if not key.startswith(INTERNAL_SIGNATURE)} == {
        signature.key for signature in model.signatures
    }


def _located_as(ours: SavedModel, theirs: SavedModel) -> tuple[Signature, ...]:
    """Return signatures with the modules of another file, where these are alike."""
    by_key = {signature.key: signature for signature in ours.signatures}
    return tuple(
        _with_chain(signature, by_key[signature.key]) if signature.key in by_key else signature
        for signature in theirs.signatures
    )


def _with_chain(theirs: Signature, ours: Signature) -> Signature:
    chain, wanted = theirs.function.chain, ours.function.chain
    if len(chain) != len(wanted) or not all(map(_are_alike, chain, wanted)):
        return theirs
    return dataclasses.replace(theirs, function=dataclasses.replace(theirs.function, chain=wanted))


def _are_alike(first: CallModule, second: CallModule) -> bool:
    same = dataclasses.replace(first, module=second.module, exported=second.exported) == second
    return same and module_digest(first.module) == module_digest(second.module)
