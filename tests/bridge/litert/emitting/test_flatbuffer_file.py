"""Files have each constant once and aligned, tensors by names of their own, and a limit."""

from __future__ import annotations

import numpy as np
import pytest
from jax import lax

import bridge
from bridge.litert.emitting import flatbuffer_file
from xla_call_module.errors import UnsupportedError

schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
WEIGHTS = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)


def product(x):
    return lax.fori_loop(0, 2, lambda _, y: y @ WEIGHTS, x) @ WEIGHTS


@pytest.fixture(scope="module")
def content():
    functions = {"constant": product, "other": product}
    args = {"constant": "f32[b,16]", "other": "f32[b,16]"}
    return bridge.to_litert(functions, args=args, outputs=["x_1"], verify=False)


def test_tensors_have_names_of_their_own(content):
    graphs = schema.ModelT.InitFromPackedBuf(content, 0).subgraphs
    names = [tensor.name for graph in graphs for tensor in graph.tensors]
    assert len(graphs) == 6
    assert len(names) == len({*names})


def test_constants_are_there_once_and_aligned(content):
    bytes_of = np.ascontiguousarray(WEIGHTS.T).tobytes()
    assert content.count(bytes_of) == 1
    assert content.index(bytes_of) % 16 == 0


def test_files_beyond_the_limit_are_refused(monkeypatch):
    monkeypatch.setattr(flatbuffer_file, "_MAX_BYTES", WEIGHTS.nbytes)
    with pytest.raises(
        UnsupportedError, match=r"constants .* have 1,\d{3} bytes.* less than 1,024"
    ):
        bridge.to_litert(product, args="f32[b,16]", verify=False)
