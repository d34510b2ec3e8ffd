"""TensorFlow functions that stay TensorFlow's in what JAX exports."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow as tf
from jax import export
from jax.experimental import jax2tf

import bridge
import bridge.jax2tf
from savedmodel.encode.body import Library
from savedmodel.protos.schema import FunctionDef, FunctionDefLibrary
from xla_call_module import from_exported
from xla_call_module.analyses.tensorflow_functions import pack_functions, take_functions
from xla_call_module.errors import FormatError, StructureError
from xla_call_module.stablehlo.modules import open_module

X = np.linspace(0.1, 1.5, 6, dtype=np.float32).reshape(2, 3)
RTOL = 1e-4


def in_tensorflow(x):
    return {"y": tf.concat([tf.sin(x), x * x], 0)}


def in_jax(x):
    return {"y": jnp.concatenate([jnp.sin(x), x * x], 0)}


def program(function):
    """A JAX program around the function."""
    return lambda x: jnp.cos(function(x * 2.0)["y"]).sum(1) * function(x)["y"][0, 0]


@pytest.fixture(scope="module")
def called():
    return bridge.call_tf(in_tensorflow, graph=True)


@pytest.fixture(scope="module")
def declared():
    """The function for symbolic sizes."""
    return bridge.call_tf(in_tensorflow, graph=True, shapes={"y": "2*b, 3"})


@pytest.fixture(scope="module")
def converted(declared):
    return bridge.convert(program(declared), polymorphic_shapes="b, 3")


@pytest.fixture(scope="module")
def written(declared, tmp_path_factory):
    """A file of `bridge.save`, with symbolic shapes."""
    spec = jax.ShapeDtypeStruct(export.symbolic_shape("b, 3"), np.float32)
    exported = export.export(jax.jit(program(declared)), platforms=("cpu",))(spec)
    assert [str(dim) for dim in exported.out_avals[0].shape] == ["2*b"]
    path = tmp_path_factory.mktemp("graph") / "model"
    bridge.save(exported, path)
    return path


def check_in_tensorflow(function):
    """Values and gradients at two sizes."""
    for rows in (2, 5):
        x = tf.constant(np.resize(X, (rows, 3)))
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        np.testing.assert_allclose(y, program(in_jax)(x.numpy()), rtol=RTOL, atol=1e-5)
        expected = jax.grad(lambda x: program(in_jax)(x).sum())(x.numpy())
        np.testing.assert_allclose(tape.gradient(y, x), expected, rtol=RTOL, atol=1e-5)


@pytest.mark.parametrize("compiled", [None, True])
def test_a_converted_program_calls_the_function(converted, compiled):
    spec = tf.TensorSpec([None, 3], tf.float32)
    function = tf.function(converted, jit_compile=compiled, autograph=False, input_signature=[spec])
    check_in_tensorflow(function)
    graph = function.get_concrete_function().graph.as_graph_def()
    nodes = [node for f in graph.library.function for node in f.node_def]
    assert any(node.attr["function_list"].list.func for node in nodes)


def test_a_converted_program_runs_eagerly(converted):
    np.testing.assert_allclose(converted(X), program(in_jax)(X), rtol=RTOL)


def test_tensorflow_saves_and_loads_it(converted, tmp_path):
    module = tf.Module()
    spec = tf.TensorSpec([None, 3], tf.float32)
    module.run = tf.function(converted, autograph=False, input_signature=[spec])
    tf.saved_model.save(module, str(tmp_path / "model"))
    check_in_tensorflow(tf.saved_model.load(str(tmp_path / "model")).run)


def test_a_file_holds_the_function(written):
    check_in_tensorflow(tf.saved_model.load(str(written)))


def test_a_file_is_written_again_with_its_functions(written, tmp_path):
    bridge.retarget(written, "2.20", to=tmp_path / "again")
    check_in_tensorflow(tf.saved_model.load(str(tmp_path / "again")))


def test_an_export_is_retargeted_with_its_functions(called):
    exported = bridge.retarget(export.export(jax.jit(called))(X), "2.20")
    np.testing.assert_allclose(bridge.convert(exported)(X)["y"], in_jax(X)["y"], rtol=RTOL)
    read = export.deserialize(bytearray(exported.serialize()))
    np.testing.assert_allclose(bridge.convert(read)(X)["y"], in_jax(X)["y"], rtol=RTOL)


def test_jax_alone_says_that_it_cannot_run_it(written):
    with pytest.raises(StructureError, match=r"calls TensorFlow functions .*bridge\.call_tf\(path"):
        bridge.load(written)(X)


def test_a_foreign_file_with_such_calls_is_refused_too(tmp_path):
    peer = jax2tf.convert(jax2tf.call_tf(tf.sin, call_tf_graph=True))
    module = tf.Module()
    module.run = tf.function(
        lambda x: {"y": peer(x)}, autograph=False, input_signature=[tf.TensorSpec([3], tf.float32)]
    )
    tf.saved_model.save(
        module, str(tmp_path / "model"), signatures=module.run.get_concrete_function()
    )
    with pytest.raises(StructureError, match="JAX alone cannot run"):
        bridge.load(tmp_path / "model")(X[0])


def test_jax_runs_it_through_tensorflow(written):
    called = bridge.call_tf(written)
    np.testing.assert_allclose(jax.jit(called)(X), program(in_jax)(X), rtol=RTOL)


def test_an_eager_call_runs_in_tensorflow(called):
    np.testing.assert_allclose(called(X)["y"], in_jax(X)["y"], rtol=RTOL)
    gradient = jax.grad(lambda x: called(x)["y"].sum())(jnp.asarray(X))
    expected = jax.grad(lambda x: in_jax(x)["y"].sum())(X)
    np.testing.assert_allclose(gradient, expected, rtol=RTOL)


RUN_BY_JAX = {
    "jit": jax.jit,
    "grad": lambda f: jax.jit(jax.grad(lambda x: f(x).sum())),
    "vmap": jax.vmap,
    "scan": lambda f: lambda x: jax.lax.scan(lambda c, e: (f(c), f(e)), x[0], x),
}


@pytest.mark.parametrize("how", RUN_BY_JAX)
def test_a_program_that_jax_runs_itself_has_it_compiled(how):
    called, run = bridge.call_tf(lambda x: tf.sin(x) * x, graph=True), RUN_BY_JAX[how]
    found, expected = run(called)(X), run(lambda x: jnp.sin(x) * x)(X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)
    text = export.export(jax.jit(run(called)))(X).mlir_module()
    assert "tf.call_tf_function" in text


def test_what_jax_runs_itself_has_live_variables():
    variable = tf.Variable(2.0)
    run = jax.jit(bridge.call_tf(lambda x: x * variable, graph=True))
    for value in (2.0, 5.0):
        variable.assign(value)
        np.testing.assert_array_equal(run(X), value * X)


def test_what_jax_cannot_compile_is_refused_when_jax_runs_it():
    called = bridge.call_tf(lambda x: tf.strings.length(tf.strings.as_string(x)), graph=True)
    np.testing.assert_array_equal(called(X), np.full((2, 3), 8))
    with pytest.raises(StructureError, match="XLA has no AsString"):
        jax.jit(called)(X)
    assert "tf.call_tf_function" in export.export(jax.jit(called))(X).mlir_module()


def test_the_interface_of_jax_refuses_to_run_it_in_jax():
    called = bridge.jax2tf.call_tf(tf.sin, call_tf_graph=True)
    np.testing.assert_allclose(called(X), np.sin(X), rtol=1e-6)
    for run in (jax.jit(called).lower, jax.jit(called), jax.jit(jax.jacrev(called))):
        with pytest.raises(ValueError, match=r"call_tf_graph=True.*To do: convert the program"):
            run(X)


def test_several_functions_and_vmap():
    sine, cosine = (bridge.call_tf(f, graph=True) for f in (tf.sin, tf.cos))
    found = bridge.convert(lambda x: jax.vmap(cosine)(sine(x)) + sine(x))(X)
    np.testing.assert_allclose(found, np.cos(np.sin(X)) + np.sin(X), rtol=1e-6)


def export_with_symbols(function, **options):
    called = bridge.call_tf(function, **options)
    spec = jax.ShapeDtypeStruct(export.symbolic_shape("b, c"), np.float32)
    return [str(dim) for dim in export.export(jax.jit(called))(spec).out_avals[0].shape]


def test_result_shapes_are_declared_and_checked():
    halved = "floordiv(b + 1, 2)"
    assert export_with_symbols(lambda x: x[::2], graph=True, shapes=f"{halved}, c") == [halved, "c"]
    assert export_with_symbols(lambda x: tf.sin(tf.reduce_sum(x)), graph=True) == []
    with pytest.raises(StructureError, match="which is not a shape"):
        export_with_symbols(tf.sin, graph=True, shapes="b, %")
    with pytest.raises(StructureError, match=r"declared as float32.*TensorFlow traces it as"):
        export_with_symbols(lambda x: x[0][None], graph=True, shapes="3, c")
    with pytest.raises(StructureError, match=r"Result 0 of sin has .*\(b, c\).* shapes='2\*b, 3'"):
        export_with_symbols(tf.sin, graph=True)


@pytest.mark.parametrize("options", [{}, {"shapes": "b, c"}, {"compiled": False}])
@pytest.mark.parametrize("function", [tf.sin, tf.reduce_sum])
def test_only_what_stays_of_tensorflow_has_symbolic_shapes(function, options):
    if "shapes" in options and function is tf.reduce_sum:
        options = {"shapes": ""}
    why = "through a callback" if "compiled" in options else "for numbers only"
    with pytest.raises(
        StructureError, match=rf"args\[0\] of .*\(b, c\), .*{why}.*graph=True.*shapes="
    ):
        export_with_symbols(function, **options)


@pytest.mark.parametrize("way", ["grad", "jvp", "scan"])
def test_transformations_of_a_compiled_function_have_no_symbolic_shapes_either(way):
    called = bridge.call_tf(tf.sin)
    program = {
        "grad": jax.grad(lambda x: called(x).sum()),
        "jvp": lambda x: jax.jvp(called, (x,), (x,)),
        "scan": lambda x: jax.lax.scan(lambda c, _: (called(c), None), x, length=2)[0],
    }[way]
    with pytest.raises(StructureError, match=r"for numbers only.*graph=True"):
        bridge.convert(program, polymorphic_shapes="b, 3")(X)


def test_a_compiled_function_of_one_row_is_mapped_over_any_number_of_them(tmp_path):
    function = lambda row: tf.cumsum(tf.sort(row * 2.0)) / tf.reduce_max(row)  # noqa: E731
    bridge.save(jax.vmap(bridge.call_tf(function)), tmp_path / "m", args="f32[b,3]")
    loaded, in_jax = tf.saved_model.load(str(tmp_path / "m")), bridge.load(tmp_path / "m")
    for count in (1, 5):
        x = np.resize(X, (count, 3))
        expected = tf.map_fn(function, x)
        np.testing.assert_allclose(loaded(x), expected, rtol=1e-6)
        np.testing.assert_allclose(in_jax(x), expected, rtol=1e-6)
        mapped = gradient_of(lambda x: tf.map_fn(function, x), x)
        np.testing.assert_allclose(gradient_of(loaded, x), mapped, rtol=1e-4)
        found = jax.grad(lambda x: (in_jax(x) ** 2).sum())(x)
        np.testing.assert_allclose(found, mapped, rtol=1e-4)


def test_the_interface_of_jax_names_its_own_options():
    called = bridge.jax2tf.call_tf(tf.sin)
    with pytest.raises(ValueError, match=r"call_tf_graph=True to bridge\.jax2tf\.call_tf"):
        bridge.jax2tf.convert(called, polymorphic_shapes="b, 3")(X)
    kept = bridge.jax2tf.call_tf(tf.sin, call_tf_graph=True)
    with pytest.raises(ValueError, match=r"output_shape_dtype= of bridge\.jax2tf\.call_tf"):
        bridge.jax2tf.convert(kept, polymorphic_shapes="b, 3")(X)


def test_a_recurrent_layer_of_one_row_is_mapped_over_any_number_of_them(tmp_path):
    layer = keras.layers.LSTM(2)
    layer.build((None, 3, 3))
    called = bridge.call_tf(lambda row: layer(row[None])[0], variables="constant")
    bridge.save(jax.vmap(called), tmp_path / "m", args="f32[b,3,3]")
    loaded = tf.saved_model.load(str(tmp_path / "m"))
    for count in (1, 4):
        x = np.resize(X, (count, 3, 3))
        np.testing.assert_allclose(loaded(x), layer(x), rtol=1e-5)
        found, expected = (gradient_of(function, x) for function in (loaded, layer))
        np.testing.assert_allclose(found, expected, rtol=RTOL, atol=1e-6)


def gradient_of(function, x):
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_sum(function(x) ** 2)
    return tape.gradient(total, x)


def test_effects_are_held_under_the_checks_of_jax():
    def printing(x):
        tf.print(x)
        return x + 1.0

    called = bridge.call_tf(printing, graph=True)
    with jax.enable_checks(True):
        loop = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, x: called(x), x))
        assert "has_side_effect = true" in export.export(loop)(X).mlir_module()


def test_what_the_call_cannot_hold_is_refused():
    variable = tf.Variable(1.0, name="weight")
    with pytest.raises(StructureError, match=r"captured the variable weight.*variables='argument'"):
        bridge.convert(bridge.call_tf(lambda x: x * variable, graph=True))(X)
    with pytest.raises(StructureError, match=r"compiled=False, which calls .*no meaning"):
        bridge.call_tf(tf.sin, graph=True, compiled=False)


class Layer(tf.Module):
    """Reads variables in its body, in a function that it calls, in a branch and in a loop."""

    def __init__(self):
        super().__init__()
        self.scale = tf.Variable([1.0, 2.0, 3.0], name="scale")
        self.shift = tf.Variable(0.5, name="shift")

    @tf.function
    def shifted(self, x):
        return x + self.shift

    def __call__(self, x):
        def step(i, carry):
            return i + 1, tf.sin(carry) * self.scale

        x = tf.while_loop(
            lambda i, _: i < 2, step, (0, self.shifted(x) * self.scale), maximum_iterations=2
        )[1]
        return tf.cond(tf.reduce_sum(x) > 1e6, lambda: x, lambda: x * self.shift)


def layer_in_jax(variables, x):
    scale, shift = variables["scale"], variables["shift"]
    x = (x + shift) * scale
    for _ in range(2):
        x = jnp.sin(x) * scale
    return x * shift


def test_variables_are_parameters_of_a_file(tmp_path):
    called = bridge.call_tf(Layer(), graph=True, variables="argument")
    values = called.variables(X)
    assert set(values) == {"scale", "shift"}
    np.testing.assert_allclose(called(values, X), layer_in_jax(values, X), rtol=1e-5)
    doubled = jax.tree.map(lambda value: 2.0 * value, values)
    np.testing.assert_allclose(called(doubled, X), layer_in_jax(doubled, X), rtol=1e-5)
    bridge.save(
        called, tmp_path / "m", params=doubled, args=(jax.ShapeDtypeStruct(X.shape, X.dtype),)
    )
    loaded = tf.saved_model.load(str(tmp_path / "m"))
    np.testing.assert_allclose(loaded(X), layer_in_jax(doubled, X), rtol=1e-5)


@pytest.mark.parametrize("compiled", [None, True])
def test_variables_have_gradients_in_a_graph(compiled):
    called = bridge.call_tf(Layer(), graph=True, variables="argument")
    values = {name: tf.Variable(value) for name, value in called.variables(X).items()}
    converted = tf.function(bridge.convert(called), jit_compile=compiled, autograph=False)
    with tf.GradientTape() as tape:
        result = tf.reduce_sum(converted(values, X) ** 2)
    found = tape.gradient(result, values)
    arrays = jax.tree.map(lambda value: value.numpy(), values)
    expected = jax.grad(lambda v: (layer_in_jax(v, X) ** 2).sum())(arrays)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), dict(found), expected)


def test_variables_are_constants_in_a_graph():
    layer = Layer()
    called = bridge.call_tf(layer, graph=True, variables="constant")
    converted = tf.function(bridge.convert(called), autograph=False)
    expected = layer_in_jax({"scale": layer.scale.numpy(), "shift": 0.5}, X)
    np.testing.assert_allclose(converted(X), expected, rtol=1e-5)


def test_the_interface_of_jax_has_constants_in_a_graph():
    variable = tf.Variable(3.0)
    called = bridge.jax2tf.call_tf(lambda x: x * variable, call_tf_graph=True)
    converted = tf.function(bridge.jax2tf.convert(called), autograph=False)
    np.testing.assert_allclose(converted(X), 3.0 * X)


def test_a_variable_that_is_not_only_read_is_refused():
    table = tf.Variable(X)
    called = bridge.call_tf(lambda i: tf.gather(table, i), graph=True, variables="constant")
    with pytest.raises(StructureError, match=r"ResourceGather .* takes a variable itself"):
        bridge.convert(called)(np.int32(0))


def test_a_damaged_function_is_refused(called):
    exported = export.export(jax.jit(called))(X)
    call = from_exported(exported)
    assert len(call.function_list) == 1
    assert call.functions
    with open_module(call.module) as module:
        assert take_functions(call, module) == call  # again there is nothing to take
    packed = pack_functions("f", [b""]).replace('[""]', '"%"')

    def broken(x):
        return jax.ffi.ffi_call(
            "tf.call_tf_function",
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            custom_call_api_version=2,
            legacy_backend_config=packed,
        )(x)

    with pytest.raises(FormatError, match="TensorFlow function that cannot be read"):
        from_exported(export.export(jax.jit(broken))(X))


def test_two_functions_of_one_name_are_refused():
    library = Library(FunctionDefLibrary())
    first, second = FunctionDef(), FunctionDef()
    first.signature.name = second.signature.name = "f"
    library.add_functions([first.SerializeToString(), first.SerializeToString()])
    assert len(library.proto.function) == 1
    second.signature.is_stateful = True
    with pytest.raises(StructureError, match="Two TensorFlow functions have the name f"):
        library.add_functions([second.SerializeToString()])
