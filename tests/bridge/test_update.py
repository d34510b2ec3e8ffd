"""New weights in a file whose program stays: what changes, what comes along, what is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
import bridge.serving
import savedmodel
from savedmodel.files.assets import PUBLICATION_FILE
from savedmodel.files.fingerprint import fingerprint_of_bytes
from savedmodel.files.folder import write_text
from savedmodel.manifest import compare_manifest, read_manifest
from savedmodel.read import read_proto
from savedmodel.variables import bundle_changes
from savedmodel.variables.tensor_bundle import read_index
from tests.bridge.c_programs import build, decode_tensor, encode_count, encode_request, encode_text
from tests.policy.source import ROOT
from xla_call_module.errors import DtypeError, FormatError, StructureError

State = namedtuple("State", "step layers key")
X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
PROTO, INDEX = "saved_model.pb", "variables/variables.index"


def state(seed, step=0):
    """A pytree of many kinds: a named tuple, lists, dicts, an integer and a typed key."""
    rng = np.random.default_rng(seed)
    layers = [
        {"w": jnp.asarray(rng.normal(size=(3, 3)), "float32"), "b": np.float32(rng.normal(size=3))}
        for _ in range(2)
    ]
    return State(np.int32(step), layers, jax.random.key(seed))


def predict(state, x):
    for layer in state.layers:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x + state.step + jax.random.uniform(state.key, (3,))


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A file with a manifest, warmup requests and an asset beside it."""
    path = tmp_path_factory.mktemp("update") / "model"
    bridge.save(predict, path, params=state(0), args="f32[b,3]", manifest=True)
    bridge.serving.add_warmup(path, (1, 2))
    (path / "assets.extra" / "words.txt").write_text("a b")
    return path


@pytest.fixture
def model(original, tmp_path):
    return shutil.copytree(original, tmp_path / "model")


def check(path, expected):
    """Both sides compute what the function does with these parameters."""
    np.testing.assert_allclose(bridge.load(path)(X), predict(expected, X), rtol=1e-6)
    loaded = tf.saved_model.load(path)
    result = loaded.signatures["serving_default"](x=tf.constant(X))["output_0"]
    np.testing.assert_allclose(result, predict(expected, X), rtol=1e-5)


class TestValues:
    """New values, all or some."""

    def test_all_of_them(self, original, tmp_path):
        new = state(1, step=3)
        updated = bridge.update(original, new, to=tmp_path / "new")
        check(updated, new)
        assert updated.kept == ()
        assert len(updated.updated) == 6
        assert updated.path == os.fspath(tmp_path / "new")
        files = (file for file in Path(updated).rglob("*") if file.is_file())
        assert updated.bytes == sum(file.stat().st_size for file in files)
        assert updated.signatures == bridge.update(original, new, to=tmp_path / "b").signatures
        # What was there before has nothing new.
        check(original, state(0))

    def test_a_part_of_them(self, model):
        old = state(0)
        values = {"layers": [None, {"b": np.ones(3, np.float32)}], "step": 7}
        updated = bridge.update(model, values)
        assert updated.updated == ("layers/1/b", "step")
        assert updated.kept == ("key", "layers/0/b", "layers/0/w", "layers/1/w")
        assert "new values for 2 of 6 variables; as they were: key, layers/0/b" in str(updated)
        layers = [old.layers[0], {"w": old.layers[1]["w"], "b": np.ones(3, np.float32)}]
        check(model, old._replace(step=7, layers=layers))
        key = bridge.load(model).params.key
        assert jax.random.key_data(key).tolist() == jax.random.key_data(old.key).tolist()

    def test_what_update_returns_to_load_is_what_was_passed(self, model):
        new = state(5, step=-2)
        bridge.update(model, new)
        loaded = bridge.load(model).params
        assert jax.tree.structure(loaded) == jax.tree.structure(new)
        plain = lambda tree: jax.tree.leaves(tree._replace(key=jax.random.key_data(tree.key)))  # noqa: E731
        jax.tree.map(np.testing.assert_array_equal, plain(loaded), plain(new))

    def test_a_key_as_its_data_and_a_narrowed_array(self, model):
        new = {"key": np.array([0, 9], np.uint32), "layers": [{"b": np.arange(3.0)}]}
        bridge.update(model, new)
        params = bridge.load(model).params
        assert params.layers[0]["b"].dtype == np.float32
        assert jax.random.key_data(params.key).tolist() == [0, 9]

    def test_paths_that_look_alike(self, tmp_path):
        params = {"a/b": np.float32(1), "a": {"b": np.float32(2)}}
        save = lambda p, x: p["a/b"] + 10 * p["a"]["b"] + x  # noqa: E731
        bridge.save(save, tmp_path / "m", params=params, args="f32[]")
        bridge.update(tmp_path / "m", {"a": {"b": np.float32(5)}})
        assert bridge.load(tmp_path / "m")(0.0) == 51
        bridge.update(tmp_path / "m", {"a/b": np.float32(3)})
        assert bridge.load(tmp_path / "m")(0.0) == 53

    @pytest.mark.parametrize("shards", [1, 3])
    def test_files_in_which_nothing_changes_are_linked(self, shards, tmp_path, monkeypatch):
        monkeypatch.setattr(bundle_changes, "_FEW_BYTES", 0)
        params = {name: np.full(1000, number, np.float32) for number, name in enumerate("abcd")}
        total = lambda p, x: sum(p.values()) + x  # noqa: E731
        bridge.save(total, tmp_path / "0", params=params, args="f32[]", num_shards=shards)
        for number in (1, 2, 3):
            old, new = tmp_path / str(number - 1), tmp_path / str(number)
            bridge.update(old, {"a": np.full(1000, 10.0 * number, np.float32)}, to=new)
            assert np.all(bridge.load(new)(0.0) == 6 + 10 * number)
            index = read_index(new / "variables" / "variables")
            files = {p.stat().st_ino for p in (old / "variables").glob("*.data*")}
            linked = [p for p in (new / "variables").glob("*.data*") if p.stat().st_ino in files]
            # From the second time on only the file of `a` is new.
            if number > 1 or shards > 1:
                assert len(linked) == index.num_shards - (1 if number > 1 else 2) > 0
            assert index.num_shards == len([*(new / "variables").glob("*.data*")])
        results = tf.saved_model.load(new).signatures["serving_default"](x=tf.constant(0.0))
        assert np.all(results["output_0"] == 36)

    def test_not_ever_more_files(self, tmp_path, monkeypatch):
        monkeypatch.setattr(bundle_changes, "_FEW_BYTES", 0)
        monkeypatch.setattr(bundle_changes, "MAX_KEPT_FILES", 3)
        params = {name: np.float32(number) for number, name in enumerate("abcdefgh")}
        bridge.save(lambda p, x: p["a"] + x, tmp_path / "m", params=params, args="f32[]")
        for name in params:
            bridge.update(tmp_path / "m", {name: np.float32(5)})
            assert read_index(tmp_path / "m/variables/variables").num_shards <= 5
        assert {float(v) for v in bridge.load(tmp_path / "m").params.values()} == {5.0}


class TestFolder:
    """The rest of the folder."""

    def test_the_program_is_the_same_file(self, original, tmp_path):
        bridge.update(original, state(1), to=tmp_path / "new")
        assert os.path.samefile(original / PROTO, tmp_path / "new" / PROTO)

    def test_everything_comes_along(self, model):
        before = (model / PROTO).read_bytes()
        bridge.update(model, {"step": 1})
        assert (model / PROTO).read_bytes() == before
        assert (model / "assets.extra" / "words.txt").read_text() == "a b"
        assert (model / "assets.extra" / "tf_serving_warmup_requests").is_file()

    def test_what_a_rollback_says_of_its_values_stays_behind(self, model, tmp_path):
        write_text(model / PUBLICATION_FILE, '{"copy_of": 1}')
        bridge.update(model, {"step": 1}, to=tmp_path / "new")
        assert not (tmp_path / "new" / PUBLICATION_FILE).exists()
        assert (tmp_path / "new" / "assets.extra" / "words.txt").exists()

    def test_the_manifest_is_that_of_the_new_files(self, original, tmp_path):
        bridge.save(predict, tmp_path / "m", params=state(0), args="f32[b,3]", manifest=True)
        np.savez(tmp_path / "new.npz", step=np.int32(4))
        bridge.update(tmp_path / "m", tmp_path / "new.npz")
        assert compare_manifest(tmp_path / "m") == ()
        request = read_manifest(tmp_path / "m").request["update"]
        assert request["updated"] == ["step"]
        assert request["params"] == "new.npz"
        assert len(request["params_sha256"]) == 64

    def test_a_file_that_is_not_as_its_manifest_says(self, tmp_path):
        bridge.save(predict, tmp_path / "m", params=state(0), args="f32[b,3]", manifest=True)
        manifest = tmp_path / "m/assets.extra/jax_tf_bridge_manifest.json"
        said = json.loads(manifest.read_text())
        said["files"][PROTO]["sha256"] = "0" * 64
        manifest.write_text(json.dumps(said))
        with pytest.raises(
            FormatError, match=r"saved_model\.pb of the source SavedModel .* its manifest"
        ):
            bridge.update(tmp_path / "m", {"step": 1})
        assert bridge.load(tmp_path / "m").params.step == 0

    def test_a_copy_where_there_are_no_links(self, original, tmp_path, monkeypatch):
        def refuse(*args, **kwargs):
            raise OSError(18, "Invalid cross-device link")

        monkeypatch.setattr(os, "link", refuse)
        bridge.update(original, state(1), to=tmp_path / "new")
        assert not os.path.samefile(original / PROTO, tmp_path / "new" / PROTO)
        assert (original / PROTO).read_bytes() == (tmp_path / "new" / PROTO).read_bytes()
        check(tmp_path / "new", state(1))

    def test_where_it_goes(self, model, tmp_path):
        (tmp_path / "new").mkdir()
        with pytest.raises(StructureError, match=r"new exists\. To do: pass overwrite=True"):
            bridge.update(model, {"step": 1}, to=tmp_path / "new")
        bridge.update(model, {"step": 1}, to=tmp_path / "new", overwrite=True)
        assert bridge.load(tmp_path / "new").params.step == 1
        with pytest.raises(StructureError, match=r"model is the file that is updated"):
            bridge.update(model, {"step": 2}, to=model)
        bridge.update(model, {"step": 2}, to=model, overwrite=True)
        assert bridge.load(model).params.step == 2
        with pytest.raises(StructureError, match=r"is inside of .*model, which is to be copied"):
            bridge.update(model, {"step": 1}, to=model / "inner")

    def test_a_link_stays_one(self, model, tmp_path):
        (tmp_path / "latest").symlink_to(model)
        bridge.update(tmp_path / "latest", {"step": 8})
        assert (tmp_path / "latest").is_symlink()
        assert bridge.load(model).params.step == 8

    def test_files_of_others_stay_where_it_takes_the_place(self, model):
        (model / "README.md").write_text("mine")
        bridge.update(model, {"step": 3})
        assert (model / "README.md").read_text() == "mine"


class TestTensorFlow:
    """What every loader sees, also of a file that TensorFlow has saved again."""

    def test_saved_again_by_tensorflow(self, model, tmp_path):
        loaded = tf.saved_model.load(model)
        signatures = {"serving_default": loaded.signatures["serving_default"]}
        tf.saved_model.save(loaded, tmp_path / "again", signatures=signatures)
        assert (tmp_path / "again" / "fingerprint.pb").is_file()
        new = state(3, step=1)
        updated = bridge.update(tmp_path / "again", new, to=tmp_path / "new")
        read = tf.saved_model.experimental.read_fingerprint
        old, found = (read(str(tmp_path / name)) for name in ("again", "new"))
        index = (tmp_path / "new" / INDEX).read_bytes()
        assert found.checkpoint_hash == fingerprint_of_bytes(index) != old.checkpoint_hash
        assert found.saved_model_checksum == old.saved_model_checksum
        assert found.singleprint().rpartition("/")[0] == old.singleprint().rpartition("/")[0]
        assert updated.kept == ()
        check(tmp_path / "new", new)
        loaded = tf.saved_model.load(tmp_path / "new")
        signatures = {"serving_default": loaded.signatures["serving_default"]}
        tf.saved_model.save(loaded, tmp_path / "last", signatures=signatures)
        check(tmp_path / "last", new)

    def test_a_session_and_the_c_api(self, model, tmp_path):
        new = state(4, step=2)
        bridge.update(model, new)
        graph = tf.Graph()
        with tf.compat.v1.Session(graph=graph) as session:
            loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(model))
            definition = loaded.signature_def["serving_default"]
            feed = {definition.inputs["x"].name: X}
            result = session.run(definition.outputs["output_0"].name, feed)
        np.testing.assert_allclose(result, predict(new, X), rtol=1e-5)
        request = encode_text(str(model)) + encode_request(definition, {"x": X})
        (tmp_path / "requests").write_bytes(encode_count(1) + request)
        program = build("load_and_run", tmp_path)
        subprocess.run([program, tmp_path / "requests", tmp_path / "answers"], check=True)
        with open(tmp_path / "answers", "rb") as file:
            assert file.read(4) == b"\0" * 4  # no error
            np.testing.assert_allclose(decode_tensor(file), predict(new, X), rtol=1e-5)


class TestForeign:
    """Files of other writers, by the names that they have."""

    @pytest.mark.parametrize("name", ["jax2tf", "keras", "bare_graph", "session_graph", "orbax"])
    def test_every_variable_by_its_key(self, foreign, name, tmp_path):
        folder = foreign(name).folder
        entries = {}
        if (folder / INDEX).exists():
            entries = read_index(folder / "variables" / "variables").entries
        keys = [k for k, e in entries.items() if e.dtype == 1 and not k.startswith("\0")]
        if not keys:
            with pytest.raises(StructureError, match="has no variables: its arrays are constants"):
                bridge.update(folder, {"w": 1.0}, to=tmp_path / "new")
            return
        rng = np.random.default_rng(0)
        new = {k: np.float32(rng.normal(size=entries[k].shape)) for k in keys}
        updated = bridge.update(folder, new, to=tmp_path / "new")
        assert updated.kept == ()
        assert (folder / PROTO).read_bytes() == (tmp_path / "new" / PROTO).read_bytes()
        reader = tf.train.load_checkpoint(str(tmp_path / "new/variables/variables"))
        for key, value in new.items():
            np.testing.assert_array_equal(reader.get_tensor(key), value)
        if read_proto(folder).meta_graphs[0].HasField("object_graph_def"):
            tf.saved_model.load(tmp_path / "new")

    def test_by_name_and_by_object_path(self, tmp_path):
        module = tf.Module()
        module.first = tf.Variable([1.0, 2.0], name="dense/kernel")
        module.more = [tf.Variable(3.0, name="twin"), tf.Variable(4.0, name="twin")]
        module.words = tf.Variable(["a", "b"], name="words")
        module.f = tf.function(
            lambda x: module.first * x + module.more[0] + 10 * module.more[1],
            input_signature=[tf.TensorSpec([], tf.float32)],
        )
        tf.saved_model.save(module, tmp_path / "m", signatures=module.f)
        for key in ("dense/kernel", "dense/kernel:0", "first",
                    "first/.ATTRIBUTES/VARIABLE_VALUE"):  # fmt: skip
            value = np.float32([len(key), 0])
            updated = bridge.update(tmp_path / "m", {key: value})
            assert updated.updated == ("dense/kernel",)
            assert tf.saved_model.load(tmp_path / "m").first.numpy().tolist() == value.tolist()
        with pytest.raises(StructureError, match=r"several variables of that name: more/0/\.ATT"):
            bridge.update(tmp_path / "m", {"twin": 1.0})
        bridge.update(tmp_path / "m", {"more": [None, 6.0], "first": np.float32([1, 1])})
        loaded = tf.saved_model.load(tmp_path / "m")
        assert loaded.f(tf.constant(2.0)).numpy().tolist() == [65.0, 65.0]
        assert loaded.words.numpy().tolist() == [b"a", b"b"]

    def test_keras_has_copies_of_the_variables_that_functions_take(self, tmp_path):
        keras = pytest.importorskip("keras")
        if keras.backend.backend() != "tensorflow":
            pytest.skip("it is the export of TensorFlow's backend")
        model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(2, name="dense")])
        model.export(tmp_path / "m", verbose=False)
        name = model.layers[0].kernel.path
        kernel = np.arange(6, dtype=np.float32).reshape(3, 2)
        assert bridge.update(tmp_path / "m", {name: kernel}).updated == (name,)
        loaded = tf.saved_model.load(tmp_path / "m")
        np.testing.assert_allclose(loaded.serve(X), X @ kernel, rtol=1e-6)

    def test_preprocessing_of_tensorflow_around_it(self, model, tmp_path):
        numbers = lambda text: tf.strings.to_number(tf.strings.split([text]).values)  # noqa: E731
        bridge.serving.compose(
            model,
            tmp_path / "composed",
            preprocess=lambda text: {"x": numbers(text)[None]},
            request={"text": tf.TensorSpec([], tf.string)},
        )
        new = state(6, step=1)
        assert bridge.update(tmp_path / "composed", new).kept == ()
        call = tf.saved_model.load(tmp_path / "composed").signatures["serving_default"]
        expected = predict(new, np.float32([[1, 2, 3]]))
        np.testing.assert_allclose(call(text=tf.constant("1 2 3"))["output_0"], expected, rtol=1e-5)


class TestState:
    """A file whose signatures assign its variables."""

    def test_what_a_step_assigns_is_updated_like_the_rest(self, tmp_path):
        def step(state, x):
            return {"w": state["w"] - x, "count": state["count"] + 1}, state["w"].sum()

        before = {"w": jnp.ones(3), "count": jnp.int32(0)}
        signatures = {"train": step, "predict": lambda state, x: state["w"] * x}
        bridge.save(signatures, tmp_path / "m", params=before, args="f32[3]", updates={"train": 0})
        model = tf.saved_model.load(tmp_path / "m")
        for _ in range(2):
            model.signatures["train"](x=tf.ones(3))
        tf.saved_model.save(model, tmp_path / "trained", signatures=dict(model.signatures))
        updated = bridge.update(tmp_path / "trained", {"w": jnp.full(3, 5.0)})
        assert (updated.updated, updated.kept) == (("w",), ("count",))
        model = tf.saved_model.load(tmp_path / "trained")
        assert float(model.signatures["train"](x=tf.ones(3))["output_0"]) == 15
        assert model.params["count"].numpy() == 3
        assert model.params["w"].numpy().tolist() == [4.0] * 3


class TestModules:
    """Modules that hold their parameters."""

    def test_nnx(self, tmp_path):
        nnx = pytest.importorskip("flax.nnx")
        old, new = (nnx.Linear(3, 2, rngs=nnx.Rngs(seed)) for seed in (0, 1))
        bridge.save(old, tmp_path / "m", args="f32[b,3]")
        assert bridge.update(tmp_path / "m", new).kept == ()
        np.testing.assert_allclose(bridge.load(tmp_path / "m")(X), new(X), rtol=1e-6)
        assert bridge.update(tmp_path / "m", nnx.state(old, nnx.Param)).kept == ()
        np.testing.assert_allclose(bridge.load(tmp_path / "m")(X), old(X), rtol=1e-6)

    def test_equinox(self, tmp_path):
        equinox = pytest.importorskip("equinox")
        old, new = (equinox.nn.MLP(3, 2, 4, 1, key=jax.random.key(seed)) for seed in (0, 1))
        bridge.save(old, tmp_path / "m", args="f32[3]")
        assert bridge.update(tmp_path / "m", new).kept == ()
        np.testing.assert_allclose(bridge.load(tmp_path / "m")(X[0]), new(X[0]), rtol=1e-6)

    def test_linen(self, tmp_path):
        linen = pytest.importorskip("flax.linen")
        dense = linen.Dense(2)
        old, new = (dense.init(jax.random.key(seed), X) for seed in (0, 1))
        bridge.save(dense, tmp_path / "m", params=old, args="f32[b,3]")
        assert bridge.update(tmp_path / "m", new).kept == ()
        np.testing.assert_allclose(bridge.load(tmp_path / "m")(X), dense.apply(new, X), rtol=1e-6)
        with pytest.raises(StructureError, match="does not hold its parameters"):
            bridge.update(tmp_path / "m", dense)


class TestParameterFiles:
    """The path of a file of parameters."""

    def test_npz_and_safetensors(self, model, tmp_path):
        np.savez(tmp_path / "a.npz", **{"layers/0/b": np.ones(3, np.float32), "step": np.int32(1)})
        assert bridge.update(model, tmp_path / "a.npz").updated == ("layers/0/b", "step")
        pytest.importorskip("safetensors")
        from safetensors.numpy import save_file

        save_file({"layers.1.b": np.full(3, 2, np.float32)}, tmp_path / "a.safetensors")
        assert bridge.update(model, str(tmp_path / "a.safetensors")).updated == ("layers/1/b",)
        params = bridge.load(model).params
        assert (params.layers[0]["b"][0], params.layers[1]["b"][0], params.step) == (1, 2, 1)

    def test_orbax(self, model, tmp_path):
        checkpoint = pytest.importorskip("orbax.checkpoint")
        new = {"layers": [{"b": np.ones(3, np.float32)}], "step": np.asarray(5, np.int32)}
        checkpoint.PyTreeCheckpointer().save(tmp_path / "orbax", new)
        assert bridge.update(model, tmp_path / "orbax").updated == ("layers/0/b", "step")

    def test_one_that_is_not_there(self, model, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"nowhere\.npz"):
            bridge.update(model, tmp_path / "nowhere.npz")


class TestRefused:
    """What is no value of the file; the file stays as it is."""

    @pytest.mark.parametrize(
        ("new", "error", "match"),
        [
            ({"layers": [{"v": 1.0}]}, StructureError, r"'layers/0/v'\. .* 'layers/0/w'"),
            ({"x": 1, "y": 2, "step": 0}, StructureError, "2 leaves .* no variable: 'x', 'y'"),
            ({"layers": [{}, {}, {"b": X}]}, StructureError, "no variable: 'layers/2/b'"),
            (3.0, StructureError, "no variable: 'params'"),
            ({}, StructureError, "params has no arrays"),
            ({"layers": [{"b": np.ones(4, np.float32)}]}, StructureError,
             r"layers/0/b as float32\[4\], and .* layers/0/b float32\[3\]\. To do"),
            ({"layers": [{"b": jnp.ones(3, jnp.bfloat16)}]}, DtypeError,
             r"layers/0/b as bfloat16\[3\], .* float32\[3\]\. To do: cast it to float32"),
            ({"step": 1.5}, DtypeError, r"step as float64\[\], and .* int32\[\]"),
            ({"key": jax.random.key(0, impl="rbg")}, DtypeError, "key as key<rbg>, .* key<fry>"),
            ({"step": "two"}, StructureError, "The parameter step is a str"),
            ({"step": 1, "params/step": 1}, StructureError, "Two leaves .* variable step"),
        ],
    )  # fmt: skip
    def test_values(self, original, new, error, match):
        before = {f: f.read_bytes() for f in original.rglob("*") if f.is_file()}
        with pytest.raises(error, match=match):
            bridge.update(original, new)
        assert {f: f.read_bytes() for f in original.rglob("*") if f.is_file()} == before
        assert [p.name for p in original.parent.iterdir()] == ["model"]

    def test_arrays_of_another_framework_are_not_passed_over(self, model):
        with pytest.raises(StructureError, match=r"The parameter step is a .*Tensor"):
            bridge.update(model, {"step": tf.constant(3), "key": state(0).key})

    def test_a_function_without_parameters(self, tmp_path):
        bridge.save(jnp.sin, tmp_path / "m", args="f32[]")
        with pytest.raises(StructureError, match="m has no variables: its arrays are constants"):
            bridge.update(tmp_path / "m", {"w": 1.0})

    def test_what_is_no_savedmodel(self, tmp_path):
        with pytest.raises(FormatError, match="nowhere does not exist"):
            bridge.update(tmp_path / "nowhere", {"w": 1.0})
        with pytest.raises(StructureError, match="gs://b/m is an address"):
            bridge.update("gs://b/m", {"w": 1.0})

    def test_damage_in_what_is_copied(self, model):
        index = read_index(model / "variables/variables")
        key = next(key for key in index.entries if "layers" in key)
        data = model / "variables/variables.data-00000-of-00001"
        content = bytearray(data.read_bytes())
        content[index.entries[key].offset] ^= 1
        data.write_bytes(content)
        with pytest.raises(FormatError, match="the checksum of the"):
            bridge.update(model, {"step": 1})
        assert data.read_bytes() == content


class TestAtOnce:
    """Several writers, and one that is killed."""

    def test_updates_of_different_parts_lose_none(self, tmp_path):
        params = {f"v{number}": np.float32(0) for number in range(8)}
        bridge.save(lambda p, x: p["v0"] + x, tmp_path / "m", params=params, args="f32[]")

        def put(number):
            bridge.update(tmp_path / "m", {f"v{number}": np.float32(number + 1)})

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(put, range(8)))
        loaded = bridge.load(tmp_path / "m").params
        assert {k: float(v) for k, v in loaded.items()} == {f"v{n}": n + 1.0 for n in range(8)}
        assert [path.name for path in tmp_path.iterdir()] == ["m"]

    def test_a_model_that_comes_meanwhile_is_not_replaced_by_the_old_one(
        self, tmp_path, monkeypatch
    ):
        params = {"a": np.float32(1), "b": np.float32(2)}
        save = lambda f: bridge.save(  # noqa: E731
            f, tmp_path / "m", params=params, args="f32[]", overwrite=True
        )
        save(lambda p, x: p["a"] + x)
        rewrite, calls = sys.modules["bridge.update"].__dict__["rewrite_variables"], []

        def slow(*args, **options):
            if not calls:
                save(lambda p, x: p["a"] * 100 + p["b"] + x)
            calls.append(1)
            return rewrite(*args, **options)

        monkeypatch.setitem(sys.modules["bridge.update"].__dict__, "rewrite_variables", slow)
        bridge.update(tmp_path / "m", {"a": np.float32(3)})
        assert len(calls) == 2
        assert bridge.load(tmp_path / "m")(0.0) == 302

    def test_a_killed_one_leaves_the_old_values(self, model):
        code = (
            "import sys, time, bridge\n"
            "from savedmodel.variables import bundle_writer\n"
            "write = bundle_writer._write_tensor\n"
            "def hang(*args):\n"
            "    print('here', flush=True)\n"
            "    time.sleep(600)\n"
            "bundle_writer._write_tensor = hang\n"
            "bridge.update(sys.argv[1], {'step': 9})\n"
        )
        command = [sys.executable, "-c", code, str(model)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "here\n"
            process.send_signal(signal.SIGKILL)
        assert bridge.load(model).params.step == 0
        (left,) = [path for path in model.parent.iterdir() if path != model]
        os.utime(left, (0, 0))
        bridge.update(model, {"step": 4})
        assert bridge.load(model).params.step == 4
        assert [path.name for path in model.parent.iterdir()] == ["model"]


def test_sharded_arrays(tmp_path):
    """On one device a sharded array is an array; a process of its own has eight."""
    code = (
        "import sys, jax, numpy as np, bridge\n"
        "from jax.sharding import NamedSharding, PartitionSpec as P\n"
        "mesh = jax.make_mesh((4, 2), ('x', 'y'))\n"
        "old = {'w': np.zeros((8, 4), np.float32), 'b': np.zeros(4, np.float32)}\n"
        "bridge.save(lambda p, x: x @ p['w'] + p['b'], sys.argv[1], params=old, args='f32[b,8]')\n"
        "w = np.arange(32, dtype=np.float32).reshape(8, 4)\n"
        "new = {'w': jax.device_put(w, NamedSharding(mesh, P('x', 'y')))}\n"
        "bridge.update(sys.argv[1], new)\n"
        "assert np.array_equal(bridge.load(sys.argv[1]).params['w'], w)\n"
        "bridge.update(sys.argv[1], {'b': np.ones(4, np.float32)})\n"
        "assert np.array_equal(bridge.load(sys.argv[1]).params['w'], w)\n"
        "bridge.update(sys.argv[1], {'w': w + 1})\n"
        "assert np.array_equal(bridge.load(sys.argv[1]).params['w'], w + 1)\n"
        "bridge.update(sys.argv[1], new)\n"
    )
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", code, str(tmp_path / "m")]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **flags}, check=True)
    variable = tf.saved_model.load(tmp_path / "m").params["w"]
    np.testing.assert_array_equal(variable, np.arange(32).reshape(8, 4))
    assert len(savedmodel.read(tmp_path / "m").variables) == 2
