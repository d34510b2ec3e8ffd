"""The traceback of a refused call: the own lines and the public function, and all if asked."""

from __future__ import annotations

import contextlib
import io
import threading
import traceback
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
from bridge.keras import ExportedLayer
from tests.policy.public_names import expected_names
from xla_call_module.flags import FILTERING_VARIABLE
from xla_call_module.tracebacks import api_boundary, is_internal_file, warn

X = np.ones((2, 3), np.float32)


def _frames(error):
    """The frames of a traceback from the test's on, without the framework's own."""
    frames = traceback.extract_tb(error.__traceback__)
    mine = next(i for i, frame in enumerate(frames) if frame.filename == __file__)
    shown = [f for f in frames[mine:] if "/tensorflow/" not in f.filename]
    return [("test" if f.filename == __file__ else "bridge", f.name) for f in shown]


def _square():
    return bridge.convert(jnp.sin, polymorphic_shapes="(b, b)")


def _save_bad_key():
    bridge.save(lambda x: {1: x, "a": x}, "never", args="f32[3]")


def _user_function():
    def function(x):
        return bridge.call_tf(tf.strings.as_string)(x)

    bridge.save(function, "never", args="f32[3]")


def _call_tf_under_jit():
    jax.jit(bridge.call_tf(tf.strings.as_string))(1.0)


def _in_a_tf_function():
    tf.function(_square(), autograph=False)(X)


def _gradient():
    loop = jax.jit(lambda x: jax.lax.while_loop(lambda x: x < 9, lambda x: x * 2, x))
    exported = jax.export.export(loop)(np.float32(1))
    f = bridge.convert(jax.export.deserialize(exported.serialize()))
    x = tf.constant(1.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    tape.gradient(y, x)


def _layer():
    ExportedLayer(lambda x: x @ jnp.ones((5, 2)) if bridge.load("no") else x)(X)


@pytest.mark.parametrize(
    ("refused", "inside"),
    [
        (_save_bad_key, [("bridge", "save")]),
        (lambda: bridge.load("nowhere"), [("bridge", "load")]),
        (lambda: _square()(X), [("bridge", "call")]),
        (lambda: bridge.convert("text"), [("bridge", "convert")]),
        (
            _user_function,
            [("bridge", "save"), ("test", "function"), ("bridge", "__call__")],
        ),
        (_call_tf_under_jit, [("bridge", "__call__")]),
        (_in_a_tf_function, [("bridge", "call")]),
        (_gradient, [("bridge", "gradient"), ("bridge", "_pull_back")]),
        (_layer, [("bridge", "__call__"), ("test", "<lambda>"), ("bridge", "load")]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_frames_inside_are_left_out(refused, inside, monkeypatch):
    with pytest.raises(bridge.InteropError, match=r"[.:]") as caught:
        refused()
    shown = _frames(caught.value)
    assert shown[2:] == inside
    page = f"jax-tf-bridge explain {type(caught.value).__name__} "
    assert [note for note in caught.value.__notes__ if page in note and FILTERING_VARIABLE in note]
    monkeypatch.setenv(FILTERING_VARIABLE, "off")
    with pytest.raises(bridge.InteropError, match=r"[.:]") as caught:
        refused()
    assert len(_frames(caught.value)) > len(shown)


def _mine(x):
    raise ValueError("mine")


def test_an_error_of_the_users_function_is_shown_with_its_frames():
    with pytest.raises(ValueError, match="mine") as caught:
        bridge.save(_mine, "never", args="f32[3]")
    assert _frames(caught.value)[1:] == [("bridge", "save"), ("test", "_mine")]
    assert "jax-tf-bridge explain" not in "".join(getattr(caught.value, "__notes__", ()))


def test_an_error_of_the_inside_keeps_its_frames():
    """It is a defect, whose report needs all of them."""

    @api_boundary
    def verb():
        return jax.tree.map(lambda x: x / 0, [1])

    with pytest.raises(ZeroDivisionError, match="by zero") as caught:
        verb()
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[1] == "verb"
    assert len(names) > 3
    assert "boundary" not in names


def test_what_it_came_from_is_kept_without_the_frames_inside():
    def branch(x):
        return x if x[0] > 0 else -x

    with pytest.raises(bridge.StructureError, match="as a Python value") as caught:
        bridge.save(branch, "never", args="f32[3]")
    cause = caught.value.__cause__
    assert isinstance(cause, jax.errors.TracerBoolConversionError)
    assert [name for _, name in _frames(cause)] == ["branch"]
    assert not isinstance(cause.__cause__, bridge.InteropError)


def test_what_the_user_has_caught_before_stays_as_it_is():
    try:
        jnp.ones(3) @ jnp.ones(4)
    except TypeError as error:
        before = traceback.format_tb(error.__traceback__)
        with pytest.raises(bridge.FormatError, match="nowhere") as caught:
            bridge.load("nowhere")
        context = error
    assert traceback.format_tb(context.__traceback__) == before
    assert "test_what_the_user" in before[0]
    assert caught.value.__context__ is not None


def test_a_thread_shows_the_same():
    def refused():
        bridge.load("nowhere")

    printed = io.StringIO()
    with contextlib.redirect_stderr(printed):
        threading.excepthook = lambda given: traceback.print_exception(given.exc_value)
        try:
            thread = threading.Thread(target=refused)
            thread.start()
            thread.join()
        finally:
            threading.excepthook = threading.__excepthook__
    lines = [line for line in printed.getvalue().splitlines() if line.startswith("  File")]
    assert [line.rpartition(" ")[2] for line in lines][-2:] == ["refused", "load"]
    assert "bridge.FormatError: nowhere" in printed.getvalue()


def test_an_error_is_shown_the_same_the_second_time():
    error = bridge.StructureError("found")

    @api_boundary
    def verb():
        raise error

    for _ in range(2):
        with pytest.raises(bridge.StructureError, match="found"):
            verb()
    assert len(error.__notes__) == 1


@pytest.mark.parametrize("name", expected_names()["bridge"])
def test_every_public_function_is_a_boundary(name):
    value = getattr(bridge, name)
    assert isinstance(value, type) or value.__code__.co_name == "boundary"


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: bridge.convert(jnp.sin)(tf.constant([1.0], tf.float64)), "jax_enable_x64"),
        (
            lambda: tf.function(bridge.convert(jnp.cos))(tf.constant([1.0], tf.float64)),
            "jax_enable_x64",
        ),
        (lambda: ExportedLayer(lambda x: _warned() or x)(X), "here"),
        (lambda: jax.jit(lambda x: _warned() or x)(X), "here"),
    ],
)
def test_a_warning_is_at_the_line_of_the_user(call, match):
    with pytest.warns(UserWarning, match=match) as caught:
        call()
    assert {warning.filename for warning in caught} == {__file__}


def _warned():
    @api_boundary
    def verb():
        warn("here")

    verb()


def test_a_warning_is_shown_once_for_a_line():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            warn("once")
    assert [str(warning.message) for warning in caught] == ["once"]


def test_files_inside():
    assert is_internal_file(jax.__file__)
    assert is_internal_file(bridge.__file__)
    assert not is_internal_file(__file__)
