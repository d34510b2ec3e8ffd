"""Settings of every test: quiet frameworks, on the CPU.

Both variables are read when TensorFlow and JAX are imported, so they are set here, before any test
module is, and subprocesses inherit them. One that is already set stays: with
`CUDA_VISIBLE_DEVICES=0` the same tests run on a GPU, where they compare numbers with those of a CPU
and so multiply matrices in full precision; `tests/device` is about what an accelerator does else.
"""

import ctypes
import gc
import importlib.util
import os
import random
import re
import resource
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if os.environ.setdefault("CUDA_VISIBLE_DEVICES", ""):
    os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")

import jax.export
from hypothesis import HealthCheck, settings

from tests.rounds import shared_folder, tell_of_idle_worker
from tests.selecting.executed import OUTER_VARIABLE, PYTEST_VARIABLE
from tests.selecting.executed import VARIABLE as RECORDS
from tests.selecting.recording import Recorder
from tests.selecting.selection import Selection
from tests.xla_flags import is_unoptimized, set_unoptimized

# How long a machine that does other things besides takes to draw an example says nothing of a test.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Each process of the tests holds JAX and TensorFlow, which take 0.9 GB to begin with.
MAX_RESIDENT_BYTES = 1_800_000_000
MAX_COMPILED_BYTES = 300_000_000
MAX_KEPT_BYTES = 100_000_000

ROOT = Path(__file__).parent
# Of the files with few tests those that take longest. The workers begin with them, while they hold
# little memory, and none is left alone with one at the end.
LONG = (
    "fuzzing/test_programs.py",
    "verbs/test_gradient_matrix.py",
    "fuzzing/test_tf_programs.py",
    "verbs/test_scaling.py",
    "docs/test_pages.py",
    "golden/test_kinds.py",
    "distributed/test_save.py",
    "verbs/test_on_eight_devices.py",
    "examples/test_examples.py",
    "bridge/test_keras_on_jax.py",
    "bridge/test_call_tf_meshes.py",
    "bridge/test_keras_on_tensorflow.py",
    "bridge/serving/test_serving_endurance.py",
    "xla_call_module/passes/test_linear_algebra.py",
    "savedmodel/test_read_mutations.py",
    "device/test_matrix_on_device.py",
)


@pytest.fixture(autouse=True)
def same_seeds():
    """Start every test from the same seeds, so that it draws the same numbers in every run."""
    random.seed(0)
    np.random.seed(0)
    if (tensorflow := sys.modules.get("tensorflow")) and hasattr(tensorflow, "random"):
        tensorflow.random.set_seed(0)
    for keras in ("keras", "tf_keras"):
        if (utils := getattr(sys.modules.get(keras), "utils", None)) is not None:
            utils.set_random_seed(0)


_TENSORFLOW = re.compile(r"^\s*(import|from) tensorflow\b", re.M)
_HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None


def pytest_configure(config):
    """Record the tests where that is wanted, in the processes that run them."""
    if RECORDS not in os.environ:
        return
    if test := os.environ.get(PYTEST_VARIABLE):
        os.environ.setdefault(OUTER_VARIABLE, test)
    elif hasattr(config, "workerinput") or config.getoption("dist", "no") == "no":
        config.pluginmanager.register(Recorder(os.environ[RECORDS]), "recorder")


def pytest_ignore_collect(collection_path):
    """Leave out the files that import TensorFlow where it is not installed."""
    if _HAS_TENSORFLOW or collection_path.suffix != ".py":
        return None
    return True if _TENSORFLOW.search(collection_path.read_text()) else None


# They compare bits and numbers with those of JAX on a CPU, export for the platform that JAX has by
# default, look at what is in TensorFlow's memory, or call LAPACK.
_FOR_A_CPU = pytest.mark.skip(reason="for a CPU alone; tests/device is for other devices")
_FOR_DEVICES = (ROOT / "device", ROOT / "quick")


def pytest_collection_modifyitems(config, items):
    """Leave out what is not selected, and order the files for the workers, the long ones first."""
    if os.environ["CUDA_VISIBLE_DEVICES"]:
        for item in items:
            if not any(item.path.is_relative_to(folder) for folder in _FOR_DEVICES):
                item.add_marker(_FOR_A_CPU)
    selection = Selection.take()
    selected = {name: place for place, name in enumerate(selection.of(i.nodeid for i in items))}
    config.hook.pytest_deselected(items=[i for i in items if i.nodeid not in selected])
    items[:] = [item for item in items if item.nodeid in selected]
    if selection.only is not None:
        items.sort(key=lambda item: selected[item.nodeid])
    elif hasattr(config, "workerinput"):
        counts = Counter(item.path for item in items)
        places = {ROOT / name: place for place, name in enumerate(LONG)}
        items.sort(
            key=lambda item: (places.get(item.path, len(LONG)), -counts[item.path], item.path)
        )


def pytest_collection_finish():
    """Read the flags of XLA, and keep what is imported from the garbage collections to come."""
    if is_unoptimized() and _HAS_TENSORFLOW:
        set_unoptimized()
    if os.environ["CUDA_VISIBLE_DEVICES"] and (tensorflow := sys.modules.get("tensorflow")):
        tensorflow.config.experimental.enable_tensor_float_32_execution(False)
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session):
    """Let the next round of the tests begin when one worker alone has some left."""
    tell_of_idle_worker(session.config)


def _resident_bytes():
    if sys.platform == "linux":
        pages = Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _drop_caches(memory_limits):
    jax.clear_caches()
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    left = _resident_bytes()
    memory_limits["file"] = left + MAX_KEPT_BYTES
    memory_limits["test"] = max(MAX_RESIDENT_BYTES, left + MAX_COMPILED_BYTES)


@pytest.fixture(autouse=True, scope="module")
def dropped_caches(memory_limits):
    """Drop what JAX has traced and compiled after a file of tests, and give its memory back.

    That takes as long as a test: after files that have compiled little it comes later.
    """
    yield
    if _resident_bytes() > memory_limits["file"]:
        _drop_caches(memory_limits)


@pytest.fixture(autouse=True)
def bounded_memory(memory_limits):
    """Drop it earlier where a file of many tests compiles much."""
    yield
    if _resident_bytes() > memory_limits["test"]:
        _drop_caches(memory_limits)


@pytest.fixture(scope="session")
def memory_limits():
    """The bytes that this process may take before it drops its caches, at the end of what.

    They are more when that gives little back.
    """
    return {"file": 0, "test": MAX_RESIDENT_BYTES}


@pytest.fixture(scope="session")
def foreign(tmp_path_factory):
    """SavedModels of other programs: `foreign("jax2tf")` is a `tests.foreign.files.ForeignFile`."""
    pytest.importorskip("tensorflow")
    from tests.foreign.files import write_foreign_once

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = shared_folder() or folder.parent
    files = write_foreign_once(folder / "foreign")

    def get(name):
        if name not in files:
            pytest.skip(f"{name} is not installed")
        return files[name]

    return get


@pytest.fixture(scope="session")
def preloaded_python():
    """The path of a Python whose processes begin with TensorFlow and JAX imported.

    For tests that are not about what is imported, or read then; `tests/fork_server.py` has both.
    """
    from tests.fork_server import preloaded_python

    with tempfile.TemporaryDirectory() as folder, preloaded_python(Path(folder)) as program:
        yield program


@pytest.fixture
def preloaded(preloaded_python, monkeypatch):
    """Processes that a test starts by `sys.executable`, as `bridge.verify` does, are such ones."""
    monkeypatch.setattr(sys, "executable", preloaded_python)


@pytest.fixture(scope="module")
def x64():
    """JAX's 64-bit mode, for all of a file."""
    from jax import enable_x64

    with enable_x64(True):
        yield


@pytest.fixture
def on_the_cpu():
    """TensorFlow's operations on the CPU, whatever else there is."""
    import tensorflow as tf

    with tf.device("/CPU:0"):
        yield


@pytest.fixture(params=["eager", "graph", "jit", "reloaded"])
def mode(request, tmp_path):
    """`mode(f)(*tensors)` is `f(*tensors)`, run in one of TensorFlow's ways."""
    from tests.tensorflow_modes import in_mode

    return in_mode(request.param, tmp_path / "reloaded")
