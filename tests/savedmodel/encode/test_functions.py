"""The protos of files: what holds in each of them whether or not TensorFlow checks it."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from tensorflow.core.framework import graph_pb2
from tensorflow.python.trackable import trackable_utils

from savedmodel.encode.functions import write_functions
from savedmodel.encode.graph import write_graph
from savedmodel.encode.objects import write_objects
from savedmodel.model import SavedModel, Variable
from savedmodel.protos.schema import FunctionDefLibrary, TrackableObjectGraph
from savedmodel.protos.structures import Leaf, as_dict
from savedmodel.variables.bundle_reader import read_strings
from savedmodel.variables.tensor_bundle import read_index
from tests.bridge.models import CASES
from tests.bridge.pytrees import read_meta_graph
from xla_call_module.dtypes import dtype_from_name

FLOAT = dtype_from_name("float32", where="the test")
CAPTURING = {"StatefulPartitionedCall", "PartitionedCall"}


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / request.param.name
    request.param.save(path)
    return path


@pytest.fixture(scope="module")
def meta_graph(folder):
    return read_meta_graph(folder)


def _node_of(reference):
    return reference.lstrip("^").partition(":")[0]


class TestFunctions:
    """The FunctionDefs."""

    def test_names_are_those_of_traced_functions(self, meta_graph):
        names = [function.signature.name for function in meta_graph.graph_def.library.function]
        assert len(set(names)) == len(names)
        assert all(re.fullmatch(r"__inference_\w+_\d+", name) for name in names)

    def test_names_inside_are_unique_in_any_case(self, meta_graph):
        """As they must be once the function is a graph again."""
        for function in meta_graph.graph_def.library.function:
            names = [argument.name for argument in function.signature.input_arg]
            names += [node.name for node in function.node_def]
            assert Counter(name.lower() for name in names).most_common(1)[0][1] == 1

    def test_whatever_is_referred_to_is_there(self, meta_graph):
        library = meta_graph.graph_def.library
        functions = {function.signature.name for function in library.function}
        for function in library.function:
            known = {argument.name for argument in function.signature.input_arg}
            known |= {node.name for node in function.node_def}
            outputs = {argument.name for argument in function.signature.output_arg}
            assert function.ret.keys() == outputs
            references = [name for node in function.node_def for name in node.input]
            assert {_node_of(name) for name in [*references, *function.ret.values()]} <= known
            called = {
                node.attr["f"].func.name for node in function.node_def if node.op in CAPTURING
            }
            assert called <= functions
        for gradient in library.registered_gradients:
            assert gradient.gradient_func in functions

    def test_every_gradient_is_registered_and_used(self, meta_graph):
        library = meta_graph.graph_def.library
        registered = {gradient.registered_op_type for gradient in library.registered_gradients}
        used = [
            node.attr["_gradient_op_type"].s.decode()
            for function in library.function
            for node in function.node_def
            if "_gradient_op_type" in node.attr
        ]
        assert len(used) == len(set(used))
        assert set(used) == registered

    def test_concrete_functions_take_their_arguments_and_captures(self, meta_graph):
        functions = {f.signature.name: f for f in meta_graph.graph_def.library.function}
        for name, concrete in meta_graph.object_graph_def.concrete_functions.items():
            specs = _count_specs(concrete.canonicalized_input_signature)
            results = _count_specs(concrete.output_signature)
            assert len(functions[name].signature.input_arg) == specs + len(concrete.bound_inputs)
            assert len(functions[name].signature.output_arg) == results


def _count_specs(value):
    """The tensors in a structured signature."""
    match value.WhichOneof("kind"):
        case "tensor_spec_value":
            return 1
        case "tuple_value":
            return sum(map(_count_specs, value.tuple_value.values))
        case "list_value":
            return sum(map(_count_specs, value.list_value.values))
        case "dict_value":
            return sum(map(_count_specs, value.dict_value.fields.values()))
        case "named_tuple_value":
            return sum(_count_specs(pair.value) for pair in value.named_tuple_value.values)
    return 0


class TestObjects:
    """The two object graphs, and the checkpoint."""

    def test_both_graphs_have_the_same_nodes(self, meta_graph, folder):
        saved = meta_graph.object_graph_def.nodes
        index = read_index(folder / "variables" / "variables")
        (text,) = read_strings(index, "_CHECKPOINTABLE_OBJECT_GRAPH")
        tracked = TrackableObjectGraph.FromString(text).nodes
        # Captured tensors have no values, and come last.
        kinds = [node.WhichOneof("kind") for node in saved]
        assert set(kinds[len(tracked) :]) <= {"captured_tensor"}
        keys = []
        for ours, theirs in zip(saved, tracked, strict=False):
            assert [(child.node_id, child.local_name) for child in ours.children] == [
                (child.node_id, child.local_name) for child in theirs.children
            ]
            assert (ours.WhichOneof("kind") == "variable") == bool(theirs.attributes)
            keys += [attribute.checkpoint_key for attribute in theirs.attributes]
        assert sorted([*keys, "_CHECKPOINTABLE_OBJECT_GRAPH"]) == sorted(index.entries)

    @given(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=4, unique=True))
    def test_keys_are_those_of_tensorflow(self, names):
        variables = tuple(Variable(name, FLOAT, ()) for name in names)
        params = as_dict({name: Leaf(index) for index, name in enumerate(names)})
        model = SavedModel((), variables, params)
        objects = write_objects(model, [], [])
        assert objects.keys == tuple(
            f"params/{trackable_utils.escape_local_name(name)}/.ATTRIBUTES/VARIABLE_VALUE"
            for name in names
        )

    @given(st.lists(st.text(max_size=6), min_size=1, max_size=6, unique=True))
    def test_variable_names_are_name_scopes_of_tensorflow(self, names):
        variables = tuple(Variable(name, FLOAT, ()) for name in names)
        params = as_dict({str(index): Leaf(index) for index in range(len(names))})
        objects = write_objects(SavedModel((), variables, params), [], [])
        found = [node.variable.name for node in objects.saved.nodes if node.HasField("variable")]
        assert len(set(found)) == len(names)
        for name in found:
            with tf.Graph().as_default():
                assert tf.Variable(0.0, name=name).name == f"{name}:0"


class TestSessionGraph:
    """The graph that TensorFlow Serving runs."""

    def test_names_are_unique_in_any_case(self, meta_graph):
        names = [node.name.lower() for node in meta_graph.graph_def.node]
        assert len(set(names)) == len(names)

    def test_whatever_is_referred_to_is_there(self, meta_graph):
        known = {node.name for node in meta_graph.graph_def.node}
        saver = meta_graph.saver_def
        references = [name for node in meta_graph.graph_def.node for name in node.input]
        references += [saver.filename_tensor_name, saver.save_tensor_name, saver.restore_op_name]
        references += meta_graph.collection_def["saved_model_main_op"].node_list.value
        for definition in meta_graph.signature_def.values():
            references += [info.name for info in definition.inputs.values()]
            references += [info.name for info in definition.outputs.values()]
        assert {_node_of(name) for name in references} <= known

    @given(
        st.lists(
            st.sampled_from(["init", "Init", "saver_filename", "save/prefix", "restore", "a", "A"])
            | st.text(max_size=5),
            max_size=6,
            unique=True,
        )
    )
    def test_any_names_of_variables(self, names):
        """TensorFlow's importer checks names and dtypes of the whole graph."""
        variables = [Variable(name, FLOAT, (2,)) for name in names]
        written = write_graph(variables, [f"key{i}" for i in range(len(names))], [])
        graph_def = graph_pb2.GraphDef.FromString(written.proto.SerializeToString())
        with tf.Graph().as_default() as graph:
            tf.graph_util.import_graph_def(graph_def, name="")
        assert graph.get_operation_by_name("init").type == "NoOp"
        assert graph.get_operation_by_name(written.saver.restore_op_name).type == "NoOp"
        shared = [op.get_attr("shared_name") for op in graph.get_operations()
                  if op.type == "VarHandleOp"]  # fmt: skip
        assert len(set(shared)) == len(names)


def test_a_saver_of_its_own_saves_what_was_changed(tmp_path):
    """`saver_def` both restores the checkpoint and writes one, as TensorFlow 1 programs do."""
    case = next(case for case in CASES if case.name == "several")
    case.save(tmp_path / "m")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], str(tmp_path / "m"))
        handles = [op for op in session.graph.get_operations() if op.type == "VarHandleOp"]
        (handle,) = [op for op in handles if op.name == "w"]
        value = np.full((3, 2), 5, np.float32)
        session.run(tf.raw_ops.AssignVariableOp(resource=handle.outputs[0], value=value))
        saver = meta_graph.saver_def
        feeds = {saver.filename_tensor_name: str(tmp_path / "checkpoint")}
        assert session.run(saver.save_tensor_name, feeds) == str(tmp_path / "checkpoint").encode()
        session.run(tf.raw_ops.AssignVariableOp(resource=handle.outputs[0], value=0 * value))
        session.run(saver.restore_op_name, feeds)
        read = tf.raw_ops.ReadVariableOp(resource=handle.outputs[0], dtype=tf.float32)
        np.testing.assert_array_equal(session.run(read), value)
    names = dict(tf.train.list_variables(str(tmp_path / "checkpoint")))
    assert names["params/w/.ATTRIBUTES/VARIABLE_VALUE"] == [3, 2]


def test_the_library_is_written_into_the_message_that_it_is_for():
    """Modules are large, and a copy of the library would double them."""
    library = FunctionDefLibrary()
    written, signatures = write_functions(SavedModel(()), library)
    assert written.proto is library
    assert signatures == []
