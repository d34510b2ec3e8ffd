"""What the pages show has the types that the public functions ask for."""

from __future__ import annotations

import pytest

from tests.docs.test_pages import PAGES
from tests.docs.types import CHECKERS, programs_of, type_errors

_WRONG = """
import bridge
import jax
bridge.save(jax.numpy.tanh, "tanh", args="f32[3]", operations="tensorflw")
bridge.serving.publish(jax.numpy.tanh, "tanh", args="f32[3]", linalg="lapac")
bridge.call_tf("tanh", variables="parameter")
bridge.load_lazily("bridge")
bridge.TYPE_CHECKING
bridge.serving.annotations
bridge.testing.nothing
"""


@pytest.mark.parametrize("checker", CHECKERS)
def test_every_block_of_python_has_right_types(checker, tmp_path):
    programs = {name: text for page in PAGES for name, text in programs_of(page).items()}
    assert len(programs) > 50
    assert type_errors(checker, programs, tmp_path) == []


@pytest.mark.parametrize("checker", CHECKERS)
def test_wrong_words_and_names_are_found(checker, tmp_path):
    found = type_errors(checker, {"wrong.py": _WRONG}, tmp_path)
    lines = {int(text.split(":")[1]) for text in found}
    assert lines == set(range(4, 11)), found
