"""Bundles between this package and TensorFlow, both ways, and damaged ones that nobody reads."""

from __future__ import annotations

import errno
import io
import math
import os
import re
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from savedmodel.files.sstable import decode_table, encode_table, mask_crc
from savedmodel.protos.schema import BundleEntryProto, BundleHeaderProto
from savedmodel.variables import bundle_reader, bundle_writer
from savedmodel.variables.bundle_layout import BundleStrings, BundleTensor
from savedmodel.variables.bundle_reader import read_strings, read_tensor
from savedmodel.variables.tensor_bundle import read_index
from tests.policy.source import ROOT
from tests.savedmodel.variables.bundles import write_bundle
from xla_call_module.dtypes import DTYPES, dtype_from_name
from xla_call_module.errors import DtypeError, FormatError, StructureError

pytestmark = pytest.mark.usefixtures("on_the_cpu")

SHARD = "v.data-00000-of-00001"
SHAPES = [(), (3,), (2, 5), (0,), (4, 0, 2), (1, 1, 1, 1)]
MANY = 5000


def _enum(array):
    return dtype_from_name(str(array.dtype), where="the test").enum


def _tensor(key, array):
    return BundleTensor(key, _enum(array), array.shape, lambda: [array])


def _array(dtype, shape):
    """An array of a dtype whose bytes are not all the same."""
    values = np.arange(math.prod(shape)) % 7
    return (values % 2 == 1 if dtype.name == "bool" else values).astype(dtype.numpy).reshape(shape)


def _read(index, key):
    dtype = next(d for d in DTYPES if d.enum == index.entries[key].dtype)
    return read_tensor(index, key).view(dtype.numpy).reshape(index.entries[key].shape)


def _same(left, right):
    assert (left.dtype, left.shape) == (right.dtype, right.shape)
    assert left.tobytes() == right.tobytes()


DTYPE_CASES = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)


class TestRoundTrip:
    """What is written here is read here."""

    @given(
        arrays=st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9),
            st.sampled_from(["float32", "int8", "complex128", "bool", "uint16"]).flatmap(
                lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0))
            ),
            max_size=6,
        ),
        strings=st.lists(st.binary(max_size=300), max_size=9),
        cut=st.integers(1, 40),
    )
    @settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_any_tensors(self, tmp_path_factory, arrays, strings, cut):
        prefix = tmp_path_factory.mktemp("bundle") / "v"

        def chunks(array):
            data = array.tobytes()
            return (memoryview(data)[i : i + cut] for i in range(0, len(data), cut))

        tensors = [
            BundleTensor(key, _enum(array), array.shape, lambda array=array: chunks(array))
            for key, array in arrays.items()
        ]
        texts = BundleStrings("\U0010ffff" * 10, (len(strings),), tuple(strings))
        write_bundle(prefix, [*tensors, texts])

        index = read_index(prefix)
        assert list(index.entries) == [*sorted(arrays, key=str.encode), texts.key]
        for key, array in arrays.items():
            _same(_read(index, key), array)
        assert read_strings(index, texts.key) == texts.values
        assert all(entry.offset % 64 == 0 for entry in index.entries.values())

    @pytest.mark.parametrize(
        "chunk",
        [
            b"12345678",
            bytearray(b"12345678"),
            memoryview(b"12345678"),
            memoryview(bytearray(b"12345678")),
            memoryview(np.frombuffer(b"12345678", np.float32).reshape(1, 2)),
            np.frombuffer(b"12345678", np.uint8),
            np.frombuffer(b"12345678", np.float64).reshape(()),
            np.frombuffer(b"12345678", ml_dtypes.bfloat16).reshape(2, 2),
            np.frombuffer(b"12345678", np.int32)[None, :, None],
        ],
        ids=lambda chunk: f"{type(chunk).__name__}-{getattr(chunk, 'format', '')}",
    )
    def test_any_buffer(self, tmp_path, chunk):
        write_bundle(tmp_path / "v", [BundleTensor("k", 4, (8,), lambda: [b"", chunk, b""])])
        assert read_tensor(read_index(tmp_path / "v"), "k").tobytes() == b"12345678"

    def test_nothing(self, tmp_path):
        write_bundle(tmp_path / "v", [])
        assert dict(read_index(tmp_path / "v").entries) == {}
        assert tf.train.load_checkpoint(str(tmp_path / "v")).get_variable_to_shape_map() == {}

    def test_a_tensor_of_many_pieces(self, tmp_path):
        array = np.random.default_rng(0).integers(0, 256, (3, 7_000_001), np.uint8)
        write_bundle(tmp_path / "v", [_tensor("k", array), _tensor("l", array[:1])])
        index = read_index(tmp_path / "v")
        _same(_read(index, "k"), array)
        _same(_read(index, "l"), array[:1])
        _same(tf.train.load_checkpoint(str(tmp_path / "v")).get_tensor("k"), array)

    def test_the_same_tensors_give_the_same_bytes(self, tmp_path):
        tensors = [_tensor(f"k{n}", _array(DTYPES[n], (n, 3))) for n in range(8)]
        tensors.append(BundleStrings("s", (2,), (b"x", b"yz")))
        write_bundle(tmp_path / "v", tensors)
        write_bundle(tmp_path / "w", reversed(tensors))
        for name in ("index", "data-00000-of-00001"):
            one, other = (tmp_path / f"{prefix}.{name}" for prefix in "vw")
            assert one.read_bytes() == other.read_bytes()


class TestTensorFlowReads:
    """What is written here, TensorFlow reads."""

    @DTYPE_CASES
    def test_every_dtype(self, tmp_path, dtype):
        arrays = {f"k{shape}": _array(dtype, shape) for shape in SHAPES}
        write_bundle(tmp_path / "v", [_tensor(key, array) for key, array in arrays.items()])
        checkpoint = tf.train.load_checkpoint(str(tmp_path / "v"))
        restored = tf.raw_ops.RestoreV2(
            prefix=str(tmp_path / "v"),
            tensor_names=list(arrays),
            shape_and_slices=[""] * len(arrays),
            dtypes=[dtype.enum] * len(arrays),
        )
        for (key, array), tensor in zip(arrays.items(), restored, strict=True):
            _same(np.asarray(checkpoint.get_tensor(key)), array)
            _same(tensor.numpy(), array)

    def test_strings(self, tmp_path):
        values = (b"", b"a", b"\0\xff" * 200, b"x" * 20_000)
        write_bundle(
            tmp_path / "v",
            [
                BundleStrings("_CHECKPOINTABLE_OBJECT_GRAPH", (), (b"\x08\x01",)),
                BundleStrings("square", (2, 2), values),
                BundleStrings("none", (0, 3), ()),
            ],
        )
        checkpoint = tf.train.load_checkpoint(str(tmp_path / "v"))
        assert checkpoint.get_tensor("_CHECKPOINTABLE_OBJECT_GRAPH") == b"\x08\x01"
        assert checkpoint.get_tensor("square").tolist() == [list(values[:2]), list(values[2:])]
        assert checkpoint.get_tensor("none").shape == (0, 3)

    def test_many_keys(self, tmp_path):
        keys = _many_keys()
        write_bundle(
            tmp_path / "v", [_tensor(key, np.int32(n)[None]) for n, key in enumerate(keys)]
        )
        checkpoint = tf.train.load_checkpoint(str(tmp_path / "v"))
        assert set(checkpoint.get_variable_to_shape_map()) == set(keys)
        restored = tf.raw_ops.RestoreV2(
            prefix=str(tmp_path / "v"),
            tensor_names=keys,
            shape_and_slices=[""] * MANY,
            dtypes=[tf.int32] * MANY,
        )
        assert tf.concat(restored, 0).numpy().tolist() == list(range(MANY))


def _many_keys():
    """So many that the index has several blocks."""
    return [f"model/layer_{n % 70}/unit_{n}/.ATTRIBUTES/VARIABLE_VALUE" for n in range(MANY)]


def _save(prefix, tensors, slices=None):
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(tensors),
        shape_and_slices=slices or [""] * len(tensors),
        tensors=list(tensors.values()),
    )


class TestTensorFlowWrites:
    """What TensorFlow writes is read here."""

    @DTYPE_CASES
    def test_every_dtype(self, tmp_path, dtype):
        arrays = {f"k{shape}": _array(dtype, shape) for shape in SHAPES}
        _save(tmp_path / "v", {key: tf.constant(array) for key, array in arrays.items()})
        index = read_index(tmp_path / "v")
        for key, array in arrays.items():
            _same(_read(index, key), array)

    def test_strings(self, tmp_path):
        values = [[b"", b"a"], [b"\0\xff" * 200, b"x" * 20_000]]
        _save(
            tmp_path / "v",
            {"s": tf.constant(values), "t": tf.constant("é"), "none": tf.zeros((0,), tf.string)},
        )
        index = read_index(tmp_path / "v")
        assert index.entries["s"].shape == (2, 2)
        assert read_strings(index, "s") == (*values[0], *values[1])
        assert read_strings(index, "t") == ("é".encode(),)
        assert read_strings(index, "none") == ()

    def test_many_keys(self, tmp_path):
        keys = _many_keys()
        _save(tmp_path / "v", {key: tf.constant(n) for n, key in enumerate(keys)})
        index = read_index(tmp_path / "v")
        assert list(index.entries) == sorted(keys)
        for number in range(0, MANY, 97):
            assert _read(index, keys[number]) == number

    def test_several_data_files(self, tmp_path):
        parts = [tmp_path / "a", tmp_path / "b"]
        for number, part in enumerate(parts):
            _save(part, {f"k{number}": tf.range(number, number + 5)})
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=[str(part) for part in parts],
            destination_prefix=str(tmp_path / "v"),
        )
        index = read_index(tmp_path / "v")
        assert index.num_shards == 2
        for number in range(2):
            _same(_read(index, f"k{number}"), np.arange(number, number + 5, dtype=np.int32))

    def test_a_part_of_a_tensor(self, tmp_path):
        _save(tmp_path / "v", {"k": tf.ones((2, 3))}, ["4 3 2,2:-"])
        index = read_index(tmp_path / "v")
        assert index.entries["k"].slices == (((2, 2), (0, None)),)
        assert index.entries["k"].shape == (4, 3)
        with pytest.raises(FormatError, match=r"'k' has slices with 6 elements for shape \(4, 3\)"):
            read_tensor(index, "k")
        (part,) = index.entries.keys() - {"k"}
        _same(_read(index, part), np.ones((2, 3), np.float32))

    def test_a_dtype_that_jax_lacks(self, tmp_path):
        _save(tmp_path / "v", {"q": tf.quantization.quantize([1.0], 0, 1, tf.qint8).output})
        index = read_index(tmp_path / "v")
        with pytest.raises(DtypeError, match=r"Tensor q of .* has TensorFlow dtype number 11"):
            read_tensor(index, "q")


def _damaged(prefix, path, data):
    path.write_bytes(data)
    index = read_index(prefix)
    return _read(index, "number"), read_strings(index, "text")


@pytest.fixture
def bundle(tmp_path):
    """A small bundle: numbers at 0 to 12 of its data file, strings at 64 to 79."""
    numbers = _tensor("number", np.array([1, 2, 3], np.int32))
    write_bundle(tmp_path / "v", [numbers, BundleStrings("text", (3,), (b"abc", b"", b"defgh"))])
    return tmp_path / "v"


class TestDamage:
    """A file that is not as it was written is refused, with its name and the place."""

    def test_every_flipped_byte_of_the_index(self, bundle):
        path = bundle.with_name("v.index")
        data = path.read_bytes()
        for position in range(len(data)):
            flipped = data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :]
            path.write_bytes(flipped)
            with pytest.raises(FormatError, match=r"v\.index, byte \d+: .*To do: "):
                read_index(bundle)

    def test_every_flipped_byte_of_the_data(self, bundle):
        path = bundle.with_name(SHARD)
        data = path.read_bytes()
        assert len(data) == 64 + 3 + 4 + 8
        for position in [*range(12), *range(64, len(data))]:
            flipped = data[:position] + bytes([data[position] ^ 0x81]) + data[position + 1 :]
            with pytest.raises(FormatError, match=rf"{SHARD}, byte \d+: .*To do: "):
                _damaged(bundle, path, flipped)

    @pytest.mark.parametrize("name", ["v.index", SHARD])
    def test_every_cut(self, bundle, name):
        path = bundle.with_name(name)
        data = path.read_bytes()
        for size in range(len(data)):
            with pytest.raises(FormatError, match=rf"{re.escape(name)}, byte \d+: .*To do: "):
                _damaged(bundle, path, data[:size])

    def test_a_missing_data_file(self, bundle):
        bundle.with_name(SHARD).unlink()
        with pytest.raises(
            FormatError, match=rf"{SHARD}, byte 0: no file is there, but .*v\.index"
        ):
            read_tensor(read_index(bundle), "number")

    def test_a_missing_index(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"v\.index"):
            read_index(tmp_path / "v")

    def test_an_index_without_bounds(self, tmp_path):
        with open(tmp_path / "v.index", "wb") as file:
            file.truncate(1 << 40)
        with pytest.raises(FormatError, match=r"v\.index has 1,099,511,627,776 bytes; such a"):
            read_index(tmp_path / "v")

    def test_a_data_file_that_shrinks_while_it_is_read(self, bundle, monkeypatch):
        index = read_index(bundle)
        monkeypatch.setattr(bundle_reader, "check_bounds", lambda index, entry: None)
        os.truncate(bundle.with_name(SHARD), 64)
        with pytest.raises(FormatError, match=f"{SHARD}, byte 64: the file became shorter"):
            read_strings(index, "text")


HEADER = {"num_shards": 1, "version": {"producer": 1}}
ENTRY = {"dtype": 3, "shape": {"dim": [{"size": 3}]}, "size": 12}


def _write_index(prefix, header, entry):
    if isinstance(header, dict):
        header = BundleHeaderProto(**header).SerializeToString()
    if isinstance(entry, dict):
        entry = BundleEntryProto(**entry).SerializeToString()
    records = [(b"", header), (b"k", entry)]
    prefix.with_name("v.index").write_bytes(encode_table(records))


BAD_HEADERS = {
    "no proto": (b"\xff", "the value of b'' is no BundleHeaderProto"),
    "big-endian": (HEADER | {"endianness": 1}, "big-endian"),
    "no data file": (HEADER | {"num_shards": 0}, "the bundle has 0 data files"),
    "a later version": (HEADER | {"version": {"min_consumer": 2}}, "version 2 is needed"),
    "a version refused": (HEADER | {"version": {"bad_consumers": [1]}}, "this is 1"),
}
BAD_ENTRIES = {
    "no proto": (b"\xff", "the value of b'k' is no BundleEntryProto"),
    "unknown rank": (ENTRY | {"shape": {"unknown_rank": True}}, "no known rank"),
    "a negative size": (ENTRY | {"shape": {"dim": [{"size": -1}]}}, r"shape \(-1,\)"),
    "too many dimensions": (ENTRY | {"shape": {"dim": [{"size": 1}] * 255}}, r"shape \(1, "),
    "too many elements": (ENTRY | {"shape": {"dim": [{"size": 1 << 32}] * 2}}, "shape "),
    "no such data file": (ENTRY | {"shard_id": 1}, "data file 1 of 1"),
    "a negative data file": (ENTRY | {"shard_id": -1}, "data file -1 of 1"),
    "a negative offset": (ENTRY | {"offset": -1}, "12 bytes at -1"),
    "negative bytes": (ENTRY | {"size": -12}, "-12 bytes at 0"),
    "too few bytes": (ENTRY | {"size": 11}, r"11 bytes for dtype 3 and shape \(3,\)"),
    "too few bytes for strings": (ENTRY | {"dtype": 7, "size": 6}, "6 bytes for dtype 7"),
    "a slice of another rank": (ENTRY | {"slices": [{"extent": []}]}, "slices that are not"),
    "a slice beyond the shape": (
        ENTRY | {"slices": [{"extent": [{"start": 1, "length": 3}]}]},
        "slices that are not within",
    ),
    "an endless slice with a start": (
        ENTRY | {"slices": [{"extent": [{"start": 1}]}]},
        "slices that are not within",
    ),
}


class TestWrongIndex:
    """An index that is whole, and says what cannot be."""

    @pytest.mark.parametrize(("header", "message"), BAD_HEADERS.values(), ids=BAD_HEADERS)
    def test_a_bad_header(self, tmp_path, header, message):
        _write_index(tmp_path / "v", header, ENTRY)
        with pytest.raises(FormatError, match=rf"v\.index, byte \d+: .*{message}"):
            read_index(tmp_path / "v")

    @pytest.mark.parametrize(("entry", "message"), BAD_ENTRIES.values(), ids=BAD_ENTRIES)
    def test_a_bad_entry(self, tmp_path, entry, message):
        _write_index(tmp_path / "v", HEADER, entry)
        with pytest.raises(FormatError, match=rf"v\.index, byte \d+: .*{message}"):
            read_index(tmp_path / "v")

    @pytest.mark.parametrize("records", [[], [(b"k", b"")]])
    def test_no_header(self, tmp_path, records):
        (tmp_path / "v.index").write_bytes(encode_table(records))
        with pytest.raises(FormatError, match="the first record is not the header"):
            read_index(tmp_path / "v")

    def test_a_tensor_beyond_its_file(self, tmp_path):
        _write_index(tmp_path / "v", HEADER, ENTRY | {"offset": (1 << 63) - 1})
        (tmp_path / SHARD).write_bytes(bytes(12))
        with pytest.raises(FormatError, match=f"{SHARD}, byte 12: the file ends, where a tensor"):
            read_tensor(read_index(tmp_path / "v"), "k")

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"\x01\x01\x09" + b"1234" + b"abc", "checksum of the lengths"),
            (b"\x80" * 10, "a number has no end"),
        ],
    )
    def test_bad_lengths_of_strings(self, tmp_path, data, message):
        _write_index(tmp_path / "v", HEADER, ENTRY | {"dtype": 7, "size": len(data)})
        (tmp_path / SHARD).write_bytes(data)
        with pytest.raises(FormatError, match=rf"{SHARD}, byte \d+: .*{message}"):
            read_strings(read_index(tmp_path / "v"), "k")

    @pytest.mark.parametrize(
        ("more", "message"),
        [(-1, "5 bytes are to follow, but 4 are left"), (1, "1 bytes follow the last string")],
    )
    def test_strings_of_another_size(self, bundle, more, message):
        self._change(bundle, b"text", size=15 + more)
        with bundle.with_name(SHARD).open("ab") as file:
            file.write(b"\0")
        with pytest.raises(FormatError, match=rf"{SHARD}, byte \d+: {message}"):
            read_strings(read_index(bundle), "text")

    def test_another_checksum(self, bundle):
        self._change(bundle, b"number", crc32c=mask_crc(0))
        with pytest.raises(FormatError, match=r"'number' is 0x\w+, where .*index has 0x00000000"):
            read_tensor(read_index(bundle), "number")

    @staticmethod
    def _change(prefix, key, **fields):
        path = prefix.with_name("v.index")
        records = {r.key: r.value for r in decode_table(path, path.read_bytes())}
        entry = BundleEntryProto.FromString(records[key])
        for name, value in fields.items():
            setattr(entry, name, value)
        records[key] = entry.SerializeToString()
        path.write_bytes(encode_table(records.items()))


class TestMisuse:
    """A call that cannot be meant says what to do."""

    @pytest.mark.parametrize(
        ("tensors", "error", "message"),
        [
            ([BundleStrings("", (), (b"",))], StructureError, "has an empty key"),
            ([BundleStrings("a", (), (b"",))] * 2, StructureError, "Two tensors have the key 'a'"),
            ([BundleStrings("a", (2,), (b"",))], StructureError, r"1 strings; shape \(2,\) has 2"),
            (
                [BundleTensor("a", 1, (2,), lambda: [b"123"])],
                StructureError,
                r"3 bytes in all; float32 of shape \(2,\) has 8",
            ),
            (
                [BundleTensor("a", 1, (2, 2), lambda: [np.ones((2, 2), np.float32).T])],
                StructureError,
                "np.ascontiguousarray",
            ),
            (
                [BundleTensor("a", 4, (2,), lambda: [memoryview(b"1234")[::2]])],
                StructureError,
                "np.ascontiguousarray",
            ),
            (
                [BundleTensor("a", 1, (2,), lambda: [np.ones(2, ">f4")])],
                StructureError,
                "dtype >f4",
            ),
            ([BundleTensor("a", 21, (), lambda: [b""])], DtypeError, "Tensor a has TensorFlow dty"),
        ],
    )
    def test_what_cannot_be_written(self, tmp_path, tensors, error, message):
        with pytest.raises(error, match=message):
            write_bundle(tmp_path / "v", tensors)
        assert not (tmp_path / "v.index").exists()

    def test_a_bundle_that_is_there_stays(self, bundle):
        before = [bundle.with_name(name).read_bytes() for name in ("v.index", SHARD)]
        with pytest.raises(FileExistsError, match=SHARD):
            write_bundle(bundle, [])
        assert [bundle.with_name(name).read_bytes() for name in ("v.index", SHARD)] == before

    def test_a_key_that_is_not_there(self, bundle):
        with pytest.raises(
            StructureError, match=r"no tensor 'numbers' among its 2.*such as number"
        ):
            read_tensor(read_index(bundle), "numbers")

    def test_the_wrong_reader(self, bundle):
        index = read_index(bundle)
        with pytest.raises(DtypeError, match=r"text of .* holds strings. To do: use read_strings"):
            read_tensor(index, "text")
        with pytest.raises(DtypeError, match=r"number of .* no strings. To do: use read_tensor"):
            read_strings(index, "number")


def _run(code):
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestSystem:
    """Memory, full disks and writes that the system cuts short."""

    def test_a_full_disk(self, tmp_path):
        # The system writes up to the limit, and then no more.
        out = _run(
            "import resource\n"
            "from savedmodel.variables.bundle_layout import BundleTensor\n"
            "from tests.savedmodel.variables.bundles import write_bundle\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
            "try:\n"
            f"    write_bundle({str(tmp_path / 'v')!r},\n"
            "        [BundleTensor('k', 4, (150_000,), lambda: [bytes(150_000)])])\n"
            "except OSError as error:\n"
            "    print(error.errno, error.filename)\n"
        )
        assert out.split() == [str(errno.EFBIG), str(tmp_path / SHARD)]
        assert (tmp_path / SHARD).stat().st_size == 100_000
        assert not (tmp_path / "v.index").exists()

    def test_a_disk_that_fails_at_the_end(self, tmp_path, monkeypatch):
        def fail(_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match=f"No space left on device: '.*{SHARD}'"):
            write_bundle(tmp_path / "v", [])
        assert not (tmp_path / "v.index").exists()

    def test_short_writes(self, tmp_path, monkeypatch):
        class Slow(io.FileIO):
            def __init__(self, path, mode, buffering):
                super().__init__(path, mode)

            def write(self, data):
                return super().write(data[: 1 + len(data) // 2])

        array = np.arange(1000)
        with monkeypatch.context() as patch:
            patch.setattr(bundle_writer, "open", Slow, raising=False)
            write_bundle(tmp_path / "v", [_tensor("k", array)])
        _same(_read(read_index(tmp_path / "v"), "k"), array)

    def test_data_are_on_the_disk_before_the_index(self, tmp_path, monkeypatch):
        seen = []
        fsync = os.fsync
        monkeypatch.setattr(
            os, "fsync", lambda fd: (seen.append(sorted(os.listdir(tmp_path))), fsync(fd))
        )
        write_bundle(tmp_path / "v", [])
        assert seen == [[SHARD], [SHARD, "v.index"]]

    def test_without_advice_to_the_system(self, tmp_path, monkeypatch):
        monkeypatch.delattr(os, "posix_fadvise")
        array = np.zeros(9 << 20, np.uint8)
        write_bundle(tmp_path / "v", [_tensor("k", array)])
        _same(_read(read_index(tmp_path / "v"), "k"), array)

    def test_tensors_are_not_copied(self, tmp_path):
        out = _run(
            "import numpy as np, resource\n"
            "from savedmodel.variables.bundle_reader import read_tensor\n"
            "from savedmodel.variables.bundle_layout import BundleTensor\n"
            "from tests.savedmodel.variables.bundles import write_bundle\n"
            "from savedmodel.variables.tensor_bundle import read_index\n"
            "def peak():\n"
            "    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10\n"
            "whole = np.ones(150 << 20, np.uint8)\n"
            "before = peak()\n"
            "chunks = lambda: (np.full(1 << 20, n % 256, np.uint8) for n in range(300))\n"
            f"write_bundle({str(tmp_path / 'v')!r}, [\n"
            "    BundleTensor('whole', 4, whole.shape, lambda: [whole]),\n"
            "    BundleTensor('streamed', 4, (300 << 20,), chunks)])\n"
            "written = peak()\n"
            f"index = read_index({str(tmp_path / 'v')!r})\n"
            "read_tensor(index, 'streamed')\n"
            "print(written - before, peak() - written)\n"
        )
        writing, reading = map(int, out.split())
        assert writing < 20
        assert reading < 300 + 20


@pytest.mark.slow
def test_more_than_four_gibibytes(tmp_path):
    size = (1 << 32) + 5
    piece = np.arange(1 << 20, dtype=np.uint32).view(np.uint8)

    def chunks():
        yield from [piece] * (size // piece.nbytes)
        yield piece[: size % piece.nbytes]

    small = np.arange(5, dtype=np.float32)
    write_bundle(tmp_path / "v", [BundleTensor("a", 4, (size,), chunks), _tensor("b", small)])

    index = read_index(tmp_path / "v")
    assert index.entries["b"].offset == (1 << 32) + 64
    _same(_read(index, "b"), small)
    checkpoint = tf.train.load_checkpoint(str(tmp_path / "v"))
    _same(checkpoint.get_tensor("b"), small)
    assert read_tensor(index, "a")[-5:].tolist() == piece[:5].tolist()
    assert checkpoint.get_tensor("a")[-5:].tolist() == piece[:5].tolist()
