"""The coverage-guided search: its inputs, and what each of them is read as.

An input's first byte says which model it belongs to and what the rest is: a saved_model.pb, whose
checksum is made to hold, an index of variables, or the text in which a call describes itself.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from savedmodel.files import checksum
from savedmodel.protos import schema
from tests.fuzzing.models import make
from tests.fuzzing.reading import outcome, read_all
from tests.fuzzing.run import copy

PB = "saved_model.pb"
INDEX = "variables/variables.index"


def search(folder: Path) -> Callable[[bytes], None]:
    """Return the reader of an input; its first inputs are put into the corpus.

    Args:
        folder: with a folder `corpus`; the models are made in it.
    """
    sources = list(make(folder / "models").values())
    for number, source in enumerate(sources):
        for kind, content in enumerate(_contents(source)):
            name = folder / "corpus" / f"{source.name}-{kind}"
            name.write_bytes(bytes([number * len(WRITERS) + kind]) + content)

    def read(data: bytes) -> None:
        number, kind = (
            divmod(data[0] % (len(sources) * len(WRITERS)), len(WRITERS)) if data else (0, 0)
        )
        mutant = copy(sources[number], folder / "scratch")
        WRITERS[kind](mutant, data[1:])
        outcome(lambda: read_all(mutant))

    return read


def _write_message(folder: Path, content: bytes) -> None:
    (folder / PB).write_bytes(checksum.header(content) + content)


# A function for each kind, which no other calls: by it the search tells them apart.
def _write_proto(folder: Path, content: bytes) -> None:
    _write_message(folder, content)


def _write_index(folder: Path, content: bytes) -> None:
    (folder / INDEX).write_bytes(content)


def _write_description(folder: Path, content: bytes) -> None:
    proto = _read_proto(folder)
    _first_call(proto).attr["_jax_call"].s = zlib.compress(content, 1)
    _write_message(folder, proto.SerializeToString())


WRITERS = (_write_proto, _write_index, _write_description)


def _contents(folder: Path) -> list[bytes]:
    """Return what the three kinds of input are in a model as it is."""
    proto = _read_proto(folder)
    description = zlib.decompress(_first_call(proto).attr["_jax_call"].s)
    return [proto.SerializeToString(), (folder / INDEX).read_bytes(), description]


def _read_proto(folder: Path) -> Any:
    return schema.SavedModel.FromString((folder / PB).read_bytes()[checksum.HEADER_SIZE :])


def _first_call(proto: Any) -> Any:
    functions = proto.meta_graphs[0].graph_def.library.function
    return next(n for f in functions for n in f.node_def if n.op == "XlaCallModule")
