"""A verb imports what its call needs: the rooms and packages that a plain call of each loads."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.policy.source import ROOT


def _of(package, names):
    return {f"{package}.{name}" for name in names.split()}


# What every verb takes of the packages below it.
_MODULES = _of(
    "xla_call_module",
    "_autograph _jax allowance analyses call checks descriptions dimensions dtypes errors exported "
    "exported_fields flags linalg mlir_files node passes platforms pytrees "
    "shape_checks shardings size_polynomials stablehlo symbolic_shapes tracebacks versions",
)
_VALUES = {"savedmodel"} | _of(
    "savedmodel", "encode files model protos tensorflow_graph variables write"
)
_WRITING = _VALUES | {"savedmodel.manifest"}
_READING = _VALUES | {"savedmodel.decode", "savedmodel.read"}
_BOTH = _WRITING | _READING
_LOADING = "core loading"
_EXPORTING = f"{_LOADING} chains exporting inspecting"
_ONNX = "core_ops graphs onnx onnx.graph onnx.rules"
_SAVING = f"{_EXPORTING} batching save saving"
_PLAIN_OPERATIONS = (
    "core_ops core_ops.decompositions graphs lifting lifting.derivatives tf_operations"
)
# The rooms of `bridge` and of `savedmodel`, and the packages of others.
_PLAIN = "google google_crc32c"
LOADED = {
    "save": (_SAVING, _WRITING, _PLAIN),
    "load": (f"{_LOADING} load", _READING, _PLAIN),
    # scipy has the numbers that compositions of operations are compared with.
    "to_jax": (
        f"{_LOADING} exporting lifting lifting.derivatives to_jax",
        _READING,
        f"{_PLAIN} scipy charset_normalizer _cyutility _cython",
    ),
    "to_onnx": (
        f"{_EXPORTING} {_ONNX} sources",
        _READING,
        f"{_PLAIN} onnx typing_extensions",
    ),
    "publish": (
        f"{_SAVING} {_PLAIN_OPERATIONS} diff retarget serving update",
        {*_BOTH, "savedmodel.gradient_orders", "savedmodel.rewrite"},
        _PLAIN,
    ),
    "jax-tf-bridge inspect": (
        f"{_LOADING} cli formats inspect inspecting litert onnx verify",
        {*_BOTH, "savedmodel.gradient_orders"},
        f"{_PLAIN} rich",
    ),
    "jax-tf-bridge export": (
        f"{_SAVING} cli formats inspect litert onnx verify",
        {*_BOTH, "savedmodel.gradient_orders"},
        f"{_PLAIN} rich",
    ),
}
# In a process with TensorFlow, whose packages are not counted.
CONVERT = (
    f"{_LOADING} chains convert converting exporting",
    {*_VALUES, "xla_call_module._tf", "xla_call_module.runtime"},
    "",
)


def _loaded(python, folder, verbs):
    command = [python, "-W", "ignore", "-m", "tests.verbs.loaded_modules", str(folder), *verbs]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return _loaded(sys.executable, tmp_path_factory.mktemp("loaded"), LOADED)


def _check(found, rooms, values, others):
    own = _of("bridge", rooms)
    more = {*found["rooms"]} - own - values - _MODULES
    assert more == set(), "a plain call imports more rooms than it did"
    # Compiled modules of Cython have its version in their names.
    outside = {"_cython" if name.startswith("_cython_") else name for name in found["outside"]}
    assert outside - {*others.split()} == set(), "a plain call imports more packages than it did"
    assert own <= {*found["rooms"]}, "it imports fewer: take them off the list"


@pytest.mark.parametrize("verb", LOADED)
def test_a_plain_call_imports_no_more_than_it_needs(loaded, verb):
    _check(loaded[verb], *LOADED[verb])


def test_a_plain_conversion_imports_no_more_than_it_needs(preloaded_python, tmp_path):
    _check(_loaded(preloaded_python, tmp_path, ["convert"])["convert"], *CONVERT)
