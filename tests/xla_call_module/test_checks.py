"""Safety checks: the names that TensorFlow knows, and nothing else."""

import pytest

from xla_call_module.checks import (
    DisabledCheck,
)
from xla_call_module.errors import StructureError


@pytest.mark.parametrize(
    ("name", "custom_call"),
    [("platform", None), ("shape_assertions", None), ("custom_call:my target", "my target")],
)
def test_a_check(name, custom_call):
    check = DisabledCheck(name)
    assert (str(check), check.custom_call) == (name, custom_call)


@pytest.mark.parametrize("name", ["Platform", "platform ", "custom_call:", "custom_call", ""])
def test_a_check_that_tensorflow_would_ignore(name):
    with pytest.raises(StructureError, match="is unknown; expected 'platform', 'shape_assertions'"):
        DisabledCheck(name)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("Platform", "platform"),
        ("platforms", "platform"),
        (" platform", "platform"),
        ("shape_assertion", "shape_assertions"),
        ("shape-assertions", "shape_assertions"),
        ("custom_call", "custom_call:TARGET"),
        ("customcall:TARGET", "custom_call:TARGET"),
    ],
)
def test_the_nearest_name(name, nearest):
    with pytest.raises(StructureError, match=rf"Did you mean '{nearest}'\?$"):
        DisabledCheck(name)
