"""Files that are made to do harm end in an error, soon and without filling the memory."""

from __future__ import annotations

import os
import resource
import shutil
import time
import tracemalloc
import zlib
from pathlib import Path

import jax
import numpy as np
import pytest

import bridge
import savedmodel
from savedmodel.files.assets import asset_files
from savedmodel.protos import schema
from savedmodel.protos.schema import MetaGraphDef
from tests.work import seconds_here
from xla_call_module.errors import FormatError, InteropError

PB = "saved_model.pb"
INDEX = "variables/variables.index"
DATA = "variables/variables.data-00000-of-00001"


def _save(folder, shape=(2, 3)):
    params = {"w": np.full(shape, shape[0], np.float32), "layers": [{"b": np.zeros(3, np.float32)}]}
    exported = jax.export.export(jax.jit(lambda p, x: (x @ p["w"] + p["layers"][0]["b"]).sum()))(
        params, jax.ShapeDtypeStruct((4, shape[0]), np.float32)
    )
    bridge.save(exported, folder, params=params)
    return folder


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return _save(tmp_path_factory.mktemp("original") / "m")


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A model whose parameters have other shapes."""
    return _save(tmp_path_factory.mktemp("other") / "m", (5, 3))


@pytest.fixture
def folder(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "m"))


@pytest.fixture(autouse=True)
def _bounds():
    """Every test of this file: five seconds and 100 MB, over what the file takes."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.thread_time()  # the process has threads of other tests
    yield
    taken = time.thread_time() - start
    assert taken < 5 or taken < seconds_here(5)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def _edit(folder, change):
    proto = schema.SavedModel.FromString((folder / PB).read_bytes())
    change(proto.meta_graphs[0])
    (folder / PB).write_bytes(proto.SerializeToString())


def _refused(folder, match):
    with pytest.raises(InteropError, match=match):
        _read(folder)


def _read(folder):
    return [variable.shared() for variable in savedmodel.read(folder).variables]


def _wrapper(graph):
    """The function of the signature."""
    concrete = graph.object_graph_def.nodes
    (name,) = (
        n.bare_concrete_function.concrete_function_name
        for n in concrete
        if n.HasField("bare_concrete_function")
    )
    return next(f for f in graph.graph_def.library.function if f.signature.name == name)


def _node(graph):
    nodes = (n for f in graph.graph_def.library.function for n in f.node_def)
    return next(node for node in nodes if node.op == "XlaCallModule")


class TestFiles:
    @pytest.mark.parametrize("name", [INDEX, DATA])
    def test_of_another_model(self, folder, other, name):
        shutil.copy(other / name, folder / name)
        _refused(folder, r"variables\.(index|data)|w is float32")

    def test_variables_of_another_model(self, folder, other):
        for name in (INDEX, DATA):
            shutil.copy(other / name, folder / name)
        _refused(folder, r"w is float32\[2, 3\] in the object graph, and float32\[5, 3\] under")

    @pytest.mark.parametrize("name", [PB, INDEX, DATA])
    @pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link to itself"])
    def test_no_regular_file(self, folder, name, kind):
        (folder / name).unlink()
        match kind:
            case "pipe":
                os.mkfifo(folder / name)
            case "device":
                os.symlink("/dev/zero", folder / name)
            case "folder":
                (folder / name).mkdir()
            case _:
                os.symlink(folder / name, folder / name)
        _refused(folder, f"{Path(name).name}|has no saved_model.pb")

    @pytest.mark.parametrize("name", [PB, INDEX, DATA, "variables"])
    def test_a_link_to_elsewhere(self, folder, original, name):
        """So a cache keeps models; what is read is checked, wherever it is."""
        target = folder / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        os.symlink(original / name, target)
        for variable in savedmodel.read(folder).variables:
            assert variable.shared().shape == variable.shape

    def test_links_that_stay_inside(self, folder, tmp_path):
        (folder / DATA).rename(folder / "variables/blob")
        os.symlink("blob", folder / DATA)
        os.symlink(folder, tmp_path / "latest")
        assert savedmodel.read(tmp_path / "latest").default.inputs

    def test_a_data_file_with_no_end(self, folder):
        os.truncate(folder / DATA, 1 << 40)
        for variable in savedmodel.read(folder).variables:
            assert variable.shared().shape == variable.shape

    def test_a_proto_with_no_end(self, folder):
        with (folder / PB).open("ab") as file:
            file.write(bytes(1 << 20))
        _refused(folder, r"saved_model\.pb")


def _bomb(count, body):
    """A SavedModel with many of something in its graph."""

    def field(number, content):
        return bytes([number << 3 | 2]) + schema_varint(len(content)) + content

    return b"\x08\x01" + field(2, field(2, field(1, body) * count))


def schema_varint(value):
    from savedmodel.protos.wire_format import encode_varint

    return encode_varint(value)


class TestBombs:
    @pytest.mark.parametrize(
        ("count", "body"),
        [(5_000_000, b""), (2_000_000, b"\x2a\x00"), (2_000_000, b"\x2a\x02\x12\x00")],
    )
    def test_messages(self, folder, count, body):
        (folder / PB).write_bytes(_bomb(count, body))
        _refused(folder, r"saved_model\.pb, byte \d+: .*(fill the memory|more than .* fields)")

    def test_nested_messages(self, folder):
        value = b""
        for _ in range(120):
            value = b"\x0a" + schema_varint(len(value)) + value
        (folder / PB).write_bytes(b"\x08\x01\x12" + schema_varint(len(value)) + value)
        _refused(folder, "not a SavedModel message|has no graph with the tag")

    @pytest.mark.parametrize("attr", ["_jax_call", "_jax_exported"])
    def test_compressed(self, folder, attr):
        bomb = zlib.compress(bytes(1 << 28), 9)
        _edit(folder, lambda graph: setattr(_node(graph).attr[attr], "s", bomb))
        _refused(folder, f"attribute {attr} is damaged: .*hold more than 4194304")

    def test_compressed_json(self, folder):
        bomb = zlib.compress(b"[" * 100_000 + b"]" * 100_000)
        _edit(folder, lambda graph: setattr(_node(graph).attr["_jax_call"], "s", bomb))
        _refused(folder, "attribute _jax_call, is damaged")

    def test_metadata(self, folder):
        def change(graph):
            _set_metadata(graph, b"[" + b"[]," * (1 << 21) + b"0]")

        _edit(folder, change)
        _refused(folder, r"metadata .* have 6,291,459 bytes")


def _calls(graph, width, depth):
    """Functions that each call the next twice, with other arguments each time."""
    library = graph.graph_def.library
    inner = _wrapper(graph).signature.name
    for level in range(depth):
        function = library.function.add()
        function.signature.name = f"level{level}"
        for index in range(width):
            function.signature.input_arg.add(name=f"a{index}", type=1)
        function.signature.output_arg.add(name="o", type=1)
        for side in range(2):
            node = function.node_def.add(name=f"n{side}", op="StatefulPartitionedCall")
            node.attr["f"].func.name = f"level{level - 1}" if level else inner
            node.input.extend(f"a{(index + side) % width}" for index in range(width))
        function.node_def.add(name="i", op="IdentityN", input=["n0:output:0", "n1:output:0"])
        function.ret["o"] = "i:output:1"
    for node in graph.object_graph_def.nodes:
        if node.HasField("bare_concrete_function"):
            name = node.bare_concrete_function.concrete_function_name
            concrete = graph.object_graph_def.concrete_functions[name]
            outer = f"level{depth - 1}"
            graph.object_graph_def.concrete_functions[outer].CopyFrom(concrete)
            node.bare_concrete_function.concrete_function_name = outer


class TestGraphs:
    def test_functions_that_call_themselves(self, folder):
        def change(graph):
            function = _wrapper(graph)
            for node in function.node_def:
                if node.op == "StatefulPartitionedCall":
                    node.attr["f"].func.name = function.signature.name

        _edit(folder, change)
        _refused(folder, "call each other without end")

    def test_a_power_of_two_of_calls(self, folder):
        _edit(folder, lambda graph: _calls(graph, 3, 40))
        # Only three rotations exist, and each is traced once.
        assert savedmodel.read(folder).default.inputs

    @pytest.mark.parametrize("circle", [False, True])
    def test_a_chain_of_computations(self, folder, circle):
        def change(graph):
            function = next(
                f
                for f in graph.graph_def.library.function
                if any(n.op == "XlaCallModule" for n in f.node_def)
            )
            key = next(iter(function.ret))
            first = next(n for n in function.node_def if n.op == "XlaCallModule")
            last, output = first.name, "output"
            for number in range(3000):
                node = function.node_def.add()
                if number % 2:
                    node.op = "Identity"
                    node.attr["T"].type = 1
                else:
                    node.CopyFrom(first)
                    del node.input[:]
                node.name = f"again{number}"
                node.input.extend([f"{last}:{output}:0"] * (1 if number % 2 else len(first.input)))
                last = node.name
            if circle:
                first.input[0] = f"{last}:{output}:0"
            function.ret[key] = f"{last}:{output}:0"

        _edit(folder, change)
        if circle:
            _refused(folder, "depends on itself")
        else:
            (signature,) = savedmodel.read(folder).signatures
            assert len(signature.functions) == 1501

    def test_a_diamond_of_computations(self, folder):
        def change(graph):
            function = next(
                f
                for f in graph.graph_def.library.function
                if any(n.op == "XlaCallModule" for n in f.node_def)
            )
            last = next(n for n in function.node_def if n.op == "XlaCallModule")
            for level in range(60):
                node = function.node_def.add()
                node.CopyFrom(last)
                node.name = f"again{level}"
                del node.input[:]
                node.input.extend([f"{last.name}:output:0"] * 3)
                last = node
            key = next(iter(function.ret))
            function.ret[key] = f"{last.name}:output:0"

        _edit(folder, change)
        # 61 calls, each of which takes the same result three times: 3^60 ways lead to the first.
        (signature,) = savedmodel.read(folder).signatures
        assert len(signature.functions) == 61

    @pytest.mark.parametrize("described", [True, False])
    def test_many_calls_and_many_gradients(self, folder, described):
        def change(graph):
            library = graph.graph_def.library
            function = next(
                f for f in library.function if any(n.op == "XlaCallModule" for n in f.node_def)
            )
            call = next(n for n in function.node_def if n.op == "XlaCallModule")
            if not described:
                del call.attr["_jax_call"], call.attr["_jax_exported"]
            wrapper = _wrapper(graph)
            key, name = next(iter(function.ret)), function.signature.output_arg[0].name
            del function.signature.output_arg[:], wrapper.signature.output_arg[:]
            function.ret.clear()
            assert key == name
            for number in range(1500):
                function.node_def.add().CopyFrom(call)
                function.node_def[-1].name = f"again{number}"
                function.signature.output_arg.add(name=f"o{number}", type=1)
                function.ret[f"o{number}"] = f"again{number}:output:0"
                library.registered_gradients.add(
                    registered_op_type=f"type{number}", gradient_func=function.signature.name
                )
            inner = next(n for n in wrapper.node_def if "Partitioned" in n.op)
            wrapper.ret.clear()
            fields = graph.object_graph_def.concrete_functions[wrapper.signature.name]
            fields = fields.output_signature.dict_value.fields
            spec = next(iter(fields.values()))
            for number in range(1500):
                wrapper.signature.output_arg.add(name=f"o{number}", type=1)
                wrapper.ret[f"o{number}"] = f"{inner.name}:output:{number}"
                fields[f"o{number}"].CopyFrom(spec)
            for name in [name for name in fields if not name.startswith("o") or "_" in name]:
                del fields[name]

        _edit(folder, change)
        # Each call looks for its gradient among all, and for what its result goes through.
        (signature,) = savedmodel.read(folder).signatures
        assert len(signature.functions) == 1500

    def test_functions_without_number(self, folder):
        def change(graph):
            library = graph.graph_def.library
            for level in range(14):
                _rotations(library, level)
            for node in graph.object_graph_def.nodes:
                if node.HasField("bare_concrete_function"):
                    name = node.bare_concrete_function.concrete_function_name
                    concrete = graph.object_graph_def.concrete_functions[name]
                    graph.object_graph_def.concrete_functions["f13"].CopyFrom(concrete)
                    node.bare_concrete_function.concrete_function_name = "f13"

        _edit(folder, change)
        _refused(folder, "more than 500,000 steps to follow its functions|has none of that name")

    def test_functions_that_assign_without_number(self, folder):
        def change(graph):
            library = graph.graph_def.library
            for level in range(40):
                function = library.function.add()
                function.signature.name = f"assigns{level}"
                function.signature.input_arg.add(name="handle", type=20)
                for number in range(2):
                    node = function.node_def.add(name=f"call{number}", input=["handle"])
                    node.op = "StatefulPartitionedCall" if level else "AssignVariableOp"
                    if level:
                        node.attr["f"].func.name = f"assigns{level - 1}"
                    else:
                        node.input.append("handle")
            wrapper = _wrapper(graph)
            node = wrapper.node_def.add(name="again", op="StatefulPartitionedCall")
            node.input.append(wrapper.signature.input_arg[0].name)
            node.attr["f"].func.name = "assigns39"

        _edit(folder, change)
        _refused(folder, "more than 500,000 steps to follow its functions")

    def test_names_that_are_there_twice(self, folder):
        _edit(folder, lambda graph: graph.graph_def.library.function.append(_wrapper(graph)))
        _refused(folder, "two functions of the name __inference")

    def test_nodes_that_are_there_twice(self, folder):
        def change(graph):
            function = _wrapper(graph)
            function.node_def.append(function.node_def[0])

        _edit(folder, change)
        _refused(folder, "has two tensors of the name")

    def test_children_that_are_there_twice(self, folder):
        def change(graph):
            root = graph.object_graph_def.nodes[0]
            root.children.append(root.children[0])

        _edit(folder, change)
        _refused(folder, "Object 0 of the object graph has two children of one name")

    @pytest.mark.parametrize("fan", [1, 2])
    def test_objects_in_a_circle(self, folder, fan):
        def change(graph):
            nodes = graph.object_graph_def.nodes
            (params,) = (c.node_id for c in nodes[0].children if c.local_name == "params")
            for number in range(fan):
                nodes[params].children.add(node_id=params, local_name=f"again{number}")

        _edit(folder, change)
        _refused(folder, "nested more than 200 deep|objects in its params")

    def test_objects_that_are_shared_again_and_again(self, folder):
        def change(graph):
            nodes = graph.object_graph_def.nodes
            (above,) = (c.node_id for c in nodes[0].children if c.local_name == "params")
            for _ in range(60):
                nodes.add().user_object.identifier = "trackable_dict_wrapper"
                for name in "ab":
                    nodes[above].children.add(node_id=len(nodes) - 1, local_name=f"x{name}")
                above = len(nodes) - 1

        _edit(folder, change)
        _refused(folder, "objects in its params")

    def test_many_gradients(self, folder):
        def change(graph):
            library = graph.graph_def.library
            function = next(f for f in library.function if "IdentityN" in str(f.node_def))
            (node,) = (n for n in function.node_def if n.op == "IdentityN")
            for order in range(3000):
                copy = library.function.add()
                copy.CopyFrom(function)
                copy.signature.name = f"gradient{order}"
                user = next(n for n in copy.node_def if n.op == "IdentityN")
                user.attr["_gradient_op_type"].s = f"type{order + 1}".encode()
                library.registered_gradients.add(
                    registered_op_type=f"type{order}", gradient_func=f"gradient{order}"
                )
            node.attr["_gradient_op_type"].s = b"type0"

        _edit(folder, change)
        _refused(folder, "gradients of over 64 orders")


def _rotations(library, level):
    """A function that calls the one below with its arguments in three other orders."""
    width = 14
    function = library.function.add()
    function.signature.name = f"f{level}"
    for index in range(width):
        function.signature.input_arg.add(name=f"a{index}", type=1)
    for index in range(3):
        function.signature.output_arg.add(name=f"o{index}", type=1)
        node = function.node_def.add(name=f"n{index}", op="StatefulPartitionedCall")
        node.attr["f"].func.name = f"f{level - 1}"
        order = list(range(width))
        order[level % width], order[(level + index) % width] = (
            order[(level + index) % width],
            order[level % width],
        )
        node.input.extend(f"a{position}" for position in order)
        function.ret[f"o{index}"] = f"n{index}:output:{index}"
    if not level:
        del function.node_def[:]
        for index in range(3):
            function.ret[f"o{index}"] = f"a{index}"


def _set_metadata(graph, text):
    graph.collection_def["jax_tf_bridge"].bytes_list.value[0] = text


CONTRADICTIONS = {
    "no such function": lambda g: g.object_graph_def.concrete_functions.clear(),
    "no functions": lambda g: g.graph_def.library.Clear(),
    "no captures": lambda g: [
        f.ClearField("bound_inputs") for f in g.object_graph_def.concrete_functions.values()
    ],
    "captures of nothing": lambda g: [
        f.bound_inputs.__setitem__(0, 10_000)
        for f in g.object_graph_def.concrete_functions.values()
        if f.bound_inputs
    ],
    "a negative capture": lambda g: [
        f.bound_inputs.__setitem__(0, -1)
        for f in g.object_graph_def.concrete_functions.values()
        if f.bound_inputs
    ],
    "no input signature": lambda g: [
        f.ClearField("canonicalized_input_signature")
        for f in g.object_graph_def.concrete_functions.values()
    ],
    "no output signature": lambda g: [
        f.ClearField("output_signature") for f in g.object_graph_def.concrete_functions.values()
    ],
    "a child that is not there": lambda g: setattr(
        g.object_graph_def.nodes[0].children[0], "node_id", 1 << 30
    ),
    "a negative child": lambda g: setattr(g.object_graph_def.nodes[0].children[0], "node_id", -1),
    "a node without inputs": lambda g: [
        n.ClearField("input") for f in g.graph_def.library.function for n in f.node_def
    ],
    "a result that is not there": lambda g: [
        f.ret.__setitem__(k, "x:output:99") for f in g.graph_def.library.function for k in f.ret
    ],
    "no results": lambda g: [f.ret.clear() for f in g.graph_def.library.function],
    "a huge position": lambda g: [
        f.ret.__setitem__(k, f.ret[k].split(":")[0] + ":output:" + "9" * 5000)
        for f in g.graph_def.library.function
        for k in f.ret
    ],
    "a negative position": lambda g: [
        f.ret.__setitem__(k, f.ret[k].split(":")[0] + ":output:-1")
        for f in g.graph_def.library.function
        for k in f.ret
    ],
    "no StableHLO": lambda g: setattr(_node(g).attr["module"], "s", b"module {}"),
    "another module": lambda g: setattr(
        _node(g).attr["module"], "s", _node(g).attr["module"].s + b"\0"
    ),
    "negative numbers": lambda g: setattr(_node(g).attr["version"], "i", -9),
    "metadata that are text": lambda g: _set_metadata(g, b'{"signatures": "x"}'),
    "huge dimensions": lambda g: [
        setattr(dim, "size", 1 << 62)
        for n in g.object_graph_def.nodes
        for dim in n.variable.shape.dim
    ],
}  # fmt: skip


@pytest.mark.parametrize("change", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_parts_that_do_not_fit(folder, change):
    _edit(folder, change)
    with pytest.raises(InteropError, match=r"\w"):
        bridge.inspect(folder)


def test_many_dimensions_and_slices(folder):
    from savedmodel.files.sstable import decode_table, encode_table
    from savedmodel.protos.schema import BundleEntryProto

    path = folder / INDEX
    records = {record.key: record.value for record in decode_table(path, path.read_bytes())}
    key = next(key for key in records if key.startswith(b"params"))
    entry = BundleEntryProto.FromString(records[key])
    entry.shape.dim.extend([entry.shape.dim[0]] * 200_000)
    for dim in entry.shape.dim:
        dim.size = (1 << 62) + 1
    path.write_bytes(encode_table({**records, key: entry.SerializeToString()}.items()))
    _refused(folder, "has shape")
    sliced = b"\x3a\x00" * 1_000_000
    path.write_bytes(encode_table({**records, key: records[key] + sliced}.items()))
    _refused(folder, "fill the memory|slices")


class TestAssets:
    @pytest.fixture
    def assets(self, folder):
        (folder / "assets/sub").mkdir(parents=True)
        (folder / "assets/vocabulary.txt").write_text("a")
        (folder / "assets/sub/more.txt").write_text("b")
        (folder / "assets.extra").mkdir()
        (folder / "assets.extra/tf_serving_warmup_requests").write_bytes(b"")
        return folder

    def _graph(self, *names):
        return MetaGraphDef(asset_file_def=[{"filename": name} for name in names])

    def test_all_of_them(self, assets):
        assert asset_files(assets, self._graph("vocabulary.txt", "sub/more.txt")) == (
            "assets.extra/tf_serving_warmup_requests",
            "assets/sub/more.txt",
            "assets/vocabulary.txt",
        )

    def test_none(self, folder):
        assert asset_files(folder, self._graph()) == ()

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("../saved_model.pb", "not a path inside of it"),
            ("sub/../../../secret", "not a path inside of it"),
            ("/etc/passwd", "the absolute path '/etc/passwd'"),
            ("", "not a path inside of it"),
            ("a//b", "not a path inside of it"),
            ("missing.txt", "lists an asset 'missing.txt', and has no assets/missing.txt"),
            ("nul\0", "not a path inside of it"),
            ("x" * 5000, "cannot be a file"),
        ],
    )
    def test_bad_names(self, assets, name, message):
        with pytest.raises(FormatError, match=message):
            asset_files(assets, self._graph(name))

    @pytest.mark.parametrize("place", ["assets/link", "assets/sub/link", "assets.extra/link"])
    @pytest.mark.parametrize("target", ["/etc/passwd", "/etc", "vocabulary.txt"])
    def test_links(self, assets, place, target):
        os.symlink(target, assets / place)
        with pytest.raises(FormatError, match="is a link"):
            asset_files(assets, self._graph())

    def test_a_linked_folder(self, folder, tmp_path):
        tmp_path.joinpath("elsewhere").mkdir()
        os.symlink(tmp_path / "elsewhere", folder / "assets")
        with pytest.raises(FormatError, match="assets is a link"):
            asset_files(folder, self._graph())

    def test_a_pipe(self, assets):
        os.mkfifo(assets / "assets/pipe")
        with pytest.raises(FormatError, match="pipe is not a regular file"):
            asset_files(assets, self._graph())


def test_what_is_read_is_small(folder):
    tracemalloc.start()
    savedmodel.read(folder)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 << 20
