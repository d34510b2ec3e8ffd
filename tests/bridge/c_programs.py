"""The C programs beside this file, built, and what they read and write; see c_api/tensors.h."""

from __future__ import annotations

import math
import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import tensorflow as tf

from xla_call_module.dtypes import dtype_from_tensorflow

_SOURCES = Path(__file__).parent / "c_api"


def build(name: str, folder: Path, *, sources: Path = _SOURCES) -> Path:
    """A program, compiled as the headers of the installed wheel have it."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = Path(tf.sysconfig.get_lib())
    program = folder / name
    command = [
        *(compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", "-pthread", "-isystem"),
        *(tf.sysconfig.get_include(), sources / f"{name}.c", "-o", program, f"-L{library}"),
        *("-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2", f"-Wl,-rpath,{library}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


def encode_count(count: int) -> bytes:
    return struct.pack("<I", count)


def encode_text(text: str) -> bytes:
    return encode_count(len(text.encode())) + text.encode()


def encode_request(definition: Any, feeds: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """Return what a signature is fed, and all its outputs, sorted by name."""
    parts = [encode_count(len(feeds))]
    for name, array in feeds.items():
        dims = struct.pack(f"<{array.ndim}q", *array.shape)
        head = struct.pack("<ii", definition.inputs[name].dtype, array.ndim)
        size = struct.pack("<Q", array.nbytes)
        parts += [encode_text(definition.inputs[name].name), head, dims, size, array.tobytes()]
    outputs = [info.name for _, info in sorted(definition.outputs.items())]
    return b"".join([*parts, encode_count(len(outputs)), *map(encode_text, outputs)])


def run_in_c(
    program: Path, folder: Path, runs: Sequence[bytes], names: Sequence[Sequence[str]]
) -> list[tuple[str, dict[str, np.ndarray[Any, Any]]]]:
    """Return what load_and_run.c says of each run: an error, and its results by these names."""
    (folder / "requests").write_bytes(encode_count(len(runs)) + b"".join(runs))
    command = [program, folder / "requests", folder / "answers"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers = []
    with open(folder / "answers", "rb") as file:
        for outputs in names:
            error = file.read(struct.unpack("<I", file.read(4))[0]).decode()
            tensors = [] if error else [decode_tensor(file) for _ in outputs]
            answers.append((error, dict(zip(outputs, tensors, strict=False))))
        assert file.read() == b""
    return answers


def decode_tensor(file: IO[bytes]) -> np.ndarray[Any, Any]:
    enum, rank = struct.unpack("<ii", file.read(8))
    shape = struct.unpack(f"<{rank}q", file.read(8 * rank))
    (size,) = struct.unpack("<Q", file.read(8))
    dtype = dtype_from_tensorflow(enum, where="an answer").numpy
    assert size == math.prod(shape) * dtype.itemsize
    return np.frombuffer(file.read(size), dtype).reshape(shape)
