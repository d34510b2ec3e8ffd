"""One mutation of a SavedModel: damage, as disks and copies do it, or an edit, as an attacker does.

Damage leaves the checksums as they are, so nothing but an error or the very same model may come of
it. An edit has checksums that hold, and may make another model.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import EncodeError, Message

from savedmodel.files import checksum
from savedmodel.files.sstable import decode_table, encode_table
from savedmodel.protos import schema
from savedmodel.variables import bundle_layout, bundle_reader, tensor_bundle
from tests.savedmodel.variables.bundles import write_bundle
from xla_call_module.node import is_call

PB = "saved_model.pb"
INDEX = "variables/variables.index"
DATA = "variables/variables.data-00000-of-00001"
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_NUMBERS = (0, 1, -1, 2, 7, 255, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63), 2**32, 2**64 - 1)
_TEXTS = ("", "x", "../x", "/etc/passwd", "a" * 5000, "\0", ":", "^", "a:output:7", "é", "[" * 3000)
# Dimensions that JAX's parser takes long for.
_DIMS = (
    "b^1000000000", "max(a + b + c + d, 0)^64", "9^99999999", "max(max(a, b), max(c, d))",
    "*".join(f"max(a{n} + b{n}, 0)" for n in range(30)), "floordiv(" * 50 + "b", "mod(b, 0)",
)  # fmt: skip

Mutation = Callable[[random.Random, Path, dict[str, Path]], None]


def damage_bytes(rng: random.Random, data: bytes) -> bytes:
    """Some bytes, with one thing wrong about them."""
    size = len(data)
    start, other = (rng.randrange(size + 1) for _ in range(2))
    length = min(rng.choice((1, 2, 4, 8, 64, 512, 4096)), size - max(start, other))
    block = data[start : start + length]
    match rng.randrange(9):
        case 0 | 1 | 2:
            position = rng.randrange(size) if size else 0
            return (
                data[:position] + _change(rng, data[position : position + 1]) + data[position + 1 :]
            )
        case 3:
            return data[:start]
        case 4:
            return data + rng.choice((b"\0", bytes(100), block, rng.randbytes(9)))
        case 5:
            return data[:other] + block + data[other:]
        case 6:
            return data[:start] + data[start + length :]
        case 7:
            return data[:other] + block + data[other + length :]
        case _:
            low, high = sorted((start, other))
            return (
                data[:low] + data[high : high + length] + data[low + length : high]
                + data[low : low + length] + data[high + length :]
                if high - low >= length
                else data[::-1]
            )  # fmt: skip


def _change(rng: random.Random, byte: bytes) -> bytes:
    if not byte:
        return b"\0"
    if rng.random() < 0.5:
        return bytes([byte[0] ^ 1 << rng.randrange(8)])
    return bytes([rng.randrange(256)])


def _damage_file(rng: random.Random, folder: Path, models: dict[str, Path]) -> None:
    path = folder / rng.choice((PB, PB, INDEX, DATA))
    path.write_bytes(damage_bytes(rng, path.read_bytes()))


def _swap_file(rng: random.Random, folder: Path, models: dict[str, Path]) -> None:
    source = rng.choice([model for model in models.values() if model.name != folder.name])
    name, target = rng.choice((PB, INDEX, DATA)), rng.choice((PB, INDEX, DATA))
    shutil.copyfile(source / name, folder / target)


def _replace_file(rng: random.Random, folder: Path, models: dict[str, Path]) -> None:
    path = folder / rng.choice((PB, INDEX, DATA))
    kind = rng.randrange(7)
    if kind == 0:  # most of it is on no disk
        os.truncate(path, 1 << 40)
        return
    path.unlink()
    match kind:
        case 1:
            os.mkfifo(path)
        case 2:
            os.symlink("/dev/zero", path)
        case 3:
            path.mkdir()
        case 4:
            os.symlink("nowhere", path)
        case 5:
            os.symlink(path, path)


def _edit_proto(rng: random.Random, folder: Path, models: dict[str, Path]) -> None:
    proto = _read_proto(folder)
    for _ in range(rng.choice((1, 1, 2, 5))):
        _mutate_message(rng, proto)
    _write_proto(folder, proto)


def _edit_description(rng: random.Random, folder: Path, models: dict[str, Path]) -> None:
    """The text in which a call describes itself, or the Exported that it carries."""
    proto = _read_proto(folder)
    functions = proto.meta_graphs[0].graph_def.library.function
    node = rng.choice([n for f in functions for n in f.node_def if is_call(n)])
    attribute = node.attr[rng.choice(("_jax_call", "_jax_call", "_jax_exported"))]
    text = zlib.decompress(attribute.s)
    if text[:1] == b"{" and rng.random() < 0.9:
        changed = json.dumps(mutate_json(rng, json.loads(text))).encode()
    else:  # of an older file it is no JSON
        changed = damage_bytes(rng, text)
    attribute.s = zlib.compress(changed)
    _write_proto(folder, proto)


def _edit_bytes(rng: random.Random, folder: Path, models: dict[str, Path]) -> None:
    """A file of another writer, which has no checksum, damaged."""
    message = (folder / PB).read_bytes()[checksum.HEADER_SIZE :]
    (folder / PB).write_bytes(damage_bytes(rng, message))


def _edit_index(rng: random.Random, folder: Path, models: dict[str, Path]) -> None:
    path = folder / INDEX
    records = {record.key: record.value for record in decode_table(path, path.read_bytes())}
    key = rng.choice(list(records))
    if rng.random() < 0.2:
        records[damage_bytes(rng, key)] = records.pop(key)
    elif rng.random() < 0.2:
        records[key] = damage_bytes(rng, records[key])
    else:
        message = (schema.BundleEntryProto if key else schema.BundleHeaderProto)()
        message.ParseFromString(records[key])
        _mutate_message(rng, message)
        records[key] = message.SerializeToString()
    path.write_bytes(encode_table(sorted(records.items())))


def _edit_checkpoint(rng: random.Random, folder: Path, models: dict[str, Path]) -> None:
    """The object graph in the checkpoint."""
    prefix = folder / "variables/variables"
    index = tensor_bundle.read_index(prefix)
    graph = schema.TrackableObjectGraph()
    graph.ParseFromString(bundle_reader.read_strings(index, _OBJECT_GRAPH)[0])
    _mutate_message(rng, graph)
    tensors: list[Any] = [
        bundle_layout.BundleStrings(_OBJECT_GRAPH, (), (graph.SerializeToString(),))
    ]
    for key, entry in index.entries.items():
        if key != _OBJECT_GRAPH:
            data = bundle_reader.read_tensor(index, key)
            tensors.append(
                bundle_layout.BundleTensor(key, entry.dtype, entry.shape, lambda data=data: [data])
            )
    for name in (INDEX, DATA):
        (folder / name).unlink()
    write_bundle(prefix, tensors)


def _read_proto(folder: Path) -> Any:
    return schema.SavedModel.FromString((folder / PB).read_bytes()[checksum.HEADER_SIZE :])


def _write_proto(folder: Path, proto: Any) -> None:
    message = proto.SerializeToString(deterministic=True)
    (folder / PB).write_bytes(checksum.header(message) + message)


def _mutate_message(rng: random.Random, message: Any) -> None:
    """One field, somewhere below."""
    while fields := message.ListFields():
        descriptor, value = rng.choice(fields)
        if descriptor.type != FieldDescriptor.TYPE_MESSAGE or rng.random() < 0.15:
            break
        if not descriptor.is_repeated:
            message = value
        elif descriptor.message_type.GetOptions().map_entry:
            if not isinstance(child := value[rng.choice(list(value))], Message):
                break
            message = child
        else:
            message = rng.choice(value)
    else:
        return
    try:
        _mutate_field(rng, message, descriptor, value)
    except (ValueError, TypeError, EncodeError):
        message.ClearField(descriptor.name)


def _mutate_field(rng: random.Random, message: Any, descriptor: Any, value: Any) -> None:
    if rng.random() < 0.1:
        message.ClearField(descriptor.name)
    elif not descriptor.is_repeated:
        if descriptor.type == FieldDescriptor.TYPE_MESSAGE:
            value.Clear()
        else:
            setattr(message, descriptor.name, _mutate_scalar(rng, value))
    elif hasattr(value, "keys"):
        _mutate_map(rng, value)
    else:
        _mutate_list(rng, value, descriptor.type == FieldDescriptor.TYPE_MESSAGE)


def _mutate_map(rng: random.Random, value: Any) -> None:
    key = rng.choice(list(value))
    other = rng.choice(list(value))
    child = value[key]
    if rng.random() < 0.3:
        del value[key]
    elif isinstance(child, Message):
        name = other if rng.random() < 0.5 else rng.choice(_TEXTS)
        value[name if isinstance(key, str) else rng.choice(_NUMBERS)].CopyFrom(child)
    else:
        value[key] = _mutate_scalar(rng, rng.choice((child, value[other])))


def _mutate_list(rng: random.Random, value: Any, is_message: bool) -> None:
    position = rng.randrange(len(value))
    match rng.randrange(5):
        case 0:
            del value[position]
        case 1:
            value.extend([value[position]] * rng.choice((1, 1, 3, 50)))
        case 2:
            items = list(value)
            rng.shuffle(items)
            copies = (
                [type(item).FromString(item.SerializeToString()) for item in items]
                if is_message
                else items
            )
            del value[:]
            value.extend(copies)
        case 3 if is_message:
            value[position].CopyFrom(rng.choice(value))
        case _ if is_message:
            value[position].Clear()
        case _:
            value[position] = _mutate_scalar(rng, rng.choice(value))


def _mutate_scalar(rng: random.Random, value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((value + 1, value - 1, -value, *_NUMBERS))
    if isinstance(value, float):
        return rng.choice((0.0, -value, float("nan"), 1e300))
    if isinstance(value, bytes):
        return damage_bytes(rng, value) if rng.random() < 0.8 else rng.randbytes(20)
    middle = rng.randrange(len(value) + 1)
    return rng.choice(
        (*_TEXTS, *_DIMS, value[:middle], value + "x", value[:middle] + "_" + value[middle:])
    )


def mutate_json(rng: random.Random, value: Any) -> Any:
    """One leaf or container, somewhere below."""
    if isinstance(value, dict) and value and rng.random() < 0.95:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            return {name: item for name, item in value.items() if name != key}
        return {**value, key: mutate_json(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.85:
        position = rng.randrange(len(value))
        return [*value[:position], mutate_json(rng, value[position]), *value[position + 1 :]]
    choices = (None, True, -1, 0, 3, 2**70, 1.5, float("nan"), "", "b", "b*b*b", "key<fry>", "int4",
               "(" * 500, "9" * 50, [], {}, [[]], [value], {"shape": []}, "float64", "-b",
               "floordiv(b, 0)", "mod(b, b)", "b^99999999", "é")  # fmt: skip
    return rng.choice(choices)


def mutate_foreign(rng: random.Random, data: bytes) -> bytes:
    """The saved_model.pb of another writer, which has no checksum, damaged or edited."""
    if rng.random() < 0.4:
        return damage_bytes(rng, data)
    proto = schema.SavedModel.FromString(data)
    for _ in range(rng.choice((1, 2, 4))):
        _mutate_message(rng, proto)
    return proto.SerializeToString()  # type: ignore[no-any-return]


DAMAGE: tuple[Mutation, ...] = (*[_damage_file] * 16, _swap_file, _replace_file)
EDITS: tuple[Mutation, ...] = (
    *[_edit_proto] * 6,
    *[_edit_description] * 3,
    *[_edit_bytes] * 3,
    *[_edit_index] * 3,
    _edit_checkpoint,
)


def mutate(
    rng: random.Random, folder: Path, models: dict[str, Path], mutations: tuple[Mutation, ...]
) -> str:
    """Mutate a copy of a model; what was done."""
    mutation = rng.choice(mutations)
    mutation(rng, folder, models)
    return mutation.__name__.lstrip("_")
