"""Versions: what is known is understood, what is not is refused."""

from __future__ import annotations

import datetime
import itertools

import jaxlib.version
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from jax import export

import xla_call_module
from xla_call_module._jax import stablehlo_versions
from xla_call_module._tf import imported_release
from xla_call_module.errors import VersionError
from xla_call_module.versions import (
    CONVENTIONS,
    JAXLIBS,
    RELEASES,
    STABLEHLO_DATES,
    jaxlib_for,
    parse_release,
    parse_stablehlo_version,
    promised_until,
)

numbers = st.integers(0, 999)


def test_the_conventions_of_jax_are_understood():
    newest = export.maximum_supported_calling_convention_version
    assert {export.minimum_supported_calling_convention_version, newest} <= {*CONVENTIONS}


@given(numbers, numbers, numbers)
def test_a_stablehlo_version_round_trips(major, minor, patch):
    assert parse_stablehlo_version(f"{major}.{minor}.{patch}") == (major, minor, patch)


@pytest.mark.parametrize(
    "text", ["", "1", "1.2", "1.2.3.4", "1.2.x", "v1.2.3", "1.-2.3", " 1.2.3", "1.².3", "1.٣.3"]
)
def test_no_stablehlo_version(text):
    with pytest.raises(VersionError, match=r"is not a StableHLO version; expected one such as"):
        parse_stablehlo_version(text)


@given(st.text(alphabet="0123456789.-", max_size=12) | st.text(max_size=5))
def test_any_text_is_a_version_or_refused(text):
    try:
        assert parse_stablehlo_version(text) == tuple(map(int, text.split(".")))
    except VersionError as error:
        assert repr(text) in str(error)  # noqa: PT017 - most texts are refused, some are not
    try:
        assert parse_release(text) in RELEASES
    except VersionError as error:
        assert repr(text) in str(error) or text in str(error)  # noqa: PT017


@given(st.sampled_from(RELEASES), st.sampled_from(["", ".1", ".0rc2", "-dev20260101", "rc0"]))
def test_a_release_is_found_by_its_version(release, suffix):
    assert parse_release(release.name + suffix) is release


@given(st.integers(RELEASES[-1].tensorflow[1], 9999))
def test_a_newer_release_is_as_able_as_the_newest_known(minor):
    assert parse_release(f"2.{minor}") is RELEASES[-1]
    assert parse_release(f"3.{minor}.1") is RELEASES[-1]


@pytest.mark.parametrize("text", ["2.13", "2.13.1", "1.15.0", "0.12"])
def test_an_older_release_is_refused(text):
    with pytest.raises(VersionError, match=rf"TensorFlow {text} is older than 2\.14"):
        parse_release(text)


@pytest.mark.parametrize(
    "text", ["", "2", "2.", "two", "2_18", "2.18181818", "99999.1", ".18", 2.2]
)
def test_no_release(text):
    with pytest.raises(VersionError, match=r"is not a TensorFlow version; expected one such as"):
        parse_release(text)


def test_releases_only_gain():
    for older, newer in itertools.pairwise(RELEASES):
        assert older.tensorflow < newer.tensorflow
        assert older.convention <= newer.convention
        assert older.stablehlo < newer.stablehlo


def test_the_imported_release_is_the_one_in_the_table():
    """TensorFlow is asked, so this compares the table with it."""
    assert imported_release() == parse_release(tf.__version__)


def test_a_release_that_cannot_be_asked_is_looked_up(monkeypatch):
    from tensorflow.compiler.tf2xla.python import xla

    monkeypatch.delattr(xla, "call_module_maximum_supported_version")
    assert imported_release() is parse_release(tf.__version__)


def test_a_name_that_the_package_lacks():
    with pytest.raises(AttributeError, match="'xla_call_module' has no attribute 'missing'"):
        getattr(xla_call_module, "missing")  # noqa: B009 - an expression, not a statement


def test_stablehlo_is_promised_for_five_years():
    assert promised_until((0, 14, 8)) == datetime.date(2028, 6, 16)
    assert promised_until((0, 18, 0)) == promised_until((0, 17, 7))
    assert promised_until((0, 8, 99)) is None
    assert promised_until((99, 0, 0)) == promised_until((*max(STABLEHLO_DATES), 0))
    for (one, since), (other, later) in itertools.pairwise(STABLEHLO_DATES.items()):
        assert one < other
        assert since < later


def test_every_release_reads_a_version_with_a_date():
    assert {release.stablehlo[:2] for release in RELEASES} <= set(STABLEHLO_DATES)


def test_a_jaxlib_is_found_by_what_it_reads():
    assert jaxlib_for((1, 13, 7)) == "0.9.0 or newer"
    assert jaxlib_for((1, 13, 8)) == "0.9.2 or newer"
    assert jaxlib_for((2, 0, 0)).startswith("newer than ")
    assert list(JAXLIBS.values()) == sorted(JAXLIBS.values())
    oldest, newest = stablehlo_versions()
    assert oldest == "0.9.0"
    known = JAXLIBS.get(jaxlib.version.__version__)
    assert known is None or known == parse_stablehlo_version(newest)
