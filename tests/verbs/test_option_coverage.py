"""Every parameter of every public verb is tested: by a table of options, or where it says here."""

from __future__ import annotations

import ast
import collections.abc
import dataclasses
import functools
import inspect
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bridge
from bridge.chains.orders import ChainOptions
from bridge.cli.command_arguments import SAVE_ARGUMENTS
from bridge.cli.export_request import ExportRequest
from bridge.save import SaveOptions
from bridge.serving.publishing import PublishOptions
from tests.policy.source import ROOT

TABLES = "tests/verbs/test_options.py"
# For each verb its parameters, in the groups that a file tests.
TESTED = {
    "call_tf": {
        TABLES: "fun_tf shapes graph variables compiled has_side_effects",
    },
    "convert": {
        TABLES: "fun polymorphic_shapes polymorphic_constraints platforms disabled_checks "
        "with_gradient gradient_order residuals hoist_constants linalg operations",
        "tests/bridge/converting/test_variable_state.py": "variables updates",
    },
    "exported_from_stage": {
        "tests/bridge/exporting/test_stages.py": "stage args kwargs platforms disabled_checks"
    },
    "inspect": {"tests/bridge/test_inspect.py": "path"},
    "load": {
        TABLES: "path",
        "tests/eight_devices/loading.py": "mesh",
    },
    "retarget": {
        TABLES: "exported tensorflow platforms",
        "tests/bridge/test_retarget_file.py": "to disabled_checks linalg lift operations overwrite",
        "tests/savedmodel/test_gradient_orders.py": "gradient_order",
        "tests/bridge/test_save_for_converters.py": "for_converters",
    },
    "save": {
        "tests/verbs/test_exact.py": "exact",
        TABLES: "model path params args platforms trainable inputs outputs gradient_order "
        "residuals hoist_constants tensorflow disabled_checks linalg num_shards manifest "
        "batch_buckets defaults operations",
        "tests/bridge/test_save.py": "overwrite",
        "tests/bridge/core/test_updates.py": "updates",
        "tests/bridge/test_save_for_converters.py": "for_converters",
    },
    "save_litert": {
        "tests/verbs/test_exact.py": "exact",
        "tests/bridge/litert/test_conversion_files.py": "model path params args signatures "
        "gradient_order platform inputs outputs verify",
        "tests/bridge/litert/test_conversion_verify.py": "overwrite",
        "tests/bridge/verifying/test_verification.py": "tolerance",
        "tests/bridge/litert/test_quantization.py": "quantize calibration",
        "tests/bridge/litert/test_conversion_state.py": "updates state",
    },
    "save_onnx": {
        "tests/verbs/test_exact.py": "exact",
        TABLES: "model path params gradient_order external_data platform inputs outputs",
        "tests/bridge/onnx/test_onnx_model_saving.py": "opset overwrite",
        "tests/bridge/verifying/test_verification.py": "verify tolerance",
        "tests/bridge/sources/test_bound_call_functions.py": "args",
    },
    "to_jax": {
        "tests/bridge/test_to_jax.py": "model",
        "tests/eight_devices/lifting.py": "mesh",
    },
    "to_litert": {
        "tests/verbs/test_exact.py": "exact",
        "tests/bridge/litert/test_conversion_files.py": "model params args signatures "
        "gradient_order platform inputs outputs verify",
        "tests/bridge/verifying/test_verification.py": "tolerance",
        "tests/bridge/litert/test_quantization.py": "quantize calibration",
        "tests/bridge/litert/test_conversion_state.py": "updates state",
    },
    "to_onnx": {
        "tests/verbs/test_exact.py": "exact",
        "tests/bridge/onnx/test_onnx_model_saving.py": "exported params gradient_order opset "
        "inputs outputs",
        "tests/bridge/onnx/test_onnx_model.py": "platform",
        "tests/bridge/verifying/test_verification.py": "verify tolerance",
        "tests/bridge/sources/test_bound_call_functions.py": "args",
    },
    "update": {"tests/bridge/test_update.py": "path params to overwrite"},
    "verify": {
        "tests/bridge/test_verify.py": "path record against python seed tolerance steps",
        "tests/bridge/verifying/test_trial_request.py": "probes inputs quick",
    },
    "beam.ModelHandler": {
        "tests/bridge/test_beam.py": "path signature batch_buckets min_batch_size max_batch_size "
        "max_batch_duration_secs element_size_fn batch_length_fn batch_bucket_boundaries "
        "large_model model_copies env_vars"
    },
    "jax2tf.call_tf": {
        "tests/bridge/test_jax2tf.py": "callable_tf has_side_effects ordered output_shape_dtype "
        "call_tf_graph"
    },
    "jax2tf.convert": {
        "tests/bridge/test_jax2tf.py": "fun_jax polymorphic_shapes polymorphic_constraints "
        "with_gradient enable_xla native_serialization native_serialization_platforms "
        "native_serialization_disabled_checks"
    },
    "jax2tf.dtype_of_val": {"tests/bridge/test_jax2tf.py": "val"},
    "jax2tf.eval_polymorphic_shape": {"tests/bridge/test_jax2tf.py": "fun_jax polymorphic_shapes"},
    "jax2tf.split_to_logical_devices": {
        "tests/bridge/test_jax2tf.py": "tensor partition_dimensions"
    },
    "keras.ExportedLayer": {
        TABLES: "exported params trainable gradient_order operations",
        "tests/bridge/test_keras_layer.py": "state rng train kwargs",
        "tests/bridge/test_keras_without_jaxlib.py": "tensorflow",
    },
    "tf_keras.ExportedLayer": {
        TABLES: "exported params trainable gradient_order operations",
        "tests/bridge/test_tf_keras.py": "state rng train tensorflow kwargs",
    },
    "meshes.mesh_of": {"tests/eight_devices/loading.py": "saved devices"},
    "meshes.shards_of": {"tests/bridge/inspecting/test_sharding.py": "saved"},
    "serving.add_warmup": {"tests/bridge/serving/test_warmup.py": "path warmup name seed"},
    "serving.compose": {
        "tests/bridge/serving/test_compose.py": "model path preprocess postprocess request "
        "examples method classes defaults signature bare overwrite options"
    },
    "serving.publish": {
        "tests/bridge/serving/test_publishing.py": "model base_path version warmup batching keep "
        "name options weights force",
        "tests/bridge/serving/test_warmup.py": "seed",
        "tests/bridge/serving/test_first_requests.py": "measure",
        "tests/verbs/test_labels.py": "labels",
    },
    "serving.rollback": {"tests/bridge/serving/test_publishing.py": "base_path to keep"},
    "serving.write_configs": {
        "tests/bridge/serving/test_configuration.py": "folder models batching platforms"
    },
    "testing.assert_gradients_match": {
        "tests/bridge/test_testing.py": "fun args kwargs order modes reference variables forward "
        "rtol atol seed"
    },
}
# These are values: what is asked of them is tested where they are used.
VALUES = {
    "jax2tf.DEFAULT_NATIVE_SERIALIZATION", "jax2tf.DisabledSafetyCheck",
    "jax2tf.PolyShape", "meshes.Sharded", "meshes.to_svg", "meshes.to_text", "serving.Batching",
    "serving.ConfigFiles", "serving.ModelConfig", "serving.Published",
}  # fmt: skip


def _verbs():
    """The public callables of `bridge` and its modules, by their names."""
    for name in bridge.__all__:
        yield name, getattr(bridge, name)
    for module in ("beam", "jax2tf", "keras", "meshes", "serving", "testing", "tf_keras"):
        try:
            home = getattr(bridge, module)
            found = {name: getattr(home, name) for name in home.__all__}
        except ImportError:
            continue  # an optional package
        for name, value in found.items():
            yield f"{module}.{name}", value


@functools.cache
def _passed(file):
    """The names that a file passes by name, as keywords or as keys of what it hands on."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.keyword):
            found.add(node.arg)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value, node.value.lstrip("-").replace("-", "_")}
    return found


@pytest.mark.parametrize("name", sorted(TESTED))
def test_every_parameter_is_tested(name):
    verbs = dict(_verbs())
    if name not in verbs:
        pytest.skip(f"{name} needs a package that is not installed")
    parameters = inspect.signature(verbs[name]).parameters
    tested = {option: file for file, options in TESTED[name].items() for option in options.split()}
    assert tested.keys() == parameters.keys()
    untested = [
        f"{option} in {file}"
        for option, file in tested.items()
        if parameters[option].kind is inspect.Parameter.KEYWORD_ONLY and option not in _passed(file)
    ]
    assert untested == []


def test_every_public_name_is_here():
    names = {name for name, _ in _verbs() if not name.endswith("Error")}
    assert names - TESTED.keys() - VALUES == set()


def test_what_is_handed_on_to_save_is_what_save_takes():
    """`publish` and `compose` take its options by name, with the types that it gives them."""
    taken = typing.get_type_hints(bridge.save)
    handed_on = typing.get_type_hints(SaveOptions)
    assert taken.keys() - handed_on.keys() == {"model", "path", "overwrite", "defaults", "return"}
    assert {name: taken[name] for name in handed_on} == handed_on
    composed = typing.get_type_hints(bridge.serving.compose) | {
        "request": collections.abc.Mapping[str, typing.Any] | None  # without TensorFlow's class
    }
    names = {"preprocess", "postprocess", "request", "examples", "method", "classes"}
    published = handed_on | {"defaults": taken["defaults"]} | {n: composed[n] for n in names}
    assert typing.get_type_hints(PublishOptions) == published


@pytest.mark.parametrize("verb", [bridge.save, bridge.convert])
def test_the_options_of_the_passes_have_one_default(verb):
    """What `ChainOptions` has where nobody says anything is what the verbs say."""
    taken, options = (inspect.signature(one).parameters for one in (verb, ChainOptions.parse))
    of_files = ("for_converters", "exact") if verb is bridge.convert else ()
    names = [name for name in options if name not in of_files]
    assert ChainOptions.parse(**{name: taken[name].default for name in names}) == ChainOptions()


def test_the_command_line_has_the_options_of_save():
    """The rest has another form there (`target`, `out`), or is for Python alone."""
    taken = inspect.signature(bridge.save).parameters.keys()
    request = {field.name for field in dataclasses.fields(ExportRequest)}
    assert SAVE_ARGUMENTS.keys() <= taken
    for_python = {"hoist_constants", "num_shards", "manifest", "defaults"}
    assert taken - request - SAVE_ARGUMENTS.keys() == {"model", "path"} | for_python


X = np.ones(3, np.float32)
# What an option cannot be, and what is said of it.
WRONG = {
    "gradient_order": (
        (-1, True, 1.0, "2", None),
        r"gradient_order is .*; expected a whole number",
    ),
    "hoist_constants": ((-1, True, 1.5, "all"), r"hoist_constants is .*; expected a number of byt"),
    "linalg": (("blas", None, True), r"linalg is .*; expected 'portable' or 'lapack'"),
    "operations": (("tf", None, True), r"operations is .*; expected one of 'xla', 'tensorflow'"),
    "platforms": ((["abacus"], []), r"platform"),
    "disabled_checks": ((["platfrom"], "everything", 3), r"safety check|disabled_checks is 3"),
    "tensorflow": (("1.15", "new", 2.16), r"TensorFlow|tensorflow"),
    "num_shards": ((0, -1, 1.5), r"num_shards"),
    "batch_buckets": (((), (0,)), r"batch_buckets|bucket"),
}
TAKES = {
    "save": ("gradient_order", "hoist_constants", "linalg", "platforms", "disabled_checks",
             "tensorflow", "num_shards", "batch_buckets", "operations"),
    "convert": ("gradient_order", "hoist_constants", "linalg", "platforms", "disabled_checks",
                "operations"),
    "save_litert": ("gradient_order",),
    "save_onnx": ("gradient_order",),
    "keras.ExportedLayer": ("gradient_order", "tensorflow", "operations"),
    "tf_keras.ExportedLayer": ("gradient_order", "tensorflow", "operations"),
}  # fmt: skip
REFUSED = [(verb, option, value) for verb in TAKES for option in TAKES[verb]
           for value in WRONG[option][0]]  # fmt: skip


@pytest.mark.parametrize(("verb", "option", "value"), REFUSED, ids=str)
def test_wrong_values_are_refused(verb, option, value, tmp_path):
    if value is None and (
        option == "hoist_constants" or (verb, option) == ("save", "gradient_order")
    ):
        pytest.skip("which is a value of it")
    (_, found) = next(item for item in _verbs() if item[0] == verb)
    args = {
        "save": (jnp.sin, tmp_path / "model"),
        "save_litert": (jax.export.export(jax.jit(jnp.sin))(X), tmp_path / "model.tflite"),
        "save_onnx": (jax.export.export(jax.jit(jnp.sin))(X), tmp_path / "model.onnx"),
    }.get(verb, (jnp.sin,))
    options = {"args": "f32[b,3]"} if verb == "save" else {}
    with pytest.raises(bridge.InteropError, match=WRONG[option][1]):
        found(*args, **options, **{option: value})
    assert not list(tmp_path.iterdir())
