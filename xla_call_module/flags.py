"""The environment variables that are read: TF_XLA_FLAGS, as TensorFlow does, and one of our own.

Of TensorFlow's flags one concerns XlaCallModule: `--tf_xla_call_module_disabled_checks=platform`
switches a safety check off for every call of the process, besides those that a node switches off
for itself. TensorFlow reads the variable once, when it first looks for its devices, and later
changes have no effect (tensorflow/compiler/jit/flags.cc, xla/parse_flags_from_env.cc and
xla/tsl/util/command_line_flags.cc).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

from xla_call_module.checks import DisabledCheck
from xla_call_module.errors import StructureError, quote

VARIABLE = "TF_XLA_FLAGS"
FILTERING_VARIABLE = "JAX_TF_BRIDGE_TRACEBACK_FILTERING"
DISABLED_CHECKS = "tf_xla_call_module_disabled_checks"

_BOOL, _NUMBER, _AUTO_JIT, _TEXT = (
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"(=(?i:true|false|1|0))?",
        r"=[-+]?[0-9]+",
        r"=([-+]?[0-9]+|fusible|single-gpu\([-+]?[0-9]+\))",
        r"=.*",
    )
)
# What TensorFlow 2.21 prints of itself under TF_XLA_FLAGS=--help, with what may follow each name.
FLAGS: Mapping[str, re.Pattern[str]] = {
    "tf_dump_graphs_in_tfg": _BOOL,
    "tf_mlir_composite_tpuexecute_side_effects": _BOOL,
    "tf_mlir_enable_convert_control_to_data_outputs_pass": _BOOL,
    "tf_mlir_enable_debug_info_serialization": _BOOL,
    "tf_mlir_enable_merge_control_flow_pass": _BOOL,
    "tf_mlir_enable_mlir_bridge": _BOOL,
    "tf_mlir_enable_multiple_local_cpu_devices": _BOOL,
    "tf_mlir_enable_strict_clusters": _BOOL,
    "tf_mlir_enable_tpu_variable_runtime_reformatting_pass": _BOOL,
    "tf_serialize_mlir_to_compressed_bytecode": _BOOL,
    "tf_xla_always_defer_compilation": _BOOL,
    "tf_xla_async_compilation": _BOOL,
    "tf_xla_auto_jit": _AUTO_JIT,
    DISABLED_CHECKS: _TEXT,
    "tf_xla_check_cluster_input_numerics": _BOOL,
    "tf_xla_check_cluster_output_numerics": _BOOL,
    "tf_xla_cluster_exclude_ops": _TEXT,
    "tf_xla_clustering_debug": _BOOL,
    "tf_xla_clustering_fuel": _NUMBER,
    "tf_xla_compile_on_demand": _BOOL,
    "tf_xla_cpu_global_jit": _BOOL,
    "tf_xla_deterministic_cluster_names": _BOOL,
    "tf_xla_disable_constant_folding": _BOOL,
    "tf_xla_disable_deadness_safety_checks_for_debugging": _BOOL,
    "tf_xla_disable_full_embedding_pipelining": _BOOL,
    "tf_xla_disable_full_embedding_pipelining_with_summaries": _BOOL,
    "tf_xla_disable_resource_variable_safety_checks_for_debugging": _BOOL,
    "tf_xla_disable_strict_signature_checks": _BOOL,
    "tf_xla_embedding_parallel_iterations": _NUMBER,
    "tf_xla_enable_device_api_for_gpu": _BOOL,
    "tf_xla_enable_lazy_compilation": _BOOL,
    "tf_xla_enable_xla_devices": _BOOL,
    "tf_xla_max_cluster_size": _NUMBER,
    "tf_xla_min_cluster_size": _NUMBER,
    "tf_xla_ops_to_cluster": _TEXT,
    "tf_xla_persistent_cache_device_types": _TEXT,
    "tf_xla_persistent_cache_directory": _TEXT,
    "tf_xla_persistent_cache_prefix": _TEXT,
    "tf_xla_persistent_cache_read_only": _BOOL,
    "tf_xla_print_cluster_outputs": _BOOL,
    "tf_xla_sparse_core_disable_table_stacking": _BOOL,
    "tf_xla_sparse_core_minibatch_max_division_level": _NUMBER,
    "tf_xla_sparse_core_stacking_mem_limit_bytes": _NUMBER,
    "tf_xla_sparse_core_stacking_table_shard_limit_bytes": _NUMBER,
    "tf_xla_use_device_api": _BOOL,
    "tf_xla_use_device_api_for_auto_jit": _BOOL,
    "tf_xla_use_device_api_for_compile_on_demand": _BOOL,
    "tf_xla_use_device_api_for_xla_launch": _BOOL,
}

_SPACE = " \t\r\n"
_SPACES = re.compile(r"[ \t\r\n]*")
# One argument: a name and a value in quotes, which end it, or all up to the next space. A backslash
# escapes in double quotes only.
_ARGUMENT = re.compile(
    r"""(?P<name>[-_0-9A-Za-z]*)=(?:'(?P<single>[^']*)'?|"(?P<double>(?:\\.|[^"\\]|\\\Z)*)"?)"""
    r"""|(?P<plain>[^ \t\r\n]+)""",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class XlaFlags:
    """The effect of TF_XLA_FLAGS on TensorFlow.

    Attributes:
        disabled_checks: the checks that no call of the process makes, in the order written.
        ignored: a sentence for each thing that TensorFlow passes over in silence.
        fatal: a sentence for each thing on which TensorFlow ends the process.
        given: whether the variable says anything at all.
    """

    disabled_checks: tuple[DisabledCheck, ...] = ()
    ignored: tuple[str, ...] = ()
    fatal: tuple[str, ...] = ()
    given: bool = field(default=False, compare=False)


def read_flags() -> XlaFlags:
    """Return the flags of now, which a TensorFlow that already runs may not have seen."""
    return parse_flags(os.environ.get(VARIABLE, ""))


def read_filtering() -> bool:
    """Return whether the tracebacks of errors are shown without internal frames."""
    return os.environ.get(FILTERING_VARIABLE, "").strip().lower() not in ("off", "false", "0")


def parse_flags(
    value: str,
    *,
    read_file: Callable[[str], bytes] = lambda path: Path(path).read_bytes(),
) -> XlaFlags:
    """Return the effect of a value of TF_XLA_FLAGS.

    Example:
        >>> parse_flags("--tf_xla_call_module_disabled_checks=platform").disabled_checks
        (DisabledCheck(name='platform'),)
    """
    return replace(_parse(value, read_file), given=bool(value.strip(_SPACE)))


def _parse(value: str, read_file: Callable[[str], bytes]) -> XlaFlags:
    text = value
    if value and not value.lstrip(_SPACE).startswith("-"):
        try:
            text = read_file(value).decode(errors="surrogateescape")
        except IsADirectoryError:  # the C library opens it and reads nothing
            return XlaFlags()
        except OSError as error:
            return XlaFlags(fatal=(_describe_file(value, error),))
    arguments, rest = _split(text)
    checks: dict[DisabledCheck, None] = {}
    ignored = [_describe_rest(rest)] if rest else []
    fatal = []
    for argument in arguments:
        name, equals, setting = argument.removeprefix("--").partition("=")
        pattern = FLAGS.get(name) if argument.startswith("--") else None
        if pattern is None or not pattern.fullmatch(equals + setting):
            fatal.append(_describe_fatal(argument, name, pattern))
        elif name == DISABLED_CHECKS:
            for part in filter(None, setting.split(",")):
                try:
                    check = DisabledCheck(part)
                except StructureError as error:
                    ignored.append(f"{VARIABLE}: {error} TensorFlow passes over it in silence.")
                else:
                    checks[check] = None
    ignored += [_describe_custom_call(check) for check in checks if check.custom_call is not None]
    return XlaFlags(tuple(checks), tuple(ignored), tuple(fatal))


def _split(text: str) -> tuple[list[str], str]:
    """The arguments, and the rest at which TensorFlow stops because it does not begin with '-'."""
    arguments = []
    position = _end_of_spaces(text, 0)
    while text.startswith("-", position):
        match = _ARGUMENT.match(text, position)
        assert match is not None  # at least the '-' is there
        if (argument := match["plain"]) is None:
            value = match["single"]
            if value is None:
                value = re.sub(r"\\(.)", r"\1", match["double"], flags=re.DOTALL)
            argument = f"{match['name']}={value}"
        arguments.append(argument)
        position = _end_of_spaces(text, match.end())
    return arguments, text[position:]


def _end_of_spaces(text: str, position: int) -> int:
    match = _SPACES.match(text, position)
    return position if match is None else match.end()


def _describe_file(path: str, error: OSError) -> str:
    return (
        f"{VARIABLE} is {_shorten(path)}; since that does not begin with '-', it is the path of a "
        f"file with flags, which cannot be read: {quote(error)}."
    )


def _describe_rest(rest: str) -> str:
    return (
        f"{VARIABLE}: {_shorten(rest)} does not begin with '-', so TensorFlow passes over it and "
        "all that follows in silence. To do: write no space inside a flag."
    )


def _describe_fatal(argument: str, name: str, pattern: re.Pattern[str] | None) -> str:
    if pattern is not None:
        return f"{VARIABLE}: {_shorten(argument)} has a value of another kind than the flag takes."
    near = get_close_matches(name.lstrip("-"), FLAGS, n=1)
    cure = f" Did you mean --{near[0]}=…?" if near else ""
    return f"{VARIABLE}: {_shorten(argument)} is no flag that TensorFlow has.{cure}"


def _describe_custom_call(check: DisabledCheck) -> str:
    return (
        f"{VARIABLE}: the check {check.name!r} is made when a function is exported, and no "
        "TensorFlow makes it. To do: pass it in disabled_checks there."
    )


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:80]}…")
