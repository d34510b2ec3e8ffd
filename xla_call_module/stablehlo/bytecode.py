"""Questions to the bytes of a portable artifact before it is parsed.

Parsing takes longer than most of what is done to a module, so it is left out where the bytes say
that there is nothing to do. MLIR bytecode has the names of operations, of symbols and of custom
calls as plain text (https://mlir.llvm.org/docs/BytecodeFormat/, "Strings Section"). A name can be
in it by chance, too, so only its absence says something; what is there is asked of the parsed
module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_VERSION_IN_HEADER = re.compile(rb"StableHLO_v[\d.]+\x00")
# Each operation has its version and a zero byte behind its name.
_OPERATION = re.compile(rb"([A-Za-z0-9_]+)(_v\d+)(?=\x00)")


def mentions(artifact: bytes, names: Iterable[bytes]) -> bool:
    """Return whether a module may have one of some names in it, or the beginnings of names."""
    return any(name in artifact for name in names)


def operation_versions(artifact: bytes) -> frozenset[tuple[str, str]]:
    """Return the names of the operations of VHLO that a module may have, each with its version.

    Only the bytes have the versions: a parsed module is of StableHLO, whose operations have none.
    """
    operations = _OPERATION.findall(artifact)
    return frozenset((name.decode(), version.decode()) for name, version in operations)


def without_version(artifact: bytes) -> bytes:
    """Return an artifact without the StableHLO version in its header, for comparisons."""
    return _VERSION_IN_HEADER.sub(b"", artifact, count=1)
