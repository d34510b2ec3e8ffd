"""`bridge.load`: a SavedModel is a JAX function again, with all that its `Exported` had."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import enable_x64, export

import bridge
import savedmodel
from tests.bridge.models import BY_NAME, CASES
from tests.bridge.pytrees import physical
from tests.policy.source import PACKAGES
from xla_call_module import from_exported, retarget
from xla_call_module.errors import (
    DtypeError,
    FormatError,
    InteropError,
    PlatformError,
    StructureError,
)
from xla_call_module.stablehlo.modules import serialize_module

W = np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)
X = np.linspace(0, 1, 12, dtype=np.float32).reshape(4, 3)
N = np.arange(4, dtype=np.int32)
LARGE = np.linspace(0, 1, 40_000, dtype=np.float32)
PARAMS = {"b": np.ones(2, np.float32), "unused": np.ones(7, np.float32), "w": W}

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
each_signature = pytest.mark.parametrize(
    ("name", "key"), [(case.name, key) for case in CASES for key in case.functions]
)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The folder with a SavedModel for each case."""
    folder = tmp_path_factory.mktemp("models")
    for case in CASES:
        case.save(folder / case.name)
    return folder


@pytest.fixture(scope="module")
def exporteds():
    """The `Exported`s that were saved, for each case."""
    return functools.cache(lambda name: BY_NAME[name].export())


def network(params, x, n):
    """Integers come and go; a large constant is closed over."""
    return {"y": jnp.tanh(x @ params["w"] + params["b"]) * jnp.mean(LARGE), "n": n + 1}


def loss(call):
    return lambda params, x: (call(params, x, N)["y"] ** 2).sum()


@pytest.fixture(scope="module")
def exported():
    (b,) = export.symbolic_shape("b")
    x = jax.ShapeDtypeStruct((b, 3), np.float32)
    return export.export(jax.jit(network))(PARAMS, x, jax.ShapeDtypeStruct((b,), np.int32))


def _cosine():
    """A module of four numbers."""
    return export.export(jax.jit(jnp.cos))(jax.ShapeDtypeStruct((4,), "f4")).mlir_module_serialized


WAYS = {
    "plain": {"hoist_constants": None},
    "hoisted": {},
    "residuals": {"residuals": True},
    "old": {"tensorflow": "2.14"},
    "resaved": {},
}


@pytest.fixture(scope="module", params=WAYS)
def folder(request, exported, tmp_path_factory):
    """The network with gradients of two orders, written in every way."""
    path = tmp_path_factory.mktemp(request.param) / "model"
    bridge.save(exported, path, params=PARAMS, gradient_order=2, **WAYS[request.param])
    if request.param != "resaved":
        return path
    loaded = tf.saved_model.load(path)
    again = path.with_name("again")
    tf.saved_model.save(loaded, again, signatures=loaded.signatures)
    return again


@pytest.fixture(scope="module")
def model(folder):
    return bridge.load(folder)


def assert_equal(found, expected, *, tolerance=0.0):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        one, other = physical(one), physical(other)
        if tolerance and one.dtype.kind == "f":
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
        else:
            assert one.tobytes() == other.tobytes()


def assert_close(found, expected):
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6),
        found,
        expected,
    )


class TestEverything:
    """Every kind of argument, parameter and result that a file can hold."""

    @each_signature
    def test_results(self, models, name, key):
        case = BY_NAME[name]
        with case.context():
            signature = bridge.load(models / name).signatures[key]
            results = signature(*case.args, **case.kwargs)
            assert_equal(results, case.results(key), tolerance=case.tolerance)

    @each_case
    def test_parameters(self, models, case):
        with case.context():
            params = bridge.load(models / case.name).params
            if case.params is None:
                assert params is None
            else:
                assert_equal(params, jax.tree.map(jnp.asarray, case.params()))

    @each_signature
    def test_inputs_by_name(self, models, name, key):
        case = BY_NAME[name]
        with case.context():
            signature = bridge.load(models / name).signatures[key]
            leaves = jax.tree.leaves((case.args, dict(case.kwargs)))
            assert [spec.dtype for spec in signature.inputs.values()] == [x.dtype for x in leaves]
            named = dict(zip(signature.inputs, leaves, strict=True))
            assert_equal(signature(**named), case.results(key), tolerance=case.tolerance)
            assert len(signature.outputs) == len(jax.tree.leaves(case.results(key)))

    @each_signature
    def test_every_field_of_the_exported(self, models, exporteds, name, key):
        case = BY_NAME[name]
        with case.context():
            found = bridge.load(models / name).signatures[key].exported
            assert_same_fields(found, exporteds(name)[key])


# What is compared in another way than by ==.
SPECIAL = {
    "in_tree", "out_tree", "in_avals", "out_avals", "mlir_module_serialized", "_get_vjp"
}  # fmt: skip


def assert_same_fields(found, expected):
    """Walks through the fields that this JAX has, so that a new one cannot be forgotten."""
    for field in dataclasses.fields(export.Exported):
        if field.name not in SPECIAL:
            pair = (getattr(found, field.name), getattr(expected, field.name))
            assert pair[0] == pair[1], field.name
    # Symbolic dimensions of two scopes are never equal.
    for avals in ("in_avals", "out_avals"):
        pairs = zip(getattr(found, avals), getattr(expected, avals), strict=True)
        for one, other in pairs:
            assert str(one) == str(other)
            assert (one.dtype, one.weak_type) == (other.dtype, other.weak_type)
    for tree in ("in_tree", "out_tree"):
        assert getattr(found, tree) == getattr(expected, tree)
    assert found.has_vjp() <= expected.has_vjp()


class TestExported:
    """The `Exported` of a loaded signature, whatever saving did to its module."""

    def test_fields(self, model, exported):
        found = model.signatures["serving_default"].exported
        assert_same_fields(found, exported)
        assert_same_fields(found.vjp().vjp(), exported.vjp().vjp())
        assert not found.vjp().vjp().has_vjp()

    def test_methods(self, model, exported):
        found = model.signatures["serving_default"].exported
        assert found.has_vjp()
        mesh = jax.sharding.Mesh(jax.devices()[:1], ("x",))
        assert found.in_shardings_jax(mesh) == exported.in_shardings_jax(mesh)
        assert found.out_shardings_jax(mesh) == exported.out_shardings_jax(mesh)
        assert "func public @main" in found.mlir_module()
        assert_close(found.call(PARAMS, X, N), network(PARAMS, X, N))

    def test_it_can_be_serialized(self, model):
        data = model.signatures["serving_default"].exported.serialize(vjp_order=2)
        again = export.deserialize(bytearray(data))
        gradients = jax.grad(loss(again.call), argnums=(0, 1))(PARAMS, X)
        assert_close(gradients, jax.grad(loss(network), argnums=(0, 1))(PARAMS, X))

    def test_an_unchanged_module_is_equal(self, tmp_path):
        exported = export.export(jax.jit(lambda x: x * 2))(X)
        bridge.save(exported, tmp_path / "model", tensorflow="2.21")
        bytes_of_the_target = retarget(from_exported(exported), "2.21").module
        signature = bridge.load(tmp_path / "model").signatures["serving_default"]
        assert signature.exported.mlir_module_serialized == bytes_of_the_target
        (change,) = signature.changes
        assert change.startswith("StableHLO ")
        bridge.save(signature.exported, tmp_path / "again", tensorflow="2.21")
        again = bridge.load(tmp_path / "again").signatures["serving_default"]
        assert again.exported.mlir_module_serialized == bytes_of_the_target
        assert again.changes == ()

    def test_what_was_changed_is_said(self, folder, model):
        changes = model.signatures["serving_default"].changes
        passes = {
            "residuals": ["a forward and a backward pass", "large constants as arguments"],
            "plain": [],
        }.get(folder.parent.name.rstrip("0123456789"), ["large constants as arguments"])
        assert [change for change in changes if not change.startswith("StableHLO")] == passes

    def test_it_is_saved_again(self, model, tmp_path):
        signature = model.signatures["serving_default"]
        bridge.save(
            signature.exported, tmp_path / "again", params=signature.params, gradient_order=2
        )
        assert_close(bridge.load(tmp_path / "again")(X, N), network(PARAMS, X, N))


class TestTransformations:
    """What JAX does with functions, it does with a loaded one."""

    def test_gradients_with_respect_to_parameters(self, model):
        signature = model.signatures["serving_default"]
        gradients = jax.grad(loss(signature.exported.call), argnums=(0, 1))(signature.params, X)
        assert_close(gradients, jax.grad(loss(network), argnums=(0, 1))(PARAMS, X))

    def test_an_order_that_was_not_saved(self, model):
        function = lambda x: (model(x, N)["y"] ** 2).sum()  # noqa: E731
        assert model.signatures["serving_default"].gradient_source(3) == "lifted"
        found = jax.jacrev(lambda x: jax.grad(lambda x: jax.grad(function)(x).sum())(x))(X)
        of_network = lambda x: loss(network)(PARAMS, x)  # noqa: E731
        second = lambda x: jax.grad(lambda x: jax.grad(of_network)(x).sum())(x)  # noqa: E731
        np.testing.assert_allclose(found, jax.jacrev(second)(X), rtol=1e-3, atol=1e-4)

    def test_jit_and_scan(self, model):
        function = lambda x: jax.lax.scan(  # noqa: E731
            lambda carry, _: (carry + 1, model(carry, N)["y"].sum()), x, None, length=3
        )[1]
        expected = [network(PARAMS, X + step, N)["y"].sum() for step in range(3)]
        np.testing.assert_allclose(jax.jit(function)(X), expected, rtol=1e-5)

    def test_vmap_of_the_exported(self, model):
        signature = model.signatures["serving_default"]
        call, many = signature.exported.call, np.stack([X, X + 1, -X])
        results = jax.jit(jax.vmap(call, in_axes=(None, 0, None)))(signature.params, many, N)
        assert_close(results["y"][2], network(PARAMS, -X, N)["y"])
        gradients = jax.vmap(jax.grad(loss(call)), in_axes=(None, 0))(signature.params, many)
        expected = jax.vmap(jax.grad(loss(network)), in_axes=(None, 0))(PARAMS, many)
        assert_close(gradients, expected)

    def test_the_exported_is_called_as_one_of_jax(self, model):
        signature = model.signatures["serving_default"]
        assert isinstance(signature.exported, export.Exported)
        assert signature.exported is signature.exported
        theirs = export.deserialize(signature.exported.serialize(vjp_order=1))
        arguments = (signature.params, X, N)
        assert_equal(signature.exported.call(*arguments), theirs.call(*arguments))
        for wrong in (arguments[:2], (signature.params, X[:, :2], N)):
            errors = []
            for exported in (signature.exported, theirs):
                with pytest.raises(ValueError, match=r".") as caught:
                    exported.call(*wrong)
                errors.append(str(caught.value))
            assert errors[0] == errors[1]

    def test_a_second_eager_call_compiles_nothing(self, model, caplog):
        signature = model.signatures["serving_default"]
        params = jax.tree.map(jnp.asarray, signature.params)
        signature.exported.call(params, X, N)
        with jax.log_compiles(True), caplog.at_level("WARNING"):
            jax.block_until_ready(signature.exported.call(params, X + 1, N))
            jax.jit(lambda seen: -seen)(X)
        assert sum("Compiling" in record.getMessage() for record in caplog.records) == 1

    def test_a_second_eager_call_runs_little_python(self, model):
        """Of arrays of JAX, which its own dispatch checks, in any structure of the function."""
        x, n = jnp.asarray(X), jnp.asarray(N)
        want = model(x, n)
        entered = []
        sys.setprofile(lambda frame, event, _: entered.append(frame) if event == "call" else None)
        try:
            found = model(x + 0, n)
        finally:
            sys.setprofile(None)
        ours = [f for f in entered if f.f_globals["__name__"].split(".")[0] in PACKAGES]
        assert len(ours) <= 4, [frame.f_code.co_qualname for frame in ours]
        assert_close(found, want)
        assert_close(model(X, N), want)
        assert_close(model(n=n, x=x), want)
        assert_close(jax.jit(model)(x, n), want)
        assert_close(jax.tree.map(lambda y: y[0], jax.vmap(model)(x[None], n[None])), want)

    def test_a_new_export(self, model):
        b, _ = export.symbolic_shape("b, n")
        specs = jax.ShapeDtypeStruct((b, 3), np.float32), jax.ShapeDtypeStruct((b,), np.int32)
        again = export.export(jax.jit(lambda x, n: model(x, n)["y"] * 2))(*specs)
        np.testing.assert_allclose(again.call(X, N), network(PARAMS, X, N)["y"] * 2, rtol=1e-6)
        found = jax.grad(lambda x: again.call(x, N).sum())(X)
        expected = jax.grad(lambda x: network(PARAMS, x, N)["y"].sum() * 2)(X)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


class TestValues:
    """Parameters are in the file, and stay there until they are needed."""

    def test_other_weights(self, exported, tmp_path):
        bridge.save(exported, tmp_path / "model", params=PARAMS)
        loaded = tf.saved_model.load(tmp_path / "model")
        loaded.params["w"].assign(W * 2)
        tf.saved_model.save(loaded, tmp_path / "again", signatures=loaded.signatures)
        model = bridge.load(tmp_path / "again")
        assert_equal(model.params, jax.tree.map(jnp.asarray, {**PARAMS, "w": W * 2}))
        assert_close(model(X, N), network({**PARAMS, "w": W * 2}, X, N))

    def test_they_are_not_changed(self, model):
        with pytest.raises(ValueError, match="read-only"):
            model.params["w"][0, 0] = 1

    def test_only_what_is_needed_is_read(self, tmp_path):
        exported = export.export(jax.jit(network))(PARAMS, X, N)
        bridge.save(exported, tmp_path / "model", params=PARAMS)
        data = tmp_path / "model/variables/variables.data-00000-of-00001"
        damaged = bytearray(data.read_bytes())
        damaged[damaged.index(PARAMS["unused"].tobytes())] ^= 1
        data.write_bytes(damaged)
        model = bridge.load(tmp_path / "model")
        assert_close(model(X, N), network(PARAMS, X, N))
        with pytest.raises(FormatError, match="the checksum of the 28 bytes of 'params/unused"):
            _ = model.params

    def test_a_damaged_value(self, exported, tmp_path):
        bridge.save(exported, tmp_path / "model", params=PARAMS)
        data = tmp_path / "model/variables/variables.data-00000-of-00001"
        damaged = bytearray(data.read_bytes())
        damaged[damaged.index(W.tobytes()) + 5] ^= 1
        data.write_bytes(damaged)
        model = bridge.load(tmp_path / "model")
        with pytest.raises(FormatError, match="the checksum of the 24 bytes of 'params/w"):
            model(X, N)

    def test_none_among_parameters(self, tmp_path):
        """Leaves after it keep their values, whether they are used or not."""
        full = lambda value: np.full((2,), value, np.float32)  # noqa: E731
        params = [None, full(7), (None, full(9)), full(11)]
        exported = export.export(jax.jit(lambda params, x: x * params[2][1]))(params, full(1))
        bridge.save(exported, tmp_path / "m", params=params)
        loaded = tf.saved_model.load(tmp_path / "m")
        tf.saved_model.save(loaded, tmp_path / "again", signatures=loaded.signatures)
        for name in ("m", "again"):
            model = bridge.load(tmp_path / name)
            jax.tree.map(np.testing.assert_array_equal, model.params, params)
            np.testing.assert_array_equal(model(full(2)), full(18))

    def test_a_tracer_is_not_remembered(self, tmp_path):
        params = {"key": jax.random.key(3)}
        exported = export.export(jax.jit(lambda p, x: x + jax.random.normal(p["key"], (3,))))
        bridge.save(exported(params, X), tmp_path / "m", params=params)
        signature = bridge.load(tmp_path / "m").signatures["serving_default"]
        call = lambda x: signature.exported.call(signature.params, x)  # noqa: E731
        np.testing.assert_allclose(jax.jit(call)(X), call(X), rtol=1e-6)


class TestSeveralSignatures:
    """Each is a function of its own, of the same parameters."""

    def test_they_share_parameters(self, models):
        model = bridge.load(models / "two_signatures")
        assert set(model.signatures) == {"predict", "loss"}
        one, other = model.signatures.values()
        assert np.shares_memory(one.params["w"], other.params["w"])
        assert repr(one) == "predict(x: float32[b,3])"
        assert repr(model).startswith("LoadedModel(predict(")


class TestWrongCalls:
    """Every mistake is named."""

    @pytest.mark.parametrize(
        ("args", "match"),
        [
            ((X,), r"takes \(float32.*, or its inputs by name: n, x; it was called with one arg"),
            ((X[:, :2], N), r"x of serving_default has shape \(4, 2\).*dimension 1 is 3"),
            ((X, N[:2]), r"n of serving_default has shape \(2,\).*is 4 with b = 4"),
            ((X[:0], N[:0]), "dimension variable b would be 0"),
        ],
    )
    def test_structure(self, model, args, match):
        with pytest.raises(StructureError, match=match):
            model(*args)

    def test_a_signature_that_is_not_there(self, model):
        match = r"^There is no signature 'typo'; the file has 'serving_default'.* To do: name one"
        for error in (KeyError, StructureError):
            with pytest.raises(error, match=match):
                model.signatures["typo"]
        assert model.signatures.get("typo") is None

    def test_what_was_called_before_is_refused_in_the_same_words(self, model):
        x, n = jnp.asarray(X), jnp.asarray(N)
        refused = [
            (x,),
            (x[:, :2], n),
            (x, n[:2]),
            (x[:0], n[:0]),
            (x, n.astype("float32")),
            (1, n),
        ]

        def said():
            for args in refused:
                with pytest.raises(InteropError) as caught:
                    model(*args)
                yield type(caught.value), str(caught.value), caught.value.__context__ is None
                functions = [entry.name for entry in caught.traceback]
                assert functions == ["said", "__call__"], functions

        before = [*said()]
        model(x, n)
        assert model.default.call_plain((x, n), {}) is not NotImplemented
        assert [*said()] == before

    def test_dtype(self, model):
        with pytest.raises(DtypeError, match=r"n of serving_default has dtype float32.*int32"):
            model(X, N.astype(np.float32))

    def test_python_numbers(self, models):
        model = bridge.load(models / "scalars")
        assert_close(model(1, 7), BY_NAME["scalars"].functions["serving_default"](2.5, 1, 7))
        with pytest.raises(DtypeError, match="n of serving_default has dtype float32"):
            model(1.5, 7.5)

    def test_wide_dtypes(self, models):
        case = BY_NAME["passed_on"]
        with (
            enable_x64(False),
            pytest.raises(DtypeError, match=r"x64 is off\. To do: jax\.config\.update"),
        ):
            bridge.load(models / "passed_on")(*case.args)

    def test_another_platform(self, tmp_path):
        exported = export.export(jax.jit(jnp.sin), platforms=["cuda", "tpu"])(X)
        bridge.save(exported, tmp_path / "model")
        with pytest.raises(PlatformError, match="exported for cuda, tpu, and JAX runs on cpu"):
            bridge.load(tmp_path / "model")(X)

    def test_a_disabled_platform_check(self, tmp_path, monkeypatch):
        exported = export.export(jax.jit(jnp.sin), platforms=["cuda", "tpu"])(X)
        bridge.save(exported, tmp_path / "one", disabled_checks=["platform"])
        np.testing.assert_allclose(bridge.load(tmp_path / "one")(X), np.sin(X), rtol=1e-6)
        bridge.save(exported, tmp_path / "other")
        monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_call_module_disabled_checks=platform")
        np.testing.assert_allclose(bridge.load(tmp_path / "other")(X), np.sin(X), rtol=1e-6)

    @pytest.mark.parametrize("by_flag", [False, True])
    def test_disabled_shape_assertions(self, tmp_path, monkeypatch, by_flag):
        """As in TensorFlow, the module is run with the shapes that come."""
        b, two = export.symbolic_shape("b, 2*b")
        specs = jax.ShapeDtypeStruct((b,), np.float32), jax.ShapeDtypeStruct((two,), np.float32)
        exported = export.export(jax.jit(lambda x, y: (x.sum() + y.sum(), jnp.cos(y))))(*specs)
        x, y = np.ones(2, np.float32), np.ones(5, np.float32)
        bridge.save(exported, tmp_path / "checked")
        with pytest.raises(StructureError, match=r"y of serving_default has shape \(5,\)"):
            bridge.load(tmp_path / "checked")(x, y)
        checks = [] if by_flag else ["shape_assertions"]
        bridge.save(exported, tmp_path / "model", disabled_checks=checks)
        if by_flag:
            flag = "--tf_xla_call_module_disabled_checks=shape_assertions"
            monkeypatch.setenv("TF_XLA_FLAGS", flag)
        model = bridge.load(tmp_path / "model")
        for _ in range(2):
            total, cosines = model(x, y)
            assert total == 7
            np.testing.assert_allclose(cosines, np.cos(y), rtol=1e-6)
        np.testing.assert_allclose(model(x, y[:4])[1], np.cos(y[:4]), rtol=1e-6)
        # What the module computes for such shapes has no gradient in the file.
        np.testing.assert_array_equal(jax.grad(lambda x: model(x, y)[0])(x), [1, 1])

    @pytest.mark.parametrize(
        "value", ["abc", object(), np.ma.array([1.0]), jax.ShapeDtypeStruct((4,), np.int32)]
    )
    def test_what_is_no_array(self, model, value):
        with pytest.raises(DtypeError, match=r"n of serving_default is a \w+; expected a JAX"):
            model(X, value)

    def test_a_number_out_of_range(self, tmp_path):
        bridge.save(export.export(jax.jit(lambda x: x + 1))(np.uint8(3)), tmp_path / "m")
        with pytest.raises(DtypeError, match="is 300, which is no uint8"):
            bridge.load(tmp_path / "m")(300)

    def test_a_constraint(self, tmp_path):
        b = export.symbolic_shape("b", constraints=["b >= 8", "mod(b, 4) == 0"])
        exported = export.export(jax.jit(lambda x: x * 2))(jax.ShapeDtypeStruct(b, np.float32))
        bridge.save(exported, tmp_path / "m")
        model = bridge.load(tmp_path / "m")
        for call in (model, jax.jit(model), jax.grad(lambda x: model(x).sum())):
            with pytest.raises(
                StructureError, match=r"have b = 3; .* constraint b >= 8, and takes"
            ):
                call(np.ones(3, np.float32))
        with pytest.raises(
            StructureError, match=r"b = 9; .* mod\(b, 4\) == 0, and takes x float32"
        ):
            model(np.ones(9, np.float32))
        assert model(np.ones(12, np.float32)).shape == (12,)

    def test_a_disabled_constraint(self, tmp_path):
        b = export.symbolic_shape("b", constraints=["b >= 8"])
        exported = export.export(jax.jit(lambda x: x * 2))(jax.ShapeDtypeStruct(b, np.float32))
        bridge.save(exported, tmp_path / "m", disabled_checks=["shape_assertions"])
        assert bridge.load(tmp_path / "m")(np.ones(3, np.float32)).tolist() == [2, 2, 2]

    def test_the_platform_is_checked_after_a_trace(self, tmp_path):
        exported = export.export(jax.jit(jnp.sin), platforms=["cuda"])(X)
        bridge.save(exported, tmp_path / "m")
        model = bridge.load(tmp_path / "m")
        assert jax.eval_shape(model, X).shape == X.shape
        with pytest.raises(PlatformError, match="exported for cuda, and JAX runs on cpu"):
            model(X)

    def test_wide_results(self, tmp_path):
        with enable_x64(True):
            wide = export.export(jax.jit(lambda n: n.astype("int64") * 2**40))(N)
            bridge.save(wide, tmp_path / "m")
            model = bridge.load(tmp_path / "m")
            assert model(N)[1] == 2**40
        with enable_x64(False), pytest.raises(DtypeError, match=r"result.* is int64.*x64 is off"):
            model(N)

    @pytest.mark.parametrize("describes_itself", [True, False])
    def test_a_module_that_calls_back_to_python(self, tmp_path, describes_itself):
        """What it would call is an address in another process."""
        exported = export.export(jax.jit(lambda x: x * 2))(X)
        bridge.save(exported, tmp_path / "model")
        lowered = jax.jit(lambda x: jax.pure_callback(np.sin, x, x)).lower(X)
        module = lowered.compiler_ir("stablehlo")
        with module.context:
            artifact = serialize_module(module, (1, 0, 0))
        file = savedmodel.read(tmp_path / "model")
        function = file.default.function
        call = dataclasses.replace(
            function.call,
            module=artifact,
            exported=function.call.exported if describes_itself else b"",
        )
        function = dataclasses.replace(function, chain=(call,))
        signature = dataclasses.replace(file.default, function=function)
        savedmodel.write(dataclasses.replace(file, signatures=(signature,)), tmp_path / "hostile")
        model = bridge.load(tmp_path / "hostile")
        with pytest.raises(StructureError, match="calls back to Python"):
            model(X)

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            (
                lambda m: m[: len(m) // 2],
                "has a damaged module: .* not a StableHLO portable artifact",
            ),
            (lambda _: _cosine(), "but the module has tensor<4xf32> the"),
        ],
        ids=["cut off", "another"],
    )
    @pytest.mark.parametrize("order", [0, 1])
    def test_a_module_that_is_damaged(self, tmp_path, change, match, order):
        """JAX itself says it in an error of XLA's, and at the first call."""
        exported = export.export(jax.jit(lambda x: x * 2))(X)
        bridge.save(exported, tmp_path / "model", gradient_order=1)
        file = savedmodel.read(tmp_path / "model")
        function = file.default.function
        chain = list(function.chain)
        chain[order] = dataclasses.replace(chain[order], module=change(chain[order].module))
        function = dataclasses.replace(function, chain=tuple(chain))
        signature = dataclasses.replace(file.default, function=function)
        savedmodel.write(dataclasses.replace(file, signatures=(signature,)), tmp_path / "hostile")
        with pytest.raises(InteropError, match=match):
            jax.grad(lambda x: bridge.load(tmp_path / "hostile")(x).sum())(X)

    def test_an_address(self):
        with pytest.raises(
            StructureError, match=r"gs://bucket/model is an address.*copy the folder"
        ):
            bridge.load("gs://bucket/model")


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_key_data_where_a_key_is_taken_are_told_to_be_wrapped(impl, tmp_path):
    key = jax.random.key(0, impl=impl)
    bridge.save(export.export(jax.jit(jax.random.uniform))(key), tmp_path / "model")
    loaded = bridge.load(tmp_path / "model")
    data = jax.random.key_data(key)
    with pytest.raises(DtypeError, match=rf"has dtype uint32.*wrap_key_data with impl='{impl}'"):
        loaded(data)
    np.testing.assert_array_equal(
        loaded(jax.random.wrap_key_data(data, impl=impl)), jax.random.uniform(key)
    )


# A process that has JAX's compilation cache in a folder, and says what of the call was found there.
CACHED_CALL = """
import sys
import jax, jax.monitoring, numpy as np, bridge
jax.config.update("jax_compilation_cache_dir", sys.argv[2])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
found = []
jax.monitoring.register_event_listener(lambda event, **_: found.append(event.rpartition("/")[2]))
bridge.load(sys.argv[1])(np.ones((2, 3), np.float32))
print(*(event for event in found if event in ("cache_hits", "cache_misses")))
"""


def test_another_process_finds_what_one_has_compiled_whatever_the_weights(
    preloaded_python, tmp_path
):
    """JAX's own cache, whose key is of the module: it has no weights, and is the same each time."""
    printed = []
    for name, weights in (("one", W), ("another", W + 1)):
        bridge.save(lambda w, x: x @ w, tmp_path / name, params=weights, args="f32[b,3]")
        done = subprocess.run(
            [preloaded_python, "-c", CACHED_CALL, tmp_path / name, tmp_path / "compiled"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        printed.append(done.stdout)
    assert "cache_misses" in printed[0]
    assert set(printed[1].split()) == {"cache_hits"}
