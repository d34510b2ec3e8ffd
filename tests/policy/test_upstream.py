"""A framework stays in the files that serve it, and its private parts behind the gates."""

from __future__ import annotations

import pytest

from tests.policy.source import read_modules, write_tree
from tests.policy.upstream import is_private, jax2tf_names, misplaced_imports, private_names


def test_frameworks_are_imported_where_they_are_served():
    assert misplaced_imports(read_modules()) == []


def test_private_names_stay_behind_the_gates():
    assert private_names(read_modules()) == []


def test_jax2tf_is_not_used():
    assert jax2tf_names(read_modules()) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("savedmodel/write.py", "import tensorflow as tf"),
        ("savedmodel/_tf.py", "from tensorflow import raw_ops"),
        ("savedmodel/model.py", "def lazy():\n    import jax.numpy\n"),
        ("savedmodel/model.py", "if TYPE_CHECKING:\n    import jax\n"),
        ("bridge/save.py", "import importlib\nimportlib.import_module('tensorflow')"),
        ("bridge/convert.py", "import keras"),
        ("bridge/keras.py", "import tf_keras"),
        ("xla_call_module/node.py", "from onnx import helper"),
    ],
)
def test_a_misplaced_import_is_found(tmp_path, path, text):
    assert len(misplaced_imports(write_tree(tmp_path, {path: text}))) == 1


@pytest.mark.parametrize(
    "path",
    ["bridge/convert.py", "bridge/serving/client.py", "xla_call_module/_tf.py"],
)
def test_an_import_in_its_place_passes(tmp_path, path):
    assert misplaced_imports(write_tree(tmp_path, {path: "import jax, tensorflow as tf"})) == []


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


@pytest.mark.parametrize(
    "text",
    [
        "from jax.experimental import jax2tf",
        "from jax.experimental.jax2tf import convert",
        "import jax\njax.experimental.jax2tf.convert\n",
    ],
)
def test_jax2tf_is_found(tmp_path, text):
    assert jax2tf_names(write_tree(tmp_path, {"bridge/core/_jax.py": text})) != []
