"""TF_XLA_FLAGS: what is predicted is what TensorFlow does."""

import base64
import json
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import export

from tests.policy.source import ROOT
from xla_call_module.checks import DisabledCheck
from xla_call_module.exported import from_exported
from xla_call_module.flags import FLAGS, XlaFlags, parse_flags, read_flags
from xla_call_module.passes.pipeline import retarget

FLAG = "--tf_xla_call_module_disabled_checks"
IN_A_FILE = f"\n{FLAG}='shape_assertions'\t{FLAG}=platform\n"

# A value, and the checks that it switches off; None where TensorFlow ends the process.
VALUES = {
    "none": ("", []),
    "one": (f"{FLAG}=platform", ["platform"]),
    "commas and empty parts": (
        f"{FLAG}=,platform,,shape_assertions,",
        ["platform", "shape_assertions"],
    ),
    "repeats accumulate": (
        f"{FLAG}=shape_assertions --tf_xla_auto_jit=-1 \n{FLAG}=platform {FLAG}=",
        ["platform", "shape_assertions"],
    ),
    "spaces in front": (f"  \t{FLAG}=platform", ["platform"]),
    "a space after the sign": (f"{FLAG}= platform {FLAG}=shape_assertions", []),
    "a word between": (f"{FLAG}=platform word {FLAG}=shape_assertions", ["platform"]),
    "nothing is trimmed": (f'{FLAG}="platform ,shape_assertions"', ["shape_assertions"]),
    "case": (f"{FLAG}=Platform,shape_assertions", ["shape_assertions"]),
    "unknown": (f"{FLAG}=platforms,shape_assertion,all", []),
    "a custom call": (f"{FLAG}=custom_call:x,platform", ["platform"]),
    "single quotes": (f"{FLAG}='platform,shape_assertions'", ["platform", "shape_assertions"]),
    "escapes": (
        f'{FLAG}="plat\\form" {FLAG}="x\\",shape_assertions"',
        ["platform", "shape_assertions"],
    ),
    "no escapes": (f"{FLAG}='plat\\form'", []),
    "quotes end the argument": (
        f"{FLAG}='platform'{FLAG}=\"shape_assertions\"",
        ["platform", "shape_assertions"],
    ),
    "no closing quote": (f'{FLAG}="platform', ["platform"]),
    "quotes inside": (f'{FLAG}=x,"platform"', []),
    "a file": ("{folder}/flags", ["platform", "shape_assertions"]),
    "an empty file": ("{folder}/empty", []),
    "a folder": ("{folder}", []),
    "no file": ("{folder}/none", None),
    "a space in front of a file": (" {folder}/flags", None),
    "only spaces": (" ", None),
    "no value": (FLAG, None),
    "one dash": (f"-{FLAG.lstrip('-')}=platform", None),
    "an unknown flag": ("--tf_xla_call_module_disabled_check=platform", None),
    "a flag of XLA_FLAGS": (f"{FLAG}=platform --xla_dump_to=x", None),
    "another kind of value": ("--tf_xla_min_cluster_size=four", None),
    "a bool with another word": ("--tf_xla_cpu_global_jit=yes", None),
    "a level": ("--tf_xla_auto_jit=all", None),
    "other flags": (
        (
            f"--tf_xla_auto_jit=single-gpu(2) --tf_xla_cpu_global_jit=FALSE "
            f"--tf_xla_clustering_debug=1 --tf_xla_async_compilation "
            f"--tf_xla_clustering_fuel=-1 {FLAG}=platform"
        ),
        ["platform"],
    ),
    "the end of the flags": (f"-- {FLAG}=platform", None),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("flags")
    (path / "flags").write_text(IN_A_FILE)
    (path / "empty").write_text("")
    return path


@pytest.fixture(scope="module")
def tensorflow(folder):
    """Return what TensorFlow did for each value, and for one set when it ran already."""
    pytest.importorskip("tensorflow")
    tpu = export.export(jax.jit(jnp.sum), platforms=["tpu"])(jax.ShapeDtypeStruct((2,), "float32"))
    square = jax.ShapeDtypeStruct(export.symbolic_shape("b, b"), "float32")
    exporteds = {"platform": tpu, "shape_assertions": export.export(jax.jit(jnp.sum))(square)}
    values = [value.format(folder=folder) for value, _ in VALUES.values()]
    changes = [[None, values[1]], [values[1], ""], [None, "--unknown"]]
    request = {
        "modules": {
            name: base64.b64encode(retarget(from_exported(exported), "2.18").module).decode()
            for name, exported in exporteds.items()
        },
        "cases": [[value, None] for value in values] + changes,
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.xla_call_module.tensorflow_under_flags"],
        cwd=ROOT,
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    return dict(zip([*VALUES, "set late", "unset late", "wrong late"], outcomes, strict=True))


@pytest.mark.parametrize("case", VALUES)
def test_tensorflow_does_what_is_predicted(case, tensorflow, folder):
    value, skipped = VALUES[case]
    flags = parse_flags(value.format(folder=folder))
    names = sorted(check.name for check in flags.disabled_checks if check.custom_call is None)
    assert bool(flags.fatal) == (skipped is None)
    assert tensorflow[case] == skipped
    assert skipped is None or names == skipped


def test_a_change_after_the_first_use_has_no_effect(tensorflow):
    assert [tensorflow[case] for case in ("set late", "unset late", "wrong late")] == [
        [],
        ["platform"],
        [],
    ]


def test_every_flag_of_tensorflow_is_known(preloaded_python):
    """`--help` prints them all, and ends the process."""
    pytest.importorskip("tensorflow")
    code = (
        "import os; os.environ['TF_XLA_FLAGS'] = '--help'; import tensorflow as tf; "
        "tf.config.list_physical_devices()"
    )
    command = [preloaded_python, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    printed = re.findall(r"^\t--(\w+)=.*?\t(bool|int32|int64|string)\t", done.stderr, re.MULTILINE)
    assert dict(printed).keys() == FLAGS.keys()
    for name, kind in printed:
        assert bool(FLAGS[name].fullmatch("")) == (kind == "bool")
        assert bool(FLAGS[name].fullmatch("=3")) == (kind != "bool")
        texts = kind == "string" and name != "tf_xla_auto_jit"
        assert bool(FLAGS[name].fullmatch("=some text")) == texts


IGNORED = {
    "a space after the sign": r"'platform --tf_xla_.*' does not begin with '-'.*no space inside",
    "a word between": "'word --tf_xla",
    "nothing is trimmed": r"'platform ' is unknown.*Did you mean 'platform'\?.*in silence",
    "case": r"'Platform' is unknown.*Did you mean 'platform'\?",
    "unknown": r"'platforms' is unknown.*Did you mean 'platform'\?",
    "a custom call": "'custom_call:x' is made when a function is exported.*in disabled_checks",
}


@pytest.mark.parametrize("case", IGNORED)
def test_what_tensorflow_passes_over_is_told(case):
    assert re.search(IGNORED[case], " ".join(parse_flags(VALUES[case][0]).ignored), re.DOTALL)


@pytest.mark.parametrize("case", ["none", "one", "repeats accumulate", "quotes end the argument"])
def test_nothing_is_told_where_all_has_effect(case):
    assert parse_flags(VALUES[case][0]).ignored == ()


FATAL = {
    "no file": "flags/none.* is the path of a file with flags, which cannot be read",
    "an unknown flag": rf"is no flag that TensorFlow has\. Did you mean {FLAG}=",
    "another kind of value": "'--tf_xla_min_cluster_size=four' has a value of another kind",
    "a flag of XLA_FLAGS": "'--xla_dump_to=x' is no flag",
}


@pytest.mark.parametrize("case", FATAL)
def test_what_ends_tensorflow_is_told(case):
    (fatal,) = parse_flags(VALUES[case][0].format(folder="flags")).fatal
    assert re.search(FATAL[case], fatal)


@given(st.text("-='\" \\,aplform\n"), st.booleans())
def test_any_text_is_parsed(text, prefixed):
    def read_file(path):
        raise FileNotFoundError(path)

    flags = parse_flags(f"{FLAG}={text}" if prefixed else text, read_file=read_file)
    assert all(DisabledCheck(check.name) for check in flags.disabled_checks)


def test_the_variable_of_this_process(monkeypatch):
    monkeypatch.delenv("TF_XLA_FLAGS", raising=False)
    assert read_flags() == XlaFlags()
    monkeypatch.setenv("TF_XLA_FLAGS", f"{FLAG}=platform")
    assert read_flags().disabled_checks == (DisabledCheck("platform"),)
