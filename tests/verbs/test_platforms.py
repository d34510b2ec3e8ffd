"""Platforms: what is lowered for, which branch runs, and what is said where none may."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export, lax

import bridge
from xla_call_module.errors import InteropError, LoweringError, PlatformError, StructureError
from xla_call_module.node import OP, decode_node

X = tf.constant([1.0, 2.0])
# Each platform multiplies by another number, so that the result and the gradients tell which ran.
FACTORS = {"cpu": 2.0, "cuda": 3.0, "tpu": 5.0, "rocm": 7.0}


def _places(x):
    branches = {name: lambda x, factor=factor: factor * x**2 for name, factor in FACTORS.items()}
    return lax.platform_dependent(x, **branches)


def _derivatives(function, x):
    """The value and the first two derivatives of its sum."""
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = function(x)
        first = inner.gradient(y, x)
    return [y, first, outer.gradient(first, x)]


def _assert_on_the_cpu(found):
    factor, x = FACTORS["cpu"], X.numpy()
    for value, expected in zip(found, [x**2, 2 * x, np.full(2, 2.0)], strict=False):
        np.testing.assert_array_equal(value, factor * expected)


def _calls(function, *specs):
    """Return what the nodes of a traced function call."""
    graph = tf.function(function).get_concrete_function(*specs).graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return [decode_node(node) for node in nodes if node.op == OP]


ORDERS = [
    ("cpu",),
    ("cpu", "cuda", "tpu"),
    ("cuda", "cpu", "tpu"),
    ("tpu", "gpu", "cpu"),
]


class TestTheBranchThatRuns:
    @pytest.mark.parametrize("platforms", ORDERS, ids="-".join)
    @pytest.mark.parametrize("way", ["eager", "graph", "jit"])
    def test_in_this_process(self, way, platforms):
        run = bridge.convert(_places, platforms=platforms)
        if way != "eager":
            run = tf.function(run, jit_compile=way == "jit")
        _assert_on_the_cpu(_derivatives(run, X))

    @pytest.mark.parametrize("platforms", ORDERS, ids="-".join)
    def test_in_a_file(self, platforms, tmp_path):
        """By both of TensorFlow's loaders."""
        names = [name for name in platforms if name != "gpu"] + ["rocm"] * ("gpu" in platforms)
        exporter = export.export(jax.jit(_places), platforms=names)
        bridge.save(
            exporter(jax.ShapeDtypeStruct((2,), "float32")), tmp_path / "model", gradient_order=2
        )
        folder = str(tmp_path / "model")
        _assert_on_the_cpu(_derivatives(tf.saved_model.load(folder), X))
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            model = tf.compat.v1.saved_model.load(session, ["serve"], folder)
            signature = model.signature_def["serving_default"]
            fetch = next(iter(signature.outputs.values())).name
            feed = next(iter(signature.inputs.values())).name
            _assert_on_the_cpu([session.run(fetch, {feed: X.numpy()})])

    @pytest.mark.parametrize("platforms", [("tpu", "cpu"), ("cpu", "cuda", "tpu")], ids="-".join)
    def test_in_a_file_that_tensorflow_saved(self, platforms, tmp_path):
        module = tf.Module()
        module.run = tf.function(bridge.convert(_places, platforms=platforms))
        module.run(X)
        tf.saved_model.save(module, str(tmp_path))
        reloaded = tf.saved_model.load(str(tmp_path))
        with tf.GradientTape() as tape:
            tape.watch(X)
            y = reloaded.run(X)
        _assert_on_the_cpu([y, tape.gradient(y, X)])

    def test_inside_of_loops_and_conditions(self, tmp_path):
        def body(x, step):
            x = lax.platform_dependent(x, cpu=lambda x: jnp.sin(x) * 2, default=lambda x: x * 9)
            square = lambda x: lax.platform_dependent(x, cpu=jnp.square, default=jnp.negative)  # noqa: E731
            return lax.cond(step > 0, square, lambda x: x, x), None

        def function(x):
            return lax.scan(body, x, jnp.arange(2))[0].sum()

        spec = jax.ShapeDtypeStruct((3,), "float32")
        platforms = ["gpu", "cpu", "tpu"]
        bridge.save(function, tmp_path / "m", args=(spec,), platforms=platforms, gradient_order=2)
        x = tf.constant([0.1, 0.5, 1.0])
        on_cpu = lambda x: jnp.sum((2 * jnp.sin(2 * jnp.sin(x))) ** 2)  # noqa: E731
        first = jax.grad(on_cpu)
        expected = [f(x.numpy()) for f in (on_cpu, first, jax.grad(lambda x: first(x).sum()))]
        converted = bridge.convert(function, platforms=platforms)
        for run in (converted, tf.saved_model.load(str(tmp_path / "m"))):
            for value, wanted in zip(_derivatives(run, x), expected, strict=True):
                np.testing.assert_allclose(value, wanted, rtol=1e-4)

    def test_symbolic_dimensions(self):
        run = tf.function(
            bridge.convert(_places, polymorphic_shapes="b"), input_signature=[tf.TensorSpec([None])]
        )
        _assert_on_the_cpu(_derivatives(run, X))


def _random(key_data):
    return jax.random.normal(jax.random.wrap_key_data(key_data))


class TestWhatIsLoweredFor:
    def test_three_platforms_by_default(self):
        (call,) = _calls(bridge.convert(jnp.sin, with_gradient=False), X)
        assert call.platforms == ("cpu", "cuda", "tpu")
        assert call.has_platform_index

    @pytest.mark.parametrize("platforms", ["cpu", ["cpu"], ["CPU", "cpu"]])
    def test_one_platform_takes_no_index(self, platforms):
        call, *_ = _calls(bridge.convert(_places, platforms=platforms), X)
        assert call.platforms == ("cpu",)
        assert not call.has_platform_index
        # `main` takes as many arguments as the function, or else the op would refuse it.
        assert len(call.kept) == 1
        _assert_on_the_cpu([bridge.convert(_places, platforms=platforms)(X)])

    def test_every_order_of_the_gradient(self):
        converted = bridge.convert(jnp.sin)

        def gradient(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = converted(x)
            return tape.gradient(y, x)

        platforms = [call.platforms for call in _calls(gradient, X)]
        assert len(platforms) >= 2
        assert set(platforms) == {("cpu", "cuda", "tpu")}

    @pytest.mark.parametrize(
        ("function", "spec"),
        [
            (jnp.sin, tf.TensorSpec([2], tf.bfloat16)),
            (jnp.exp, tf.TensorSpec([2], tf.complex64)),
            (lambda x: x + 1, tf.TensorSpec([2], tf.dtypes.experimental.float8_e4m3fn)),
            (lambda x: lax.dot(x, x, precision="highest"), tf.TensorSpec([2, 2])),
            (lambda x: jnp.fft.fft(x), tf.TensorSpec([4])),
            (lambda x: lax.approx_max_k(x, 2)[0], tf.TensorSpec([4])),
            (lambda x: lax.reduce_precision(x, 5, 3), tf.TensorSpec([4])),
            (lambda x: jnp.cumsum(x), tf.TensorSpec([4])),
            (
                lambda x: jax.random.normal(jax.random.wrap_key_data(x)),
                tf.TensorSpec([2], "uint32"),
            ),
        ],
        ids=["bf16", "complex", "f8", "precision", "fft", "approx", "reduce", "cumsum", "random"],
    )
    def test_what_is_lowered_for_all_three(self, function, spec):
        (call,) = _calls(bridge.convert(function, with_gradient=False), spec)
        assert call.platforms == ("cpu", "cuda", "tpu")


def _unlike(x):
    return jax.lax.linalg.tridiagonal(x)


def _tf32(x):
    return lax.dot(x, x, precision=lax.DotAlgorithmPreset.TF32_TF32_F32)


class TestWhatCannotBeLowered:
    @pytest.mark.parametrize(
        ("function", "options", "message"),
        [
            (
                _unlike,
                {},
                (
                    r"(?m)^_unlike cannot be lowered for tpu \(tpu: JAX has no rule for the "
                    r"primitive tridiagonal there\)\. To do: .* platforms=\['cpu', 'cuda'\]\.$"
                ),
            ),
            (
                jax.scipy.linalg.schur,
                {},
                (
                    r"^schur cannot be lowered for cuda and tpu .* primitive schur .*leave the "
                    r"primitive out .* since platforms=\['cpu'\] would not do either: schur calls "
                    r"lapack_sgees_ffi at .* on cpu: the call would fail"
                ),
            ),
            (
                jax.scipy.linalg.schur,
                {"disabled_checks": ["custom_call:lapack_sgees_ffi"]},
                r"(?m)^schur cannot be lowered for cuda and tpu .*others, platforms=\['cpu'\]\.$",
            ),
            (
                jax.scipy.linalg.schur,
                {"platforms": ["tpu"]},
                r"^schur cannot be lowered for tpu .*To do: leave the primitive out",
            ),
            (
                _tf32,
                {},
                (
                    r"_tf32 cannot be lowered for cpu \(cpu: The precision 'TF32_TF32_F32' is not "
                    r"supported by dot_general on CPU at \S+\d\).* platforms=\['cuda', 'tpu'\]"
                ),
            ),
            (
                jnp.linalg.eig,
                {},
                (
                    r"eig cannot be lowered for cuda and tpu \(cuda: it is lowered to the custom "
                    r"call \w+, whose meaning JAX does not guarantee; tpu: .* eig there\)"
                ),
            ),
        ],
    )
    def test_some_platform(self, function, options, message):
        with pytest.raises(PlatformError, match=message):
            bridge.convert(function, **options)(tf.eye(2))

    @pytest.mark.parametrize("platforms", [None, ["cpu"]])
    def test_a_custom_call_without_a_meaning(self, platforms):
        def unknown(x):
            return jax.ffi.ffi_call("made_up", x)(x)

        line = unknown.__code__.co_firstlineno + 1
        with pytest.raises(
            InteropError,
            match=rf"(?m)^unknown calls made_up at \S*test_platforms\.py:{line}, and JAX does not "
            r"guarantee .* disabled_checks=\['custom_call:made_up'\]\.$",
        ):
            bridge.convert(unknown, platforms=platforms)(X)
        allowed = bridge.convert(
            unknown, platforms=platforms, disabled_checks=["custom_call:made_up"]
        )
        with pytest.raises(tf.errors.NotFoundError, match="No FFI handler registered for made_up"):
            allowed(X)

    @pytest.mark.parametrize(
        "verb",
        [
            lambda function, folder: bridge.save(function, folder / "m", args="f32[3,n]"),
            lambda function, folder: bridge.save(
                function, folder / "m", args="f32[3,n]", operations="tensorflow"
            ),
            lambda function, folder: bridge.to_onnx(function, args="f32[3,n]"),
            lambda function, folder: bridge.to_litert(function, args="f32[3,n]"),
            lambda function, folder: bridge.convert(function, polymorphic_shapes="_, n")(
                tf.ones([3, 4])
            ),
        ],
        ids=["save", "operations", "onnx", "litert", "convert"],
    )
    def test_a_size_that_no_platform_takes(self, verb, tmp_path):
        """JAX traces it, and refuses it when it lowers it."""

        def spectrum(x):
            return jnp.abs(jnp.fft.rfft(x))

        line = spectrum.__code__.co_firstlineno + 1
        with pytest.raises(
            LoweringError,
            match=rf"(?m)^spectrum cannot be lowered for cpu.*Shape polymorphism for FFT .* at \S*"
            rf"test_platforms\.py:{line}\)\. To do: export it with fixed sizes",
        ):
            verb(spectrum, tmp_path)

    def test_a_size_that_jax_compares(self):
        def fitting(x):
            return x if x.shape[0] > 2 else -x

        line = fitting.__code__.co_firstlineno + 1
        why = rf"needs a symbolic size as a number at \S*test_platforms\.py:{line}\. To do"
        with pytest.raises(StructureError, match=why):
            bridge.to_onnx(fitting, args="f32[n]")

    def test_a_gradient(self):
        """Where the function itself is the same on all platforms."""

        @jax.custom_vjp
        def function(x):
            return jnp.sum(x)

        function.defvjp(lambda x: (jnp.sum(x), x), lambda x, _: (jax.lax.linalg.tridiagonal(x)[0],))
        with tf.GradientTape() as tape:
            x = tf.eye(2)
            tape.watch(x)
            y = bridge.convert(function)(x)
        with pytest.raises(
            PlatformError,
            match=r"The gradient of function cannot be lowered for tpu .* primitive tridiagonal "
            r".*platforms=\['cpu', 'cuda'\]",
        ):
            tape.gradient(y, x)

    @pytest.mark.parametrize("error", [ValueError, NotImplementedError, TypeError, KeyError])
    def test_an_error_of_the_function(self, error):
        calls = []

        def wrong(x):
            calls.append(x)
            raise error("the user's")

        with pytest.raises(error, match="the user's"):
            bridge.convert(wrong)(X)
        assert len(calls) <= 3  # once more to tell it from an error of JAX


class TestWhereItMayNotRun:
    def test_eager(self):
        with pytest.raises(
            PlatformError,
            match=r"^_places was exported for cuda, rocm, and it would run on CPU, whose platform "
            r"is cpu\. To do: .*disabled_checks=\['platform'\], or TF_XLA_FLAGS=",
        ):
            bridge.convert(_places, platforms="gpu")(X)

    def test_eager_under_a_tape(self):
        with tf.GradientTape() as tape:
            tape.watch(X)
            with pytest.raises(PlatformError, match="whose platform is cpu"):
                bridge.convert(_places, platforms=["tpu"])(X)

    def test_in_a_graph(self):
        """It may be made for another machine; here TensorFlow's error names node and cures."""
        run = tf.function(bridge.convert(_places, platforms=["tpu"]))
        with pytest.warns(
            UserWarning,
            match=r"^A graph that cannot run here: _places was exported for tpu, and the devices "
            r"of this process are of the platform cpu\. To do: .*disabled_checks=\['platform'\]",
        ):
            concrete = run.get_concrete_function(X)
        with pytest.raises(
            tf.errors.NotFoundError,
            match=r"(?s)CPU is not among the platforms required by the module: \[TPU\].*node "
            r"places_is_for_tpu_only__export_it_again_with_platforms_or_set_disabled_checks_platform",
        ):
            concrete(X)

    @pytest.mark.parametrize("way", ["object", "signature"])
    def test_in_a_file(self, way, tmp_path):
        exporter = export.export(jax.jit(_places), platforms=["cuda", "tpu"])
        bridge.save(exporter(jax.ShapeDtypeStruct((2,), "float32")), tmp_path / "m")
        loaded = tf.saved_model.load(str(tmp_path / "m"))
        run = loaded if way == "object" else loaded.signatures["serving_default"]
        with pytest.raises(
            tf.errors.NotFoundError,
            match=r"(?s)CPU is not among the platforms.*node XlaCallModule_is_for_cuda_tpu_only__"
            r"export_it_again_with_platforms_or_set_disabled_checks_platform",
        ):
            run(X) if way == "object" else run(x=X)

    def test_no_node_has_a_hint_that_runs_here(self):
        concrete = tf.function(bridge.convert(_places)).get_concrete_function(X)
        assert "only" not in " ".join(
            operation.name for operation in concrete.graph.get_operations()
        )

    @pytest.mark.parametrize(
        "check", ["platform", export.DisabledSafetyCheck.platform()], ids=["text", "jax's"]
    )
    @pytest.mark.parametrize("way", ["eager", "graph", "jit", "exported"])
    def test_without_the_check(self, way, check):
        options = {"platforms": ["tpu", "cuda"], "disabled_checks": [check]}
        source = _places
        if way == "exported":
            exporter = export.export(jax.jit(_places), platforms=options.pop("platforms"))
            source = exporter(jax.ShapeDtypeStruct((2,), "float32"))
        run = bridge.convert(source, **options)
        if way in ("graph", "jit"):
            run = tf.function(run, jit_compile=way == "jit")
        value, first, second = _derivatives(run, X)
        factor = FACTORS["tpu"]  # TensorFlow takes index 0 where none is its own
        np.testing.assert_array_equal(value, factor * X**2)
        np.testing.assert_array_equal(first, 2 * factor * X)
        np.testing.assert_array_equal(second, [2 * factor] * 2)
