"""Safety checks: what is disabled is disabled on every way, every order, and in the file."""

import os
import re
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export

import bridge
from bridge.retarget import retarget
from savedmodel.read import read, read_proto
from xla_call_module.checks import SHAPE_ASSERTIONS, DisabledCheck
from xla_call_module.errors import StructureError
from xla_call_module.node import OP, decode_node
from xla_call_module.versions import parse_release

OFF = ["shape_assertions"]
TWO = tf.constant([0.5, 1.0])
UNKNOWN = [tf.TensorSpec([None])]


def _at_least_four(x):
    return jnp.sum(x**3)


@pytest.fixture(scope="module")
def exported():
    """A function for four elements and more."""
    shape = export.symbolic_shape("b", constraints=["b >= 4"])
    spec = jax.ShapeDtypeStruct(shape, "float32")
    return export.export(jax.jit(_at_least_four), platforms=["cpu"])(spec)


@pytest.fixture(scope="module", params=["with the check", "without"])
def loaded(request, exported, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("checks") / "model")
    checks = OFF if request.param == "without" else []
    bridge.save(exported, folder, gradient_order=2, disabled_checks=checks)
    return folder, bool(checks)


def _derivatives(function, x):
    """The value, and the first and second derivatives of its sum."""
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = function(x)
        first = inner.gradient(y, x)
    return y.numpy(), first.numpy(), outer.gradient(first, x).numpy()


def _assert_derivatives(found):
    x = TWO.numpy()
    for value, expected in zip(found, [np.sum(x**3), 3 * x**2, 6 * x], strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-6)


WAYS = {
    "eager": lambda function: function,
    "graph": lambda function: tf.function(function, input_signature=UNKNOWN),
    "jit": lambda function: tf.function(function, input_signature=UNKNOWN, jit_compile=True),
}
REFUSED = "Input shapes do not match the symbolic shape constraint b ?>= ?4.*found -2"


class TestShapeAssertions:
    @pytest.mark.parametrize("way", WAYS)
    def test_with_the_check(self, way, exported):
        run = WAYS[way](bridge.convert(exported))
        with pytest.raises(tf.errors.InvalidArgumentError, match=REFUSED):
            run(TWO)

    @pytest.mark.parametrize("way", WAYS)
    def test_without_it_on_every_order(self, way, exported):
        _assert_derivatives(
            _derivatives(WAYS[way](bridge.convert(exported, disabled_checks=OFF)), TWO)
        )

    def test_in_a_file(self, loaded):
        folder, disabled = loaded
        function = tf.saved_model.load(folder)
        if disabled:
            _assert_derivatives(_derivatives(function, TWO))
        else:
            with pytest.raises(tf.errors.InvalidArgumentError, match=REFUSED):
                function(TWO)

    def test_in_a_session(self, loaded):
        folder, disabled = loaded
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            model = tf.compat.v1.saved_model.load(session, ["serve"], folder)
            signature = model.signature_def["serving_default"]
            fetch = next(iter(signature.outputs.values())).name
            feed = {next(iter(signature.inputs.values())).name: TWO.numpy()}
            if disabled:
                assert session.run(fetch, feed) == np.sum(TWO.numpy() ** 3)
            else:
                with pytest.raises(tf.errors.InvalidArgumentError, match=REFUSED):
                    session.run(fetch, feed)

    def test_a_file_that_tensorflow_saves(self, exported, tmp_path):
        module = tf.Module()
        module.run = WAYS["graph"](bridge.convert(exported, disabled_checks=OFF))
        tf.saved_model.save(module, str(tmp_path))
        reloaded = tf.saved_model.load(str(tmp_path))
        with tf.GradientTape() as tape:
            tape.watch(TWO)
            y = reloaded.run(TWO)
        assert y.numpy() == np.sum(TWO.numpy() ** 3)
        np.testing.assert_allclose(tape.gradient(y, TWO), 3 * TWO.numpy() ** 2, rtol=1e-6)

    def test_it_comes_back_from_the_file(self, loaded):
        folder, disabled = loaded
        chain = read(folder).default.function.chain
        assert [call.disabled_checks for call in chain] == [(SHAPE_ASSERTIONS,) * disabled] * 3
        assert bridge.inspect(folder).signatures[0].disabled_checks == tuple(OFF) * disabled

    def test_sizes_that_contradict_one_another(self):
        spec = jax.ShapeDtypeStruct(export.symbolic_shape("b, b"), "float32")
        exported = export.export(jax.jit(lambda x: x.sum()), platforms=["cpu"])(spec)
        unchecked = bridge.convert(exported, disabled_checks=OFF)
        unknown = [tf.TensorSpec([None, None])]
        for run in (
            unchecked,
            tf.function(unchecked),
            tf.function(unchecked, input_signature=unknown),
        ):
            assert run(tf.ones([2, 3])).numpy() == 6


UNKNOWN_MATRIX = tf.TensorSpec([None, None])


def _reshaped(x):
    """Reshape; where sizes do not fit, no shape of the result is right."""
    return jnp.concatenate([x[:, ::2] + x[:, 1::2], x[:, :1]], 1).reshape(-1)


def _added(image, mask):
    return image + mask


def _export(function, *shapes):
    scope = export.SymbolicScope()
    specs = [
        jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), "float32")
        for shape in shapes
    ]
    return export.export(jax.jit(function), platforms=["cpu"])(*specs)


class TestWhatIsSaidOfWrongShapes:
    """Argument, dimension, specification, and what arrived; also where TensorFlow's is masked."""

    CASES = {  # noqa: RUF012 - read only
        "a multiple": (_reshaped, ["b, 2*b"], [(2, 5)], r"args\[0\]", 1, 4, "b = 2"),
        "the same": (_added, ["b, 3", "b, 3"], [(2, 3), (4, 3)], r"args\[1\]", 0, 2, "b = 2"),
        "static": (jnp.sin, ["b, 3"], [(2, 5)], r"args\[0\]", 1, 3, ""),
        "a sum": (jnp.cos, ["b, b + 3"], [(3, 4)], r"args\[0\]", 1, 6, "b = 3"),
    }

    @pytest.mark.parametrize("case", CASES)
    @pytest.mark.parametrize("way", ["eager", "static graph"])
    def test_what_is_known_at_once(self, case, way):
        function, specs, shapes, path, axis, wanted, known = self.CASES[case]
        run = bridge.convert(_export(function, *specs))
        run = run if way == "eager" else tf.function(run)
        name = function.__name__
        with pytest.raises(
            StructureError,
            match=rf"(?m){path} of {name} has shape .*; expected float32\[b,.*\], whose dimension "
            rf"{axis} is {wanted}( with {known})?\.$",
        ):
            run(*map(tf.ones, shapes))

    @pytest.mark.parametrize("case", CASES)
    @pytest.mark.parametrize("order", [0, 1])
    def test_what_a_graph_finds_when_it_runs(self, case, order, tmp_path):
        function, specs, shapes, path, axis, wanted, known = self.CASES[case]
        converted = bridge.convert(_export(function, *specs))
        module = tf.Module()
        module.run = tf.function(converted, input_signature=[UNKNOWN_MATRIX] * len(specs))
        arrived = shapes[int(path[-3])]
        if known:
            message = (
                rf"(?s) size {path}\.shape\[{axis}\] "
                rf"\(= {arrived[axis]}\) and the specification '.*' \(= {wanted}\)\..* "
                rf"specifications: args\[0\]\.shape = \(b, .* 'b' = {known[-1]} from .*"
                r"By name: args\[0\] is "
            )
        else:
            message = (
                rf"{path} of {function.__name__} has the shape\] \[{' '.join(map(str, arrived))}\] "
                rf"\[expected float32\[b,.*\], whose dimension {axis} is\] \[{wanted}\]"
            )
        tensors = [*map(tf.ones, shapes)]
        with tf.GradientTape() as tape:
            for tensor in tensors[:order]:
                tape.watch(tensor)
            with pytest.raises(tf.errors.InvalidArgumentError, match=message) as raised:
                module.run(*tensors)
        assert not known or f"shapes_of_{function.__name__.strip('_')}" in str(raised.value)
        if order:
            return
        tf.saved_model.save(module, str(tmp_path))
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            tf.saved_model.load(str(tmp_path)).run(*tensors)

    def test_nothing_is_added_where_all_follows(self):
        run = tf.function(bridge.convert(_export(lambda x, y: x @ y.T, "b, 3", "c, 3")))
        concrete = run.get_concrete_function(*[tf.TensorSpec([None, 3])] * 2)
        kinds = {operation.type for operation in concrete.graph.get_operations()}
        assert not kinds & {"Assert", "If"}

    def test_right_shapes_pass(self):
        run = tf.function(
            bridge.convert(_export(_reshaped, "b, 2*b")), input_signature=[UNKNOWN_MATRIX]
        )
        x = tf.random.normal([2, 4])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(run(x))
        gradient = tape.gradient(y, x)
        np.testing.assert_array_equal(gradient, [[2, 1, 1, 1]] * 2)

    @pytest.mark.parametrize("jit_compile", [False, True])
    def test_in_a_loop(self, jit_compile):
        converted = bridge.convert(_export(lambda x, y: x * y.sum(), "b, 3", "b, 3"))

        @tf.function(input_signature=[UNKNOWN_MATRIX] * 2, jit_compile=jit_compile, autograph=False)
        def run(x, y):
            return tf.while_loop(
                lambda i, _: i < 2,
                lambda i, z: (i + 1, converted(z, y)),
                [0, x],
                maximum_iterations=2,
            )[1]

        np.testing.assert_array_equal(run(tf.ones([2, 3]), tf.ones([2, 3])), [[36.0] * 3] * 2)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"args\[1\]"):
            run(tf.ones([2, 3]), tf.ones([4, 3]))


@pytest.fixture(scope="module")
def rest():
    """Return what is left of four elements and more."""
    return bridge.convert(
        lambda x: x[3:], polymorphic_shapes="b", polymorphic_constraints=["b >= 4"]
    )


class TestWhatIsSaidOfConstraints:
    """Also where they are what makes the computation possible."""

    SAID = r"symbolic shape constraint b ?>= ?4\..* found -2"
    WAYS = {  # noqa: RUF012 - read only
        "eager": (lambda run: run, StructureError),
        "static graph": (tf.function, StructureError),
        "graph": (
            lambda run: tf.function(run, input_signature=UNKNOWN),
            tf.errors.InvalidArgumentError,
        ),
        "jit": (
            lambda run: tf.function(run, input_signature=UNKNOWN, jit_compile=True),
            tf.errors.InvalidArgumentError,
        ),
    }

    @pytest.mark.parametrize("way", WAYS)
    def test_where_they_do_not_hold(self, way, rest):
        wrap, error = self.WAYS[way]
        run = wrap(rest)
        np.testing.assert_array_equal(run(tf.ones(5)), [1, 1])
        with pytest.raises(error, match=f"(?s){self.SAID}") as raised:
            run(tf.ones(2))
        assert isinstance(raised.value, tf.errors.InvalidArgumentError)

    def test_in_a_file_that_tensorflow_saves(self, rest, tmp_path):
        module = tf.Module()
        module.run = tf.function(rest, input_signature=UNKNOWN)
        tf.saved_model.save(module, str(tmp_path))
        run = tf.saved_model.load(str(tmp_path)).run
        x = tf.ones(5)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = run(x)
        np.testing.assert_array_equal(tape.gradient(y, x), [0, 0, 0, 1, 1])
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){self.SAID}"):
            run(tf.ones(2))

    def test_an_empty_batch(self):
        run = tf.function(
            bridge.convert(lambda x: x[1:] * x[:-1], polymorphic_shapes="b"),
            input_signature=UNKNOWN,
        )
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="Expected value >= 1 for dimension variable 'b'"
        ):
            run(tf.ones(0))

    def test_sizes_that_are_no_linear_function(self):
        run = tf.function(
            bridge.convert(
                lambda x, y: jnp.tile(x, x.shape[0]) + y, polymorphic_shapes=["b", "b*b"]
            ),
            input_signature=UNKNOWN * 2,
        )
        np.testing.assert_array_equal(run(tf.ones(2), tf.ones(4)), [2] * 4)
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=r"(?s)args\[1\]\.shape\[0\] \(= 5\) and the specification 'b\^2' \(= 4\)",
        ):
            run(tf.ones(2), tf.ones(5))


class TestWhatASignatureIsGiven:
    """TensorFlow itself does not compare it with the specification."""

    CASES = {  # noqa: RUF012 - read only
        "a static size": ("b, 3", (2, 5), r"\[\?,3\]"),
        "all static": ("2, 3", (2, 5), r"\[2,3\]"),
        "a rank": ("b", (2, 5), r"\[\?\]"),
        "a scalar": ("", (1,), r"\[\]"),
    }

    @pytest.mark.parametrize("case", CASES)
    def test_it_is_refused_by_name(self, case, tmp_path):
        spec, shape, expected = self.CASES[case]
        # Disabled or not: the module takes no other.
        bridge.save(_export(jnp.sin, spec), tmp_path / "m", disabled_checks=OFF)
        signature = tf.saved_model.load(str(tmp_path / "m")).signatures["serving_default"]
        compiled = tf.function(
            lambda x: signature(x=x), input_signature=[tf.TensorSpec(None)], jit_compile=True
        )
        arrived = ",".join(map(str, shape))
        for run in (signature, compiled):
            with pytest.raises(
                tf.errors.InvalidArgumentError,
                match=rf"Shape of tensor x \[{arrived}\] is not compatible .* {expected}",
            ):
                run(x=tf.ones(shape))

    def test_what_a_variable_stands_for_is_left_to_the_module(self, tmp_path):
        """So that what disables the check when the file is run still does."""
        total = _export(lambda x, y: x.sum() + y.sum(), "b, 3", "b, 3")
        tensors = {"x": tf.ones([2, 3]), "y": tf.ones([4, 3])}
        bridge.save(total, tmp_path / "checked")
        checked = tf.saved_model.load(str(tmp_path / "checked")).signatures["serving_default"]
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"(?s)args\[1\]\.shape\[0\] \(= 4\).*'b' \(= 2\)"
        ):
            checked(**tensors)
        bridge.save(total, tmp_path / "unchecked", disabled_checks=OFF)
        unchecked = tf.saved_model.load(str(tmp_path / "unchecked")).signatures["serving_default"]
        assert next(iter(unchecked(**tensors).values())).numpy() == 18


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A function that runs for any sizes, and one that does not."""
    folder = tmp_path_factory.mktemp("wrong")
    anything = _export(lambda x, y: x.sum() + y.sum(), "b", "2*b")
    bridge.save(anything, folder / "any")
    fitting = _export(lambda x, y: jnp.tile(x, 2) + y, "b", "2*b")
    module = tf.Module()
    for name, function in {"any": anything, "fitting": fitting}.items():
        converted = bridge.convert(function)
        setattr(module, name, tf.function(converted, input_signature=UNKNOWN * 2))
    tf.saved_model.save(module, str(folder / "by TensorFlow"))
    bridge.save(fitting, folder / "fitting", gradient_order=1)
    bridge.save(fitting, folder / "unchecked", disabled_checks=OFF)
    bridge.save(_export(lambda x, w: x @ w, "b, n", "n, 2"), folder / "product")
    bridge.save(_export(lambda x: x[1:] * x[:-1], "b"), folder / "neighbours")
    return folder


def _opened(folder):
    """Return what a file has: its functions' nodes, and the calls of its XlaCallModule nodes."""
    library = read_proto(folder).meta_graphs[0].graph_def.library.function
    nodes = [node for function in library for node in function.node_def]
    return nodes, [decode_node(node) for node in nodes if node.op == OP]


class TestWhatAFileSaysOfWrongShapes:
    """A module says it, so that it is silent where the check is disabled by a flag."""

    WAYS = {  # noqa: RUF012 - read only
        "object": lambda loaded: loaded,
        "graph": lambda loaded: tf.function(loaded, autograph=False),
        "unknown sizes": lambda loaded: tf.function(
            loaded, input_signature=UNKNOWN * 2, autograph=False
        ),
        "compiled": lambda loaded: tf.function(loaded, jit_compile=True, autograph=False),
        "signature": lambda loaded: lambda x, y: loaded.signatures["serving_default"](x=x, y=y),
    }

    @pytest.mark.parametrize("way", WAYS)
    def test_argument_dimension_specification_and_size(self, way, folders):
        run = self.WAYS[way](tf.saved_model.load(str(folders / "any")))
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=r"(?s)dimension size args\[1\]\.shape\[0\] \(= 5\) and the specification "
            r"'2\*b' \(= 4\)\..*args\[1\]\.shape = \(2\*b,\).*'b' = 2 from specification 'b'",
        ):
            run(tf.ones(2), tf.ones(5))

    IMPOSSIBLE = {  # noqa: RUF012 - read only
        "fitting": (
            [(2,), (5,)],
            (
                r"args\[1\]\.shape\[0\] \(= 5\) and the specification '2\*b' \(= 4\)\..*"
                r"By name: args\[0\] is x, args\[1\] is y\."
            ),
        ),
        "product": (
            [(2, 3), (4, 2)],
            (
                r"args\[1\]\.shape\[0\] \(= 4\) and the specification 'n' \(= 3\)\..*"
                r"By name: args\[0\] is x, args\[1\] is w\."
            ),
        ),
        "neighbours": (
            [(0,)],
            r"Expected value >= 1 for dimension variable 'b'.*\(= 0\).*By name: args\[0\] is x\.",
        ),
    }

    @pytest.mark.parametrize("way", [*WAYS, "saved again"])
    @pytest.mark.parametrize("case", IMPOSSIBLE)
    def test_also_where_the_computation_itself_is_impossible(self, case, way, folders, tmp_path):
        shapes, message = self.IMPOSSIBLE[case]
        tensors = [*map(tf.ones, shapes)]
        loaded = tf.saved_model.load(str(folders / case))
        if way == "saved again":
            tf.saved_model.save(loaded, str(tmp_path))
            loaded = tf.saved_model.load(str(tmp_path))
        ways = {**self.WAYS, "saved again": self.WAYS["object"]}
        if way == "unknown sizes":
            unknown = [tf.TensorSpec([None] * len(shape)) for shape in shapes]
            run = tf.function(loaded, input_signature=unknown, autograph=False)
        elif way == "signature":
            names = loaded.signatures["serving_default"].structured_input_signature[1]
            given = dict(zip(sorted(names, key="xyw".index), tensors, strict=True))
            run = lambda *_: loaded.signatures["serving_default"](**given)  # noqa: E731
        else:
            run = ways[way](loaded)
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){message}"):
            run(*tensors)

    @pytest.mark.parametrize("case", IMPOSSIBLE)
    def test_in_a_session(self, case, folders):
        shapes, message = self.IMPOSSIBLE[case]
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            model = tf.compat.v1.saved_model.load(session, ["serve"], str(folders / case))
            signature = model.signature_def["serving_default"]
            names = sorted(signature.inputs, key="xyw".index)
            feeds = {
                signature.inputs[name].name: np.ones(shape)
                for name, shape in zip(names, shapes, strict=True)
            }
            fetch = next(iter(signature.outputs.values())).name
            with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){message}"):
                session.run(fetch, feeds)

    @pytest.mark.parametrize("way", [way for way in WAYS if way != "signature"])
    def test_right_shapes_pass_with_their_gradients(self, way, folders):
        run = self.WAYS[way](tf.saved_model.load(str(folders / "fitting")))
        x, y = tf.constant([1.0, 2.0]), tf.ones(4)
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            z = run(x, y) * [1.0, 2.0, 3.0, 4.0]
        np.testing.assert_array_equal(z, [2, 6, 6, 12])
        for found, expected in zip(tape.gradient(z, [x, y]), [[4, 6], [1, 2, 3, 4]], strict=True):
            np.testing.assert_array_equal(found, expected)

    def test_a_static_size_of_a_function_that_takes_sizes_that_are_unknown(self, folders):
        loaded = tf.saved_model.load(str(folders / "product"))
        unknown = tf.function(loaded, input_signature=[UNKNOWN_MATRIX] * 2, autograph=False)
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=r"Shape of tensor \w+ \[3,7\] is not compatible with expected shape \[\?,2\]",
        ):
            unknown(tf.ones([2, 3]), tf.ones([3, 7]))

    def test_nothing_runs_in_front_where_it_is_not_needed(self, folders, exported, tmp_path):
        bridge.save(_export(jnp.sin, "b, 3"), tmp_path / "any")
        for folder in (folders / "unchecked", tmp_path / "any"):
            nodes, calls = _opened(folder)
            assert "If" not in {node.op for node in nodes}
            assert all(call.results for call in calls)
        assert "If" in {node.op for node in _opened(folders / "fitting")[0]}

    def test_what_runs_in_front_is_no_part_of_the_model(self, folders, tmp_path):
        folder = folders / "fitting"
        assert len(read(folder).default.function.chain) == 2
        z = bridge.load(folder)(np.ones(1, np.float32), np.ones(2, np.float32))
        np.testing.assert_array_equal(z, [2, 2])
        report = retarget(folder, "2.14", to=tmp_path / "old")
        assert (report.nodes, report.modules, report.tensorflow) == (2, 2, "2.14")
        _, calls = _opened(tmp_path / "old")
        assert [bool(call.results) for call in calls].count(False) == 1
        assert max(call.stablehlo_version for call in calls) <= parse_release("2.14").stablehlo
        run = tf.saved_model.load(str(tmp_path / "old"))
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"'2\*b' \(= 4\)"):
            run(tf.ones(2), tf.ones(5))

    FLAG = "--tf_xla_call_module_disabled_checks=shape_assertions"

    def test_a_flag_of_another_process_makes_it_silent(self, folders, preloaded_python):
        """What TensorFlow has saved of a converted function as well as what this package has."""
        code = (
            "import sys, tensorflow as tf\n"
            "both = tf.saved_model.load(sys.argv[3])\n"
            "for run in (tf.saved_model.load(sys.argv[1]), both.any):\n"
            "    print(run(tf.ones(2), tf.ones(5)).numpy())\n"
            "for run in (tf.saved_model.load(sys.argv[2]), both.fitting):\n"
            "    try: run(tf.ones(2), tf.ones(5))\n"
            "    except tf.errors.InvalidArgumentError as error: print(error)"
        )
        files = [str(folders / name) for name in ("any", "fitting", "by TensorFlow")]
        done = subprocess.run(
            [preloaded_python, "-c", code, *files],
            env={**os.environ, "TF_XLA_FLAGS": self.FLAG},
            capture_output=True,
            text=True,
            check=True,
        )
        *values, messages = done.stdout.split("\n", 2)
        assert values == ["7.0", "7.0"]
        assert "specification" not in messages
        assert len(re.findall(r"error: 'stablehlo.add' op requires", messages)) == 2

    def test_jax_says_it_of_the_same_file(self, folders):
        with pytest.raises(
            StructureError,
            match=r"(?m)y of serving_default has shape \(5,\); expected float32\[2\*b\], whose "
            r"dimension 0 is 4 with b = 2\.$",
        ):
            bridge.load(folders / "fitting")(np.ones(2, np.float32), np.ones(5, np.float32))


class TestOptions:
    @pytest.mark.parametrize("check", ["shape_assertion", DisabledCheck])
    def test_an_unknown_one(self, check, exported, tmp_path):
        for refuse in (
            lambda: bridge.convert(jnp.sin, disabled_checks=[check]),
            lambda: bridge.convert(exported, disabled_checks=[check]),
            lambda: bridge.save(exported, tmp_path / "model", disabled_checks=[check]),
        ):
            with pytest.raises(StructureError, match=r"safety check .* is unknown; expected"):
                refuse()
        assert not (tmp_path / "model").exists()

    def test_a_static_size_is_always_checked(self):
        """The module takes no other, whatever the checks are."""
        exported = export.export(jax.jit(jnp.sum))(
            jax.ShapeDtypeStruct(export.symbolic_shape("b, 3"), "float32")
        )
        with pytest.raises(StructureError, match=r"args\[0\] of .* \(2, 5\).*dimension 1 is 3"):
            bridge.convert(exported, disabled_checks=OFF)(tf.ones([2, 5]))
