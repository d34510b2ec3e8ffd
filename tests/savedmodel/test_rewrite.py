"""`rewrite_nodes`: other calls in the nodes, and everything else as it was."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil

import jax
import numpy as np
import pytest

import bridge
import savedmodel
from savedmodel import rewrite
from savedmodel.read import read_proto
from savedmodel.rewrite import rewrite_nodes
from xla_call_module.checks import PLATFORM
from xla_call_module.errors import FormatError, StructureError, VersionError
from xla_call_module.node import OP

PARAMS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}
DATA = "variables/variables.data-00000-of-00001"
# A field of number 1000 that no schema has.
UNKNOWN = b"\xc2\x3e\x05hello"


def _same(call):
    return call


def _without_platform_check(call):
    return dataclasses.replace(call, disabled_checks=(PLATFORM,))


@pytest.fixture(scope="module")
def exported():
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 2"), np.float32)
    return jax.export.export(jax.jit(lambda params, x: x @ params["w"]))(PARAMS, spec)


@pytest.fixture
def folder(exported, tmp_path):
    bridge.save(exported, tmp_path / "model", params=PARAMS, gradient_order=1)
    return tmp_path / "model"


def _nodes(proto):
    graphs = [meta_graph.graph_def for meta_graph in proto.meta_graphs]
    bodies = [g.node for g in graphs] + [f.node_def for g in graphs for f in g.library.function]
    return [node for body in bodies for node in body if node.op == OP]


def test_the_same_calls_give_the_same_bytes(folder, tmp_path):
    assert rewrite_nodes(folder, tmp_path / "new", _same) == 2
    old, new = (place / "saved_model.pb" for place in (folder, tmp_path / "new"))
    assert new.read_bytes() == old.read_bytes()  # its checksum, too


@pytest.mark.parametrize("name", ["jax2tf", "keras", "bare_graph", "session_graph", "orbax"])
def test_only_the_attribute_changes_in_a_foreign_file(foreign, name, tmp_path):
    folder = foreign(name).folder
    count = rewrite_nodes(folder, tmp_path / "new", _without_platform_check)
    old, new = read_proto(folder), read_proto(tmp_path / "new")
    assert len(_nodes(old)) == count > 0
    for node in _nodes(new):
        assert list(node.attr["disabled_checks"].list.s) == [b"platform"]
    for node in _nodes(old) + _nodes(new):
        node.attr["disabled_checks"].Clear()
    _name_absent_gradients(old)
    assert old == new


def _name_absent_gradients(proto):
    """The other change: numbers of gradients that are not in the file mean nothing elsewhere."""
    for meta_graph in proto.meta_graphs:
        library = meta_graph.graph_def.library
        saved = {gradient.registered_op_type for gradient in library.registered_gradients}
        for node in (node for function in library.function for node in function.node_def):
            if "_gradient_op_type" in node.attr:
                name = node.attr["_gradient_op_type"].s.decode()
                assert name.startswith("CustomGradient-")
                if name not in saved:
                    node.attr["_gradient_op_type"].s = b"CustomGradient-not-in-this-file"


def test_a_node_in_the_main_graph_is_found(foreign, tmp_path):
    places = []

    def refuse(call):
        places.append(call.name)
        raise VersionError("too old")

    match = r"saved_model\.pb, node XlaCallModule of the main graph: too old"
    with pytest.raises(VersionError, match=match):
        rewrite_nodes(foreign("session_graph").folder, tmp_path / "new", refuse)
    assert places == ["XlaCallModule"]
    assert not (tmp_path / "new").exists()


def test_unknown_fields_are_kept(folder, tmp_path):
    proto = read_proto(folder)
    (meta_graph,) = proto.meta_graphs
    for message in (_nodes(proto)[0], meta_graph.meta_info_def, meta_graph.object_graph_def):
        message.MergeFromString(UNKNOWN)
    (folder / "saved_model.pb").write_bytes(proto.SerializeToString() + UNKNOWN)
    rewrite_nodes(folder, tmp_path / "new", _without_platform_check)
    assert (tmp_path / "new" / "saved_model.pb").read_bytes().count(UNKNOWN) == 4


def test_other_files_are_linked(folder, tmp_path):
    for name in ("assets/words.txt", "assets.extra/a/b", "debug/info.pb", "README"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "empty").mkdir()
    for name in ("fingerprint.pb", "saved_model.pbtxt"):
        (folder / name).write_text("of the old bytes")
    rewrite_nodes(folder, tmp_path / "new", _same)
    old, new = (
        {str(file.relative_to(place)) for file in place.rglob("*")}
        for place in (folder, tmp_path / "new")
    )
    assert new == old - {"fingerprint.pb", "saved_model.pbtxt"}
    for name in (DATA, "assets/words.txt", "assets.extra/a/b"):
        assert os.path.samefile(folder / name, tmp_path / "new" / name)
    assert not os.path.samefile(folder / "saved_model.pb", tmp_path / "new" / "saved_model.pb")


def test_other_files_are_copied_where_links_are_not_possible(folder, tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(rewrite.os, "link", refuse)
    rewrite_nodes(folder, tmp_path / "new", _same)
    assert not os.path.samefile(folder / DATA, tmp_path / "new" / DATA)
    assert (folder / DATA).read_bytes() == (tmp_path / "new" / DATA).read_bytes()


def test_a_link_to_a_file_is_its_file(folder, tmp_path):
    (folder / DATA).rename(folder / "blob")
    (folder / DATA).symlink_to(folder / "blob")
    rewrite_nodes(folder, tmp_path / "new", _same)
    assert not (tmp_path / "new" / DATA).is_symlink()
    assert os.path.samefile(tmp_path / "new" / DATA, folder / "blob")


@pytest.mark.parametrize("name", [DATA, "assets/vocabulary.txt", "more.txt"])
def test_a_link_to_a_file_elsewhere_is_not_handed_on(folder, tmp_path, name):
    (tmp_path / "secret").write_text("secret")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "secret")
    with pytest.raises(FormatError, match=r"is a link"):
        rewrite_nodes(folder, tmp_path / "new", _same)
    assert not (tmp_path / "new").exists()


def test_in_place(folder):
    before = (folder / DATA).read_bytes()
    rewrite_nodes(folder, folder, _without_platform_check, overwrite=True)
    assert (folder / DATA).read_bytes() == before
    function = savedmodel.read(folder).default.function
    assert [call.disabled_checks for call in function.chain] == [(PLATFORM,)] * 2


def test_metadata_are_merged(folder, tmp_path):
    rewrite_nodes(folder, tmp_path / "new", _same, metadata=lambda: {"tensorflow": "2.99"})
    old, new = savedmodel.read(folder).metadata, savedmodel.read(tmp_path / "new").metadata
    assert new == {**old, "tensorflow": "2.99"} != old
    assert read_proto(tmp_path / "new").meta_graphs[0].meta_info_def.tensorflow_version == "2.99"


def test_every_graph_is_gone_through_and_equal_calls_are_changed_once(folder, tmp_path):
    proto = read_proto(folder)
    proto.meta_graphs.append(proto.meta_graphs[0])
    (folder / "saved_model.pb").write_bytes(proto.SerializeToString())
    calls = []

    def change(call):
        calls.append(call)
        return _without_platform_check(call)

    assert rewrite_nodes(folder, tmp_path / "new", change) == 4
    assert len(calls) == len(set(calls)) == 2
    first, second = read_proto(tmp_path / "new").meta_graphs
    assert first == second


def _other_results(call):
    return dataclasses.replace(call, results=call.results[:0])


def test_a_call_that_does_not_fit(folder, tmp_path):
    with pytest.raises(StructureError, match=r"node XlaCallModule of function .*; the call that"):
        rewrite_nodes(folder, tmp_path / "new", _other_results)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_inside_of_itself(folder, overwrite):
    with pytest.raises(StructureError, match="is inside of"):
        rewrite_nodes(folder, folder / "assets" / "new", _same, overwrite=overwrite)


def test_the_target_exists(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "new")
    with pytest.raises(StructureError, match="new exists"):
        rewrite_nodes(folder, tmp_path / "new", _without_platform_check)


def test_what_is_no_file(folder, tmp_path):
    (folder / "assets").symlink_to(tmp_path)
    with pytest.raises(FormatError, match=r"assets is a link"):
        rewrite_nodes(folder, tmp_path / "new", _same)
    (folder / "assets").unlink()
    os.mkfifo(folder / "pipe")
    with pytest.raises(FormatError, match=r"pipe is neither a file nor a folder"):
        rewrite_nodes(folder, tmp_path / "new", _same)


def test_a_link_that_leads_nowhere(folder, tmp_path):
    (folder / "gone").symlink_to(tmp_path / "nothing")
    with pytest.raises(FormatError, match=r"gone is neither a file nor a folder"):
        rewrite_nodes(folder, tmp_path / "new", _same)


def test_no_node(folder, tmp_path):
    (folder / "saved_model.pb").write_bytes(b"")
    with pytest.raises(FormatError, match="has no XlaCallModule node"):
        rewrite_nodes(folder, tmp_path / "new", _same)


def test_damage(folder, tmp_path):
    (folder / "saved_model.pb").write_bytes(b"\xff\xff")
    with pytest.raises(FormatError, match=r"saved_model\.pb is not a SavedModel message"):
        rewrite_nodes(folder, tmp_path / "new", _same)
    (folder / "saved_model.pb").rename(folder / "saved_model.cpb")
    with pytest.raises(FormatError, match="a message in parts"):
        rewrite_nodes(folder, tmp_path / "new", _same)
    (folder / "saved_model.cpb").unlink()
    with pytest.raises(FormatError, match=r"has no saved_model\.pb"):
        rewrite_nodes(folder, tmp_path / "new", _same)


def test_damaged_metadata(folder, tmp_path):
    proto = read_proto(folder)
    proto.meta_graphs[0].collection_def["jax_tf_bridge"].bytes_list.value[0] = json.dumps(
        1
    ).encode()
    (folder / "saved_model.pb").write_bytes(proto.SerializeToString())
    with pytest.raises(FormatError, match="metadata of the SavedModel are damaged"):
        rewrite_nodes(folder, tmp_path / "new", _same)


def test_an_address(tmp_path):
    with pytest.raises(StructureError, match="gs://bucket/model is an address"):
        rewrite_nodes("gs://bucket/model", tmp_path / "new", _same)
