"""Every error is shown as one of the public classes of `bridge`, and survives its way elsewhere."""

from __future__ import annotations

import ast
import copy
import importlib
import json
import pickle
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
import tensorflow as tf
from jax import export

import bridge
import bridge.keras
from bridge.core.explaining import explain_tracing
from tests.policy.source import ROOT, read_modules
from xla_call_module import errors
from xla_call_module.errors import (
    FormatError,
    StructureError,
    explain_command,
    refusing_damage,
    shown_as_base,
)
from xla_call_module.exported import from_exported
from xla_call_module.runtime.tensorflow_errors import ForeignPlatformError, ShapeMismatchError

NAMES = sorted(name for name in vars(errors) if name.endswith("Error"))
PAGE = (ROOT / "docs/reference/troubleshooting.md").read_text()


def _classes():
    """Every class of errors of the project, with where it is defined."""
    return [
        (module, node)
        for module in read_modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and {*NAMES} & {*map(ast.unparse, node.bases)}
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_class_is_public(name):
    cls = getattr(bridge, name)
    assert cls is getattr(errors, name)
    assert f"{cls.__module__}.{cls.__qualname__}" == f"bridge.{name}"
    assert cls.__doc__


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "carry", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))]
)
def test_an_error_is_the_same_elsewhere(name, carry):
    error = getattr(bridge, name)("what was found")
    error.add_note("where")
    carried = carry(error)
    assert (type(carried), str(carried)) == (type(error), "what was found")
    assert carried.__notes__ == ["where"]


def test_another_process_needs_only_the_pickle(tmp_path):
    file = tmp_path / "error"
    file.write_bytes(pickle.dumps(bridge.StructureError("what was found")))
    program = (
        "import pickle, sys; error = pickle.load(open(sys.argv[1], 'rb'));"
        "print(repr(error), 'jax' in sys.modules)"
    )
    command = [sys.executable, "-c", program, file]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "StructureError('what was found') False\n"


def test_the_class_of_a_part_is_shown_as_its_base():
    shown = [
        ForeignPlatformError(None, None, "found"),
        ShapeMismatchError(None, None, "found"),
        explain_tracing("f", KeyError("found")) or _dynamic(),
    ]
    for error in shown:
        base = type(error).__bases__[0]
        assert (type(error).__module__, type(error).__name__) == ("bridge", base.__name__)
        carried = pickle.loads(pickle.dumps(error))
        assert (type(carried), str(carried)) == (base, str(error))
        assert explain_command(type(error)) == explain_command(base)


def _dynamic():
    return shown_as_base(type("Made", (StructureError, KeyError), {}))("found")


def test_every_class_is_public_or_shown_as_one():
    hidden = [
        f"{module.at(node)}: {node.name}"
        for module, node in _classes()
        if node.name not in NAMES
        and "shown_as_base" not in {*map(ast.unparse, node.decorator_list)}
    ]
    assert len(_classes()) > len(NAMES)
    assert hidden == []


@pytest.mark.parametrize("cls", [ForeignPlatformError, ShapeMismatchError])
def test_autograph_raises_the_same_class(cls):
    @tf.function
    def call(x):
        if tf.reduce_sum(x) > 0:
            x += 1
        raise cls(None, None, "what was found")

    with pytest.raises(cls, match="what was found"):
        call(tf.ones(3))


@pytest.mark.parametrize("name", NAMES)
def test_a_class_has_its_section(name):
    assert explain_command(getattr(bridge, name)) == f"jax-tf-bridge explain {name}"
    assert f"\n## {name}\n" in PAGE


def test_a_message_of_the_page_is_one_of_the_source():
    """The tables of the page have parts of messages, by which it is searched."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    sources = "".join(_strings(module.tree) for module in read_modules())
    quoted = [line.split("`")[1] for line in rows]
    assert len(quoted) >= len(NAMES)
    assert [text for text in quoted if text not in sources] == []


def _strings(tree):
    """The texts of a module, one after the other; values within them are gaps."""
    return "\n".join(filter(None, map(_text, ast.walk(tree))))


def _text(node):
    """The text that is written as a node, with gaps; empty for any other node."""
    match node:
        case ast.JoinedStr(values):
            return "".join(_text(part) or "…" for part in values)
        case ast.BinOp(left, ast.Add(), right):
            return _text(left) + (_text(right) or "…")
        case ast.Constant(str(text)):
            return text
    return ""


def _messages():
    """Each message that is written where its error is made, with where that is."""
    for module in read_modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in NAMES and node.args:
                yield f"{module.at(node)}: {ast.unparse(node.func)}", _text(node.args[0])


def test_a_message_says_what_was_expected_or_what_to_do():
    """Those of `FormatError` get both where a file is read; some end in another one's message."""
    unclear = [
        (where, said)
        for where, said in _messages()
        if not where.endswith("FormatError") and re.search(r"\w", said) and not said.endswith("…")
        if not any(word in said for word in ("To do: ", "xpected ", "…. ", "--params-separator"))
    ]
    assert unclear == []


def test_a_damaged_file_is_named_with_what_to_do():
    with (
        pytest.raises(FormatError, match=r"^m/saved_model.pb: It is odd\. To do: copy it again"),
        refusing_damage("m/saved_model.pb"),
    ):
        raise FormatError("It is odd.")
    with (
        pytest.raises(FormatError, match=r"^The table of m is odd\. To do: nothing\.$"),
        refusing_damage("m"),
    ):
        raise FormatError("The table of m is odd. To do: nothing.")


def test_the_reference_lists_the_classes_under_their_public_names():
    names = json.loads((ROOT / "tests/policy/public_names.json").read_text())["bridge"]
    assert [name for name in names if name.endswith("Error")] == sorted(NAMES)


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'jax-tf-bridge[onnx]'"),
        (
            {"url": "file:///home/me/my%20bridge", "dir_info": {"editable": True}},
            "pip install -e '.[onnx]' in /home/me/my bridge",
        ),
        ({"url": "file:///home/me/it", "dir_info": {}}, "pip install '.[onnx]' in /home/me/it"),
        (
            {"url": "https://a.example/r.git", "vcs_info": {"vcs": "git", "commit_id": "1"}},
            "pip install 'jax-tf-bridge[onnx] @ git+https://a.example/r.git'",
        ),
        (
            {"url": "file:///home/me/it.whl", "archive_info": {}},
            "pip install 'jax-tf-bridge[onnx] @ file:///home/me/it.whl'",
        ),
    ],
)
def test_the_hint_fits_how_the_package_is_installed(tmp_path, monkeypatch, origin, command):
    folder = tmp_path / "jax_tf_bridge-9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: jax-tf-bridge\nVersion: 9\n")
    if origin is not None:
        (folder / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(tmp_path)
    error = errors.MissingDependencyError.of("bridge.to_onnx", "onnx", extra="onnx")
    assert str(error).endswith(f"To do: {command}.")


def test_the_hint_of_a_checkout_that_is_not_installed(monkeypatch):
    monkeypatch.setattr("sys.path", [])
    importlib.invalidate_caches()
    assert errors.installing("onnx") == f"pip install -e '.[onnx]' in {ROOT}"


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        (bridge.convert, {}),
        (bridge.exported_from_stage, {}),
        (bridge.retarget, {"tensorflow": "2.18"}),
        (bridge.meshes.mesh_of, {}),
        (bridge.keras.ExportedLayer, {}),
        (from_exported, {}),
        (lambda data: bridge.testing.assert_gradients_match(data, 1.0), {}),
    ],
)
@pytest.mark.parametrize("of_class", [bytes, bytearray])
def test_bytes_are_told_to_be_deserialized(verb, options, of_class):
    data = of_class(export.export(jax.jit(jnp.sin))(1.0).serialize())
    with pytest.raises(StructureError, match=rf"{of_class.__name__}.*jax\.export\.deserialize"):
        verb(data, **options)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x if x[0, 0] > 0 else -x,
        lambda x: None,
        lambda x: jnp.linalg.eig(x),
        3,
        jax.jit(lambda x, n: x * n, static_argnames="n"),
    ],
)
def test_the_key_of_a_function_is_named(function, tmp_path):
    is_jitted = isinstance(function, jax.stages.Wrapped)
    args = {"train": "f32[3,3], n=i32[]" if is_jitted else "f32[3,3]"}
    functions = {"train": function, "serve": jnp.sin}
    with pytest.raises((StructureError, bridge.LoweringError), match=r"^Signature 'train': "):
        bridge.save(functions, tmp_path / "m", args={**args, "serve": "f32[3]"})


def test_the_key_of_an_exported_is_named(tmp_path):
    nothing = export.export(jax.jit(lambda x: None))(1.0)
    with pytest.raises(StructureError, match=r"^Signature 'train': <lambda> returns no array"):
        bridge.save({"train": nothing}, tmp_path / "m")


def test_the_key_is_a_note_of_an_error_of_the_user(tmp_path):
    with pytest.raises(ZeroDivisionError, match="by zero") as caught:
        bridge.save({"train": lambda x: x / (1 // 0)}, tmp_path / "m", args="f32[3]")
    assert "Signature 'train'" in caught.value.__notes__
