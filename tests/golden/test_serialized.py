"""Files of `Exported.serialize` in each JAX, as the input of `save`, `to_onnx` and `export`.

JAX refuses those of older versions as expired. Both folders of files of all kinds were written by
the same serialization of JAX, so each is given to one of the commands that write a SavedModel.
"""

from __future__ import annotations

import contextlib
import re

import jax
import onnxruntime
import pytest
import tensorflow as tf

import bridge
from bridge.cli.main import main
from tests.golden.reading import GOLDEN, check_leaves, numbers_of
from tests.golden.tensorflow_arguments import for_tensorflow
from tests.golden.write_kinds import KINDS, SEVERAL_DEVICES
from tests.golden.write_serialized import register_pair
from xla_call_module.descriptions.serialized_exported import read_serialized
from xla_call_module.errors import ShardingError, VersionError
from xla_call_module.stablehlo.modules import open_module

CASES = sorted(GOLDEN.glob("serialized/*/*.bin"))
ONE_DEVICE_ALONE = "A file that TensorFlow cannot run on one device"


def files(folder):
    return sorted(GOLDEN.glob(f"{folder}/jax-*/*/exported.bin"))


def name_of(file):
    return "-".join(file.relative_to(GOLDEN).parts)


def of_each_file(*paths):
    return pytest.mark.parametrize("file", paths, ids=name_of)


def modules_of(serialized):
    return [] if serialized is None else [serialized.module, *modules_of(serialized.vjp)]


def refusal_of(artifact):
    try:
        with open_module(artifact):
            return ""
    except VersionError as error:
        return str(error)


def is_read(file, *, gradients=True):
    """Return whether this jaxlib reads all operations; of a newer JAX it may lack some."""
    modules = modules_of(read_serialized(file.read_bytes()))
    refusals = list(filter(None, map(refusal_of, modules if gradients else modules[:1])))
    if refusals:
        writer = next(part for part in file.parts if re.fullmatch(r"(jax-)?0\.[0-9.]+", part))
        assert parse_version(writer.removeprefix("jax-")) > jax.__version_info__
        assert re.search(r"StableHLO .* To do: take jaxlib [\d.]+ or newer", refusals[0])
    return not refusals


def parse_version(text):
    return tuple(map(int, text.split(".")))


@contextlib.contextmanager
def read_or_refused(file, *, gradients=True):
    if is_read(file, gradients=gradients):
        yield
        return
    with pytest.raises(VersionError, match="To do: take jaxlib"):
        yield


def first_of(file):
    """The kind, its first signature, whose `Exported` is in the file, and its arguments."""
    kind = KINDS[file.parent.name]
    key, (_, _, arguments) = next(iter(kind.make().items()))
    return kind, key, arguments


def check_in_tensorflow(folder, file, *, gradients):
    kind, key, arguments = first_of(file)
    numbers = numbers_of(file.parent)
    model = tf.saved_model.load(folder)
    tensors = tuple(map(for_tensorflow, arguments))
    flat = [leaf for leaf in tf.nest.flatten(tensors) if leaf is not None]
    floats = [leaf for leaf in flat if leaf.dtype.is_floating]
    with tf.GradientTape() as tape:
        tape.watch(floats)
        results = [leaf for leaf in tf.nest.flatten(model(*tensors)) if leaf is not None]
        total = sum(tf.reduce_sum(leaf) for leaf in results if leaf.dtype.is_floating)
    check_leaves(results, numbers, f"{key}/result")
    if gradients and kind.order:
        check_leaves(tape.gradient(total, floats), numbers, f"{key}/gradient")


def test_there_are_some():
    minors = {file.parts[-3].split(".")[1] for file in files(1)}
    assert minors == {file.parts[-3].split(".")[1] for file in files(2)}
    assert minors >= {"7", "8", "9", "10", "11", "12"}
    assert len(files(1)) == len(files(2)) == len(KINDS) * len(minors)


@of_each_file(*files(1))
def test_saved(file, tmp_path):
    kind = KINDS[file.parent.name]
    is_manual = file.parent.name == "shard_map"
    warns = is_manual and is_read(file)
    warned = (
        pytest.warns(UserWarning, match=ONE_DEVICE_ALONE) if warns else contextlib.nullcontext()
    )
    with read_or_refused(file), warned:
        saved = bridge.save(file, tmp_path / "model", gradient_order=kind.order)
        assert all(signature.gradient_order == kind.order for signature in saved.signatures)
        if not is_manual:
            check_in_tensorflow(saved.path, file, gradients=True)


@pytest.mark.filterwarnings(f"always:{ONE_DEVICE_ALONE}")
@of_each_file(*files(2))
def test_exported_by_the_command(file, tmp_path, capsys):
    out = tmp_path / "model"
    status = main(["export", str(file), "--out", str(out)])
    said = capsys.readouterr().err
    if not is_read(file):
        assert status == 2
        assert "To do: take jaxlib" in said
        return
    assert status == 0, said
    if file.parent.name == "shard_map":
        assert ONE_DEVICE_ALONE in said
    else:
        assert said == ""
        check_in_tensorflow(out, file, gradients=False)


@of_each_file(*files(2))
def test_to_onnx(file):
    if file.parent.name in SEVERAL_DEVICES and is_read(file, gradients=False):
        with pytest.raises(ShardingError, match="exported for 2 devices, and an ONNX model runs"):
            bridge.to_onnx(file)
        return
    with read_or_refused(file, gradients=False):
        model = bridge.to_onnx(file)
        session = onnxruntime.InferenceSession(model.SerializeToString())
        numbers, (_, key, _) = numbers_of(file.parent), first_of(file)
        given = {
            value.name: numbers[f"{key}/argument/{index}"]
            for index, value in enumerate(session.get_inputs())
        }
        check_leaves(session.run(None, given), numbers, f"{key}/result")


@of_each_file(*CASES)
def test_other_cases(file, tmp_path):
    register_pair()
    with read_or_refused(file):
        saved = bridge.save(file, tmp_path / "model")
        assert callable(tf.saved_model.load(saved.path))
        if file.stem != "sharded":
            assert bridge.to_onnx(file).graph.node
            return
        with pytest.raises(ShardingError, match="exported for 4 devices, and an ONNX model runs"):
            bridge.to_onnx(file)


def test_beside_others(tmp_path):
    """Several files, and a function, are the signatures of one SavedModel."""
    expired, newer = (
        GOLDEN / "1" / jax / "plain" / "exported.bin" for jax in ("jax-0.7.1", "jax-0.12.0.1")
    )
    models = {"old": expired, "new": str(newer), "own": lambda x: x * 2}
    saved = bridge.save(models, tmp_path / "model", args="f32[3]")
    assert [signature.key for signature in saved.signatures] == ["old", "new", "own"]
    model = tf.saved_model.load(saved.path)
    arguments = [tf.constant(array) for array in first_of(expired)[2]]
    tf.debugging.assert_near(model.old(*arguments), model.new(*arguments))
