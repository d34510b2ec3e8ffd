"""The protos of files: what holds in each of them whether or not TensorFlow checks it."""

from __future__ import annotations

import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from tensorflow.core.framework import graph_pb2
from tensorflow.python.trackable import trackable_utils

from savedmodel.encode.graph import write_graph
from savedmodel.encode.objects import write_objects
from savedmodel.model import SavedModel, Variable
from savedmodel.protos.structures import Leaf, as_dict
from xla_call_module.dtypes import dtype_from_name

FLOAT = dtype_from_name("float32", where="the test")


class TestObjects:
    """The two object graphs, and the checkpoint."""

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
