"""The private parts of a framework stay behind the gates."""

from __future__ import annotations

import pytest

from tests.policy.source import read_modules, write_tree
from tests.policy.upstream import is_private, private_names


def test_private_names_stay_behind_the_gates():
    assert private_names(read_modules()) == []


PRIVATE_USES = [
    "import jax._src.core",
    "from jax._src import core",
    "from jax import _src",
    "import jaxlib",
    "from jaxlib.mlir import ir",
    "from tensorflow.python.eager import context",
    "from tensorflow.core.framework import graph_pb2",
    "from tensorflow.compiler.xla import xla_data_pb2",
    "import keras.src.backend",
    "import jax\ncore = jax._src.core\n",
    "import tensorflow as tf\ndef f():\n    return tf.python.eager\n",
    "import tensorflow as tf\ndef f():\n    return tf.__internal__.eager_context\n",
    "from jax import export\nexport._private()\n",
    "import importlib\nimportlib.import_module('jax._src.core')\n",
]


@pytest.mark.parametrize("text", PRIVATE_USES)
def test_a_private_name_is_found(tmp_path, text):
    assert private_names(write_tree(tmp_path, {"bridge/convert.py": text})) != []


@pytest.mark.parametrize("gate", ["_jax", "_tf"])
def test_a_private_name_behind_a_gate_passes(tmp_path, gate):
    text = "\n".join(PRIVATE_USES)
    assert private_names(write_tree(tmp_path, {f"xla_call_module/{gate}.py": text})) == []


@pytest.mark.parametrize(
    "name", ["jax.__version__", "jax.export", "tensorflow.io", "bridge.core._jax"]
)
def test_a_public_name_passes(name):
    assert not is_private(name)
