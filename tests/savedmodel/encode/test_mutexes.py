"""Functions that change variables: whole for XLA or under a mutex, from the one to the other."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
import savedmodel
from savedmodel.encode.mutexes import mutex_name, to_compiled, to_mutexes
from savedmodel.read import read_proto


def count(state, x):
    return {"n": state["n"] + 1}, x + state["n"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mutexes")
    for operations in ("xla", "tensorflow"):
        params = {"n": jnp.zeros(())}
        bridge.save(count, folder / operations, params=params, args="f32[b]", updates=0,
                    operations=operations)  # fmt: skip
    bridge.retarget(folder / "xla", to=folder / "to_tensorflow", operations="tensorflow")
    bridge.retarget(folder / "tensorflow", to=folder / "to_xla", operations="xla")
    bridge.retarget(folder / "to_tensorflow", to=folder / "and_back", operations="xla")
    return folder


def _graph(path):
    return read_proto(path).meta_graphs[0].graph_def


def _operations(graph):
    return {node.op for function in graph.library.function for node in function.node_def}


@pytest.mark.parametrize("name", ["xla", "to_xla", "and_back"])
def test_modules_are_compiled_whole(files, name):
    graph = _graph(files / name)
    assert _operations(graph) & {"XlaCallModule", "MutexLock"} == {"XlaCallModule"}
    compiled = [f for f in graph.library.function if f.attr["_XlaMustCompile"].b]
    assert len(compiled) == 2  # the step, and what a session saves


@pytest.mark.parametrize("name", ["tensorflow", "to_tensorflow"])
def test_operations_hold_a_mutex(files, name):
    graph = _graph(files / name)
    assert _operations(graph) & {"XlaCallModule", "MutexLock"} == {"MutexLock"}
    assert b"_XlaMustCompile" not in graph.SerializeToString()


@pytest.mark.parametrize("name", ["xla", "tensorflow", "to_tensorflow", "to_xla", "and_back"])
def test_each_counts(files, name):
    loaded = tf.saved_model.load(files / name)
    found = [loaded(tf.ones(2)).numpy()[0] for _ in range(3)]
    np.testing.assert_array_equal(found, [1, 2, 3])


@pytest.mark.parametrize("name", ["to_xla", "and_back"])
def test_it_is_the_same_file_again(files, name):
    found, wanted = (savedmodel.read(files / one).signatures for one in (name, "xla"))
    assert [s.function.assigned for s in found] == [s.function.assigned for s in wanted]
    size = [len(_graph(files / one).library.function) for one in (name, "xla")]
    assert size[0] == size[1]


def test_there_and_back_changes_nothing(files):
    graph = _graph(files / "xla")
    before = graph.SerializeToString(deterministic=True)
    to_mutexes(graph, "a mutex")
    assert "MutexLock" in _operations(graph)
    to_compiled(graph)
    assert graph.SerializeToString(deterministic=True) == before


def test_other_modules_have_another_mutex():
    assert mutex_name([b"a", b"b"]) == mutex_name([b"ab"]) != mutex_name([b"ba"])
