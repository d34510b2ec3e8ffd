"""The command `jax-tf-bridge passes`: the passes that would run on a file, or one of them alone."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from bridge.cli.command_arguments import read_save_arguments
from bridge.loading.signature_calls import calls_of
from savedmodel.read import read
from xla_call_module.call import CallModule
from xla_call_module.errors import StructureError, VersionError
from xla_call_module.linalg.linalg_option import parse_linalg
from xla_call_module.passes.constants import HOISTED_FROM
from xla_call_module.passes.module_pass import open_call, run_on_module
from xla_call_module.passes.pipeline import Target, passes_for, prepare
from xla_call_module.platforms import parse_platforms
from xla_call_module.versions import parse_release

# Constants of more elements are shown by their type alone.
_MAX_ELEMENTS = 64


def run_passes_command(options: argparse.Namespace) -> int:
    """List the passes for each call of a file, or run one, and return the exit status."""
    target = _target(options)
    for place, call in _calls(options.path):
        print(f"{place}: {call.name}")
        if options.run is not None:
            print(_after(call, target, options.run))
            continue
        with open_call(call) as parsed:
            for step in passes_for(target):
                reason = step.violation(parsed)
                print(f"  {step.name:15} {f'runs: {reason}' if reason else 'has nothing to do'}")
                parsed = run_on_module(parsed, [step])
        print(f"  {'serialize':15} {_serialization(call, target)}")
    return 0


def _target(options: argparse.Namespace) -> Target:
    given = read_save_arguments(options)
    release = given.get("tensorflow")
    return Target(
        None if release is None else parse_release(release),
        platforms=None if options.platforms is None else parse_platforms(options.platforms),
        portable_linalg=parse_linalg(given.get("linalg", "portable")),
        # The constants and source locations of a file stay as `save` has left them.
        hoist_from=None if options.run is None else HOISTED_FROM,
        locations=options.run is None,
    )


def _calls(path: str) -> Iterator[tuple[str, CallModule]]:
    for signature in read(path).signatures:
        chains = calls_of(signature)
        for number, chain in enumerate(chains):
            which = f", call {number}" if len(chains) > 1 else ""
            for order, call in enumerate(chain):
                yield f"{signature.key}{which}, order {order}", call


def _after(call: CallModule, target: Target, name: str) -> str:
    steps = {step.name: step for step in passes_for(target)}
    if name not in steps:
        cure = " Or pass --platforms." if name == "platforms" else ""
        raise StructureError(
            f"There is no pass {name!r}. To do: name one of {', '.join(steps)}.{cure}"
        )
    with open_call(call) as parsed:
        module = run_on_module(parsed, [steps[name]]).module
        return str(module.operation.get_asm(large_elements_limit=_MAX_ELEMENTS))


def _serialization(call: CallModule, target: Target) -> str:
    """The version that the pipeline serializes a call at, or why it cannot."""
    try:
        (made,) = prepare(call, target).calls
    except VersionError as error:
        return f"fails: {error}"
    version = ".".join(map(str, made.stablehlo_version))
    return f"at StableHLO {version}, calling convention {made.version}"
