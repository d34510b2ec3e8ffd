"""Variables that are read once for all who hold them, and whose checksums are checked."""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
import savedmodel
from savedmodel.protos.schema import SavedModel
from savedmodel.variables import bundle_reader
from savedmodel.variables.bundle_layout import BundleTensor
from savedmodel.variables.bundle_reader import SharedTensor
from savedmodel.variables.piece_checksums import PIECE_SIZE
from savedmodel.variables.tensor_bundle import read_index
from tests.policy.source import ROOT
from tests.savedmodel.variables.bundles import write_bundle
from xla_call_module.dtypes import DTYPES, WIDE
from xla_call_module.errors import DtypeError, FormatError, StructureError

DATA = "variables/variables.data-00000-of-00001"


def _values(dtype, shape):
    return (np.arange(math.prod(shape)).reshape(shape) % 2).astype(dtype.numpy)


PARAMS = {
    f"{dtype.name}_{len(shape)}_{math.prod(shape)}": _values(dtype, shape)
    for dtype in DTYPES
    if dtype.name not in WIDE
    for shape in [(), (3,), (0, 2), (2, 3)]
}


@pytest.fixture(scope="module")
def exported():
    return jax.export.export(jax.jit(lambda params, x: x + params["float32_1_3"]))(
        PARAMS, jax.ShapeDtypeStruct((3,), np.float32)
    )


@pytest.fixture
def folder(exported, tmp_path):
    bridge.save(exported, tmp_path / "model", params=PARAMS)
    return tmp_path / "model"


def _same(left, right):
    assert (left.dtype, left.shape) == (right.dtype, right.shape)
    assert left.tobytes() == right.tobytes()


def test_every_dtype_and_shape(folder):
    variables = savedmodel.read(folder).variables
    assert {variable.name for variable in variables} == PARAMS.keys()
    for variable in variables:
        value = variable.shared()
        _same(value, PARAMS[variable.name])
        _same(value, variable.to_numpy())
        assert type(value) is np.ndarray
        assert not value.flags.writeable
        assert value.flags.aligned


def test_after_tensorflow_saved_it_again(folder, tmp_path):
    loaded = tf.saved_model.load(folder)
    tf.saved_model.save(loaded, tmp_path / "again", signatures=loaded.signatures)
    # TensorFlow puts tensors next to each other in the file.
    for variable in savedmodel.read(tmp_path / "again").variables:
        assert variable.shared().flags.aligned
        _same(variable.shared(), PARAMS[variable.name])
        if variable.dtype.name != "bool":
            _same(np.asarray(jnp.asarray(variable.shared())), PARAMS[variable.name])


def test_a_value_that_comes_from_no_file():
    dtype = next(dtype for dtype in DTYPES if dtype.name == "bfloat16")
    value = _values(dtype, (2, 3))
    variable = savedmodel.Variable("w", dtype, (2, 3), chunks=lambda: iter([value]))
    _same(variable.shared(), value)
    assert not variable.shared().flags.writeable
    with pytest.raises(StructureError, match="The variable w has no value"):
        savedmodel.Variable("w", dtype, (2, 3)).shared()


def _flip(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x40
    path.write_bytes(data)


def test_a_damaged_tensor_and_its_neighbours(folder):
    index = read_index(folder / "variables/variables")
    key = next(key for key in index.entries if "/float32_1_3/" in key)
    _flip(folder / DATA, index.entries[key].offset + 5)
    for variable in savedmodel.read(folder).variables:
        if variable.name != "float32_1_3":
            _same(variable.shared(), PARAMS[variable.name])
            continue
        for _ in range(2):
            with pytest.raises(FormatError, match=r"data-00000-of-00001, byte \d+: the checksum"):
                variable.shared()
        with pytest.raises(FormatError, match="the checksum"):
            variable.to_numpy()


def test_a_bool_that_is_neither_in_any_piece(tmp_path):
    for place in (0, PIECE_SIZE - 1, PIECE_SIZE):
        data = np.zeros(PIECE_SIZE + 1, np.uint8)
        data[place] = 3
        prefix = tmp_path / f"v{place}"
        write_bundle(prefix, [BundleTensor("b", 10, data.shape, lambda data=data: [data])])
        with pytest.raises(FormatError, match="'b' is bool, and has a byte 3"):
            SharedTensor(read_index(prefix), "b")()


def test_it_is_read_once_while_it_is_held_whatever_the_threads(folder, monkeypatch):
    read = []
    reads = bundle_reader.read_tensor
    monkeypatch.setattr(
        bundle_reader, "read_tensor", lambda *args: (read.append(args[1]), reads(*args))[1]
    )
    variables = savedmodel.read(folder).variables
    assert read == []
    with ThreadPoolExecutor(8) as pool:
        values = list(pool.map(lambda variable: variable.shared(), [*variables] * 8))
    assert len(values) == 8 * len(variables)
    assert len(read) == len(set(read)) == len(variables)
    arrays = [jax.device_put(value) for value in values[: len(variables)]]
    del values
    for variable, array in zip(variables, arrays, strict=True):
        # JAX holds the same memory on a CPU.
        if variable.size and variable.dtype.name == "float32":
            address = array.unsafe_buffer_pointer()
            assert variable.shared().ctypes.data == address
    arrays.clear()
    gc.collect()
    _same(variables[0].shared(), PARAMS[variables[0].name])
    assert len(read) > len(variables)


def test_the_index_and_the_data_file_are_opened_once(folder, monkeypatch):
    opened = []
    reads = savedmodel.decode.objects.read_index
    monkeypatch.setattr(
        savedmodel.decode.objects,
        "read_index",
        lambda prefix, within: (opened.append(prefix), reads(prefix, within=within))[1],
    )
    files = len(os.listdir("/proc/self/fd"))
    variables = savedmodel.read(folder).variables
    for variable in variables:
        variable.shared()
    assert len(opened) == 1
    assert len(os.listdir("/proc/self/fd")) == files + 2  # and the folder


def test_a_model_outlives_its_folder(folder, exported):
    variables = savedmodel.read(folder).variables
    other = {name: value + value.dtype.type(1) for name, value in PARAMS.items()}
    bridge.save(exported, folder, params=other, overwrite=True)
    for variable in variables:
        _same(variable.shared(), PARAMS[variable.name])


@pytest.mark.parametrize(("size", "message"), [(0, "the file ends"), (4096, "the file ends")])
def test_a_data_file_that_is_too_short(folder, size, message):
    os.truncate(folder / DATA, min(size, (folder / DATA).stat().st_size - 1))
    with pytest.raises(FormatError, match=rf"data-00000-of-00001, byte \d+: {message}"):
        savedmodel.read(folder)


def test_a_missing_data_file(folder):
    (folder / DATA).unlink()
    with pytest.raises(FormatError, match="data-00000-of-00001, byte 0: no file is there"):
        savedmodel.read(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda proto: proto.shape.dim.add(size=1),
            r"is float32\[3, 1\] in the .*float32\[3\] und",
        ),
        (lambda proto: setattr(proto, "dtype", 3), r"is int32\[3\] in the object.* float32\[3\] u"),
        (lambda proto: setattr(proto, "dtype", 7), r"float32_1_3 has TensorFlow dtype number 7"),
        (lambda proto: setattr(proto.shape.dim[0], "size", -1), "no static shape"),
    ],
)
def test_an_object_that_the_checkpoint_contradicts(folder, change, message):
    proto = SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    nodes = proto.meta_graphs[0].object_graph_def.nodes
    (variable,) = (n.variable for n in nodes if n.variable.name == "float32_1_3")
    change(variable)
    (folder / "saved_model.pb").write_bytes(proto.SerializeToString())
    with pytest.raises((FormatError, DtypeError), match=message):
        savedmodel.read(folder)


def test_tensors_in_one_place(tmp_path):
    from savedmodel.files.sstable import encode_table
    from savedmodel.protos.schema import BundleEntryProto, BundleHeaderProto

    entries = [
        BundleEntryProto(dtype=4, shape={"dim": [{"size": 8}]}, offset=offset, size=8)
        for offset in (0, 7)
    ]
    records = [(b"", BundleHeaderProto(num_shards=1)), (b"a", entries[0]), (b"b", entries[1])]
    table = encode_table([(key, proto.SerializeToString()) for key, proto in records])
    (tmp_path / "v.index").write_bytes(table)
    with pytest.raises(FormatError, match=r"'a' has 8 bytes at 0 of data file 0, and 'b' begins"):
        read_index(tmp_path / "v")


def test_a_large_variable_takes_its_own_memory(tmp_path):
    size = 300 << 20
    chunk = np.ones(1 << 20, np.uint8)
    write_bundle(
        tmp_path / "v", [BundleTensor("k", 4, (size,), lambda: [chunk] * (size // chunk.nbytes))]
    )
    code = (
        "import re, pathlib\n"
        "import numpy as np\n"
        "from savedmodel.variables.tensor_bundle import read_index\n"
        "from savedmodel.variables.bundle_reader import SharedTensor\n"
        "def anonymous():\n"
        "    status = pathlib.Path('/proc/self/status').read_text()\n"
        "    return int(re.search(r'RssAnon:\\s+(\\d+) kB', status)[1]) >> 10\n"
        "before = anonymous()\n"
        f"tensor = SharedTensor(read_index({str(tmp_path / 'v')!r}), 'k')\n"
        "print(anonymous() - before)\n"
        "data = tensor()\n"
        "assert tensor() is not data and np.shares_memory(tensor(), data)\n"
        "print(anonymous() - before)\n"
        "del data\n"
        "print(anonymous() - before)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    before, held, after = map(int, done.stdout.split())
    assert before < 20
    assert size >> 20 <= held < (size >> 20) + 20
    assert after < 20
