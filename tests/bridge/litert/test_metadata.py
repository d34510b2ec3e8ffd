"""Entries of metadata, as the schema of TFLite and its interpreter read them."""

from __future__ import annotations

import numpy as np
import pytest

import bridge
from bridge.litert.metadata import add_entry, is_model, read_entry
from xla_call_module.errors import FormatError

interpreter = pytest.importorskip("ai_edge_litert.interpreter")
pytest.importorskip("litert_converter")
X = np.linspace(-1, 1, 40, dtype=np.float32).reshape(8, 5)
W = np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)


@pytest.fixture(scope="module")
def model():
    return bridge.to_litert(lambda x: x @ W, args="f32[8,5]", verify=False)


def test_entries_are_read(model):
    contents = [b"", b"x" * 1001, bytes(range(256)) * 300]
    made = model
    for number, content in enumerate(contents):
        made = add_entry(made, f"entry {number}", content)
    assert [read_entry(made, f"entry {n}") for n in range(3)] == contents
    assert read_entry(add_entry(made, "entry 1", b"new"), "entry 1") == b"new"
    assert read_entry(made, "entry") is None
    assert read_entry(model, "entry 0") is None


def test_the_schema_and_the_interpreter_read_it(model):
    from ai_edge_litert import schema_py_generated as schema

    made = add_entry(model, "mine", b"abc")
    before, after = (schema.ModelT.InitFromPackedBuf(one, 0) for one in (model, made))
    assert after.metadata[-1].name == b"mine"
    assert bytes(after.buffers[after.metadata[-1].buffer].data) == b"abc"
    assert [one.name for one in after.metadata[:-1]] == [one.name for one in before.metadata or []]
    assert (after.version, after.description) == (before.version, before.description)
    assert len(after.buffers) == len(before.buffers) + 1
    assert (len(made) - len(model)) % 16 == 0  # weights stay aligned
    runs = [interpreter.Interpreter(model_content=m).get_signature_runner() for m in (model, made)]
    first, second = (run(x=X)["output_0"] for run in runs)
    np.testing.assert_array_equal(first, second)


def test_damaged_models_are_refused(model):
    made = add_entry(model, "mine", b"abc")
    assert is_model(made)
    assert not is_model(b"")
    with pytest.raises(FormatError, match="no LiteRT model"):
        read_entry(b"PK" + made, "mine")
    with pytest.raises(FormatError, match="no LiteRT model"):
        read_entry(made[:60], "mine")
    with pytest.raises(FormatError, match="no LiteRT model"):
        add_entry(b"\xff" * 40, "mine", b"")
