"""File -> file: with other calls, with other values of its variables, or copied as it is.

`rewrite_nodes` changes the calls. Everything besides their nodes, and the functions of plain
operations that these run, is kept as it is: what the file's functions compute around the calls, its
variables, its assets, and the fields of its messages that are not known here. So it is for files of
any writer. Only the numbers of gradients that the file lacks give way to a name that says so.
`rewrite_variables` changes the checkpoint, and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from savedmodel.encode.body import Library
from savedmodel.encode.graph_functions import encode_graph
from savedmodel.encode.labels import write_labels
from savedmodel.encode.listed_functions import list_functions
from savedmodel.encode.mutexes import mutex_name, to_compiled, to_mutexes
from savedmodel.encode.opening import open_graph
from savedmodel.encode.shape_check_nodes import refusal_graph
from savedmodel.files.assets import PUBLICATION_FILE, asset_files
from savedmodel.files.fingerprint import FINGERPRINT_FILE, renew_fingerprint
from savedmodel.files.folder import PROTO_FILE, VARIABLES, new_place, write_bytes
from savedmodel.files.model_folder import ModelFolder, read_one_version
from savedmodel.files.remote import is_remote
from savedmodel.gradient_orders import (
    ABSENT_GRADIENT,
    OP_TYPE,
    drop_functions,
    drop_gradients,
    order_of_functions,
)
from savedmodel.manifest import (
    MANIFEST_FILE,
    check_sizes,
    read_manifest,
    renew_manifest,
    written_extents,
)
from savedmodel.model import INTERNAL_SIGNATURE, METADATA_COLLECTION
from savedmodel.protos.schema import Proto
from savedmodel.read import read_proto, served_graphs
from savedmodel.tensorflow_graph import TensorFlowGraph
from savedmodel.variables.bundle_changes import lay_out_changes
from savedmodel.variables.bundle_layout import BundleTensor
from savedmodel.variables.data_files import shard_name
from savedmodel.variables.tensor_bundle import BundleIndex, index_path
from savedmodel.write import Group, serialize_proto, telling, write_folder, write_proto
from xla_call_module.call import CallModule
from xla_call_module.errors import FormatError, InteropError, StructureError, refusing_damage
from xla_call_module.node import (
    INEXACT,
    NOT_INLINED,
    OP,
    called_function,
    decode_node,
    description_allowance,
    is_call,
    to_function_call,
    to_module_call,
    update_node,
)


@dataclass(frozen=True, slots=True)
class Operations:
    """What the calls of a file run once it is rewritten.

    Attributes:
        lower: returns the graph that computes a changed call, which it is told with the order of
            the gradient that the call is in, by `for_converters` who reads the graph, and by
            `exact` how exact it is to be.
        leave: is told of each changed call whose graph stays.
        plain: whether graphs run in the place of the calls; None for where they do already.
        again: whether graphs that are there are made anew.
        for_converters: whether graphs are for converters, which read nothing that refuses shapes or
            gradients.
    """

    lower: Callable[..., TensorFlowGraph]
    leave: Callable[[CallModule], None]
    plain: bool | None = None
    again: bool = False
    for_converters: bool = False


_PIECE_BYTES = 8 << 20
# They describe the bytes of the old saved_model.pb. TensorFlow computes the fingerprint when it
# saves, compares it with nothing, and loads a file without one
# (tensorflow/python/saved_model/fingerprinting.py); the text is another form of the old message.
# The manifest has the hash of it.
_OUTDATED = frozenset({FINGERPRINT_FILE, "saved_model.pbtxt", MANIFEST_FILE})
# Of what has other values: the first two are made anew, and the third is of a copy.
_OUTDATED_BY_VALUES = frozenset({FINGERPRINT_FILE, MANIFEST_FILE, PUBLICATION_FILE})
_MAX_FINGERPRINT_BYTES = 1 << 16
# What `tf.custom_gradient` calls one; other names are those that a program has registered.
_NUMBERED = re.compile(rb"CustomGradient-\d+")


def rewrite_nodes(
    source: str | os.PathLike[str] | ModelFolder,
    target: str | os.PathLike[str],
    change: Callable[[CallModule], CallModule],
    *,
    operations: Operations | None = None,
    metadata: Callable[[], Mapping[str, Any]] = dict,
    gradient_order: int | None = None,
    written: Callable[[Path], None] | None = None,
    overwrite: bool = False,
) -> int:
    """Write a SavedModel again with other calls; return the number of nodes that make them.

    Those that only assert shapes are changed, too, and not counted. Every graph and every function
    of the file is gone through, gradients included. Nodes that make the same call are changed once.
    The new folder appears whole or not at all; files other than saved_model.pb are linked where the
    file system can, else copied. A fingerprint.pb, which describes the old bytes, is left out.

    Example:
        >>> import bridge, jax
        >>> from savedmodel.rewrite import rewrite_nodes
        >>> from xla_call_module import retarget
        >>> exported = jax.export.export(jax.jit(jax.numpy.sin))(1.0)
        >>> saved = bridge.save(exported, "my_model", gradient_order=1)
        >>> rewrite_nodes("my_model", "for_2_16", lambda call: retarget(call, "2.16"))
        2
    """

    def rewrite(folder: ModelFolder) -> int:
        _check_places(folder.path, target)
        return _rewrite(
            folder, target, change, operations, metadata, gradient_order, written,
            overwrite=overwrite,
        )  # fmt: skip

    return read_one_version(source, rewrite)


def _rewrite(
    folder: ModelFolder,
    target: str | os.PathLike[str],
    change: Callable[[CallModule], CallModule],
    operations: Operations | None,
    metadata: Callable[[], Mapping[str, Any]],
    gradient_order: int | None,
    written: Callable[[Path], None] | None,
    *,
    overwrite: bool,
) -> int:
    with refusing_damage(str(folder.path / PROTO_FILE)):
        proto = read_proto(folder)
        for meta_graph in proto.meta_graphs:
            asset_files(folder, meta_graph)
            if gradient_order is not None:
                drop_gradients(meta_graph, gradient_order)
        count = _change_nodes(folder.path / PROTO_FILE, proto, change, operations)
        _name_absent_gradients(proto)
        _change_metadata(proto, metadata)
    data = serialize_proto(proto)
    del proto
    with new_place(target, overwrite=overwrite) as place:
        copy_files(folder, place, without=(*_OUTDATED, PROTO_FILE))
        write_proto(place, data)
        if written is not None:
            written(place)
    return count


def _check_places(source: Path, target: str | os.PathLike[str]) -> None:
    if not is_remote(target) and source.resolve() in Path(target).resolve().parents:
        raise StructureError(
            f"{target} is inside of {source}, which is to be copied. To do: take another path."
        )


def _change_nodes(
    file: Path,
    proto: Proto,
    change: Callable[[CallModule], CallModule],
    operations: Operations | None,
) -> int:
    changed: dict[CallModule, CallModule] = {}
    allowance = description_allowance()
    count = 0
    bodies = [_CallBodies(graph, operations) for graph in proto.meta_graphs]
    for number, place, order, node in [*_nodes(proto)]:
        if not is_call(node):
            continue
        try:
            before = decode_node(node, allowance=allowance)
            count += bool(before.results)
            if before not in changed:
                changed[before] = change(before)
            update_node(node, before, changed[before])
            bodies[number].change(node, changed[before], order)
        except InteropError as error:
            where = f", in the gradient of order {order}" if order else ""
            cure = f" Or keep fewer gradients: gradient_order={order - 1}." if order else ""
            message = f"{file}, node {node.name} of {place}{where}: {error}{cure}"
            raise type(error)(message) from error
    for body in bodies:
        body.finish()
    if not count:
        raise FormatError(
            f"{file} has no {OP} node, so there is no StableHLO module in it. To do: use it as it "
            "is; it does not come from JAX, or it was written with native serialization off."
        )
    return count


class _CallBodies:
    """The functions of plain operations that the calls of a graph run."""

    def __init__(self, meta_graph: Proto, operations: Operations | None) -> None:
        self._meta_graph, self._graph, self._operations = (
            meta_graph,
            meta_graph.graph_def,
            operations,
        )
        self._library = Library.of(self._graph.library)
        self._functions = {str(f.signature.name): f for f in self._graph.library.function}
        self._names: dict[tuple[CallModule, bool, bool], str] = {}
        self._dropped: set[str] = set()
        self._opens = False

    def change(self, node: Proto, call: CallModule, order: int) -> None:
        """Let a node run the graph that is to be in the place of a call, or the module."""
        if self._operations is None:
            return
        old = called_function(node)
        is_plain = bool(old) if self._operations.plain is None else self._operations.plain
        is_open = bool(old) and NOT_INLINED not in self._functions[old].attr
        opens = is_open if self._operations.plain is None else self._operations.for_converters
        self._opens = is_plain and opens
        if self._opens and not call.results:
            return  # it only asserts, and goes
        if is_plain and old and is_open == opens and not self._operations.again:
            self._operations.leave(call)
            return
        exact = INEXACT not in node.attr
        key = (call, bool(order), exact)
        if key not in self._names:
            made = self._add(call, order, opens=opens, exact=exact) if is_plain else ""
            self._names[key] = made
        if old:
            to_module_call(node)
            self._dropped.add(old)
        if self._names[key]:
            to_function_call(node, self._names[key], is_opaque=not opens, exact=exact)

    def _add(self, call: CallModule, order: int, *, opens: bool, exact: bool) -> str:
        assert self._operations is not None
        if call.results:
            graph = self._operations.lower(call, order, for_converters=opens, exact=exact)
        else:
            graph = refusal_graph(call)
        main, *_ = encode_graph(graph, self._library.new_function)
        return str(main.signature.name)

    def finish(self) -> None:
        """Drop the functions that are not called any more, and let mutexes come or go."""
        if self._dropped:
            drop_functions(self._graph.library, self._dropped)
        if self._opens:
            open_graph(self._graph)
        elif any(self._names.values()):
            to_mutexes(self._graph, mutex_name(call.module for call, *_ in self._names))
        elif self._names:
            to_compiled(self._graph)
        if self._names:
            list_functions(self._meta_graph)


def _nodes(proto: Proto) -> Iterator[tuple[int, str, int, Proto]]:
    """Yield every node, with its graph, that or the function that holds it, and its gradient."""
    for number, meta_graph in enumerate(proto.meta_graphs):
        graph, orders = meta_graph.graph_def, order_of_functions(meta_graph)
        yield from ((number, "the main graph", 0, node) for node in graph.node)
        for function in graph.library.function:
            name = function.signature.name
            place, order = f"function {name}", orders.get(name, 0)
            yield from ((number, place, order, node) for node in function.node_def)


def _name_absent_gradients(proto: Proto) -> None:
    """Rename the gradients that the file does not have.

    TensorFlow names a gradient by a number of the process that traced it, and renames those that it
    has saved when it loads them. The names of others, such as jax2tf's gradients of gradients,
    stay, and are those of any gradients in the process that loads, which it then takes instead
    (tensorflow/python/saved_model/function_deserialization.py, `_fix_fdef_in_place`).
    """
    saved = {
        gradient.registered_op_type.encode()
        for meta_graph in proto.meta_graphs
        for gradient in meta_graph.graph_def.library.registered_gradients
    }
    for *_, node in _nodes(proto):
        if OP_TYPE not in node.attr:
            continue
        name = node.attr[OP_TYPE].s
        if name not in saved and _NUMBERED.fullmatch(name):
            node.attr[OP_TYPE].s = ABSENT_GRADIENT


def _change_metadata(proto: Proto, metadata: Callable[[], Mapping[str, Any]]) -> None:
    for meta_graph in proto.meta_graphs:
        if METADATA_COLLECTION not in meta_graph.collection_def:
            continue
        values = meta_graph.collection_def[METADATA_COLLECTION].bytes_list.value
        try:
            new = {**json.loads(values[0]), **metadata()}
        except (ValueError, IndexError, TypeError, RecursionError) as error:
            raise FormatError("The metadata of the SavedModel are damaged.") from error
        values[0] = json.dumps(new, sort_keys=True).encode()
        meta_graph.meta_info_def.tensorflow_version = str(new.get("tensorflow", ""))


def rewrite_variables(
    source: ModelFolder,
    target: str | os.PathLike[str] | None,
    index: BundleIndex,
    tensors: Sequence[BundleTensor],
    *,
    overwrite: bool = False,
    linked: bool = True,
    request: Mapping[str, Any] = MappingProxyType({}),
    progress: Callable[[int, int], None] | None = None,
    group: Group | None = None,
) -> int:
    """Write a SavedModel again with other values of variables; return its number of bytes.

    All other files are those of the source, saved_model.pb among them, and data files in which
    nothing changes. A manifest is written anew, and so is a fingerprint.pb, which has a hash of the
    checkpoint.
    """
    with contextlib.nullcontext() if group is None else telling(group):
        if target is not None:
            _check_places(source.path, target)
        layout = lay_out_changes(index, tensors)
        manifest = read_manifest(source)

    def rest(folder: Path) -> None:
        old = [name for name, _ in source.walk() if name.startswith(f"{VARIABLES}.")]
        carried = copy_files(source, folder, without=(*_OUTDATED_BY_VALUES, *old), linked=linked)
        for number, shard_id in enumerate(layout.kept, len(layout.files)):
            name = shard_name(VARIABLES, number, layout.num_files)
            carried[name] = index.files.name(shard_id)
            with source.open(carried[name], links=False) as file:
                if not (linked and _link(file, folder / name)):
                    _copy(file, folder / name)
        if source.find(FINGERPRINT_FILE, links=True) is not None:
            data = source.read(FINGERPRINT_FILE, limit=_MAX_FINGERPRINT_BYTES)
            table = index_path(folder / VARIABLES).read_bytes()
            write_bytes(folder / FINGERPRINT_FILE, renew_fingerprint(data, table))
        if manifest is not None:
            renew_manifest(folder, manifest, request=request, carried=carried)

    return write_folder(
        source.path if target is None else target,
        layout,
        rest,
        overwrite=overwrite,
        replaces=source if target is None else None,
        progress=progress,
        group=group,
    )


def add_labels(folder: Path, labels: Mapping[str, Sequence[str]]) -> None:
    """Add to the signatures of a SavedModel of any writer the labels of their outputs.

    Nobody else may use the folder meanwhile; files that are linked elsewhere stay what they are
    there.
    """
    proto = read_proto(folder)
    outputs: dict[str, None] = {}
    with refusing_damage(str(folder / PROTO_FILE)):
        for graph in served_graphs(proto)[:1]:
            for key in sorted(graph.signature_def):
                if key.startswith(INTERNAL_SIGNATURE):
                    continue
                there = sorted(graph.signature_def[key].outputs)
                outputs |= dict.fromkeys(there)
                for name in there:
                    if name in labels:
                        write_labels(graph, key, name, labels[name])
    if unknown := [name for name in labels if name not in outputs]:
        raise StructureError(
            f"labels= are for the output {unknown[0]!r}, and the outputs of the signatures are "
            f"{', '.join(map(repr, outputs))}. To do: take one of these names, or name the outputs "
            "by outputs=."
        )
    manifest = read_manifest(folder)
    for name in (PROTO_FILE, *_OUTDATED):
        (folder / name).unlink(missing_ok=True)
    write_proto(folder, serialize_proto(proto))
    if manifest is not None:
        renew_manifest(folder, manifest)


def copy_files(
    source: ModelFolder, target: Path, *, without: Collection[str] = (), linked: bool = True
) -> dict[str, str]:
    """Copy the content of a SavedModel's folder into another folder."""
    check_sizes(source)
    copied: dict[str, str] = {}
    for name, is_folder in list(_entries(source, without)):
        if is_folder:
            (target / name).mkdir(exist_ok=True)
            continue
        with source.open(name, links=False) as file:
            if not (linked and _link(file, target / name)):
                _copy(file, target / name)
        copied[name] = name
    return copied


def _entries(folder: ModelFolder, without: Collection[str]) -> Iterator[tuple[str, bool]]:
    """Yield the paths below a folder of all that is kept, and whether each is a folder."""
    for name, status in folder.walk():
        if name in without:
            continue
        path = folder.path / name
        if stat.S_ISLNK(status.st_mode) and path.is_dir():
            raise FormatError(f"{path} is a link to a folder. To do: put the folder there itself.")
        is_folder = stat.S_ISDIR(status.st_mode)
        if not (is_folder or stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
            raise FormatError(f"{path} is neither a file nor a folder. To do: remove it.")
        # What a link leads to elsewhere is no part of the model, and not to be handed on.
        if not is_folder and folder.find(name) is None:
            raise FormatError(f"{path} is neither a file nor a folder. To do: remove it.")
        yield name, is_folder


def _link(file: BinaryIO, target: Path) -> bool:
    """Give an open file one more name; return whether that could be done."""
    try:
        # Python follows links only if it is given a descriptor, which an absolute path does not use
        # (https://github.com/python/cpython/issues/81793).
        os.link(f"/proc/self/fd/{file.fileno()}", target, src_dir_fd=file.fileno())
    except OSError:
        # Another file system, one without links, or one that forbids them for others' files.
        return False
    return True


def _copy(file: BinaryIO, target: Path) -> None:
    """Copy an open file; what is on no disk stays so."""
    size = os.fstat(file.fileno()).st_size
    with target.open("xb") as copy:
        for start, stop in written_extents(file, size):
            file.seek(start)
            copy.seek(start)
            while start < stop and (piece := file.read(min(_PIECE_BYTES, stop - start))):
                copy.write(piece)
                start += len(piece)
        copy.truncate(size)
        copy.flush()
        os.fsync(copy.fileno())
