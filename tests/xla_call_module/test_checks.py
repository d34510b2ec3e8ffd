"""Safety checks: the names that TensorFlow knows, and nothing else."""

import pytest
from jax import export

from xla_call_module.checks import (
    PLATFORM,
    SHAPE_ASSERTIONS,
    DisabledCheck,
    parse_checks,
    unite,
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


def test_no_name_is_near():
    with pytest.raises(StructureError, match=r"or 'custom_call:TARGET'\.$"):
        DisabledCheck("everything")


def test_what_users_write():
    checks = ["platform", export.DisabledSafetyCheck.custom_call("x"), PLATFORM, SHAPE_ASSERTIONS]
    assert parse_checks(checks) == (PLATFORM, DisabledCheck("custom_call:x"), SHAPE_ASSERTIONS)
    assert parse_checks("platform") == (PLATFORM,)
    assert parse_checks(()) == ()


def test_what_is_no_check():
    with pytest.raises(StructureError, match="'3' is unknown"):
        parse_checks([3])
    for given in (None, 3):
        with pytest.raises(StructureError, match=f"disabled_checks is {given}; expected a seq"):
            parse_checks(given)


def test_checks_only_add_up():
    assert unite([PLATFORM], [], [SHAPE_ASSERTIONS, PLATFORM]) == (PLATFORM, SHAPE_ASSERTIONS)
