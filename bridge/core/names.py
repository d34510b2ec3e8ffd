"""Names of the parameters, inputs and outputs of a signature."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from bridge.core.trees import to_identifier, unique_names
from savedmodel.protos.structures import Branch, Structure
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.errors import StructureError

Names = Sequence[str] | Mapping[str, str]

# The path of an argument, in the way of `jax.tree_util.keystr`.
_ARGUMENT = re.compile(r"args\[\d+\]|kwargs\['[^']*'\]")
# The first step into a result: a position, or the name of a field.
_RESULT = re.compile(r"result(?:\[(\d+)\]|\.\w+)")
_KEYWORD = re.compile(r"kwargs\['([^']*)'\]")
# TensorFlow's functions are methods, so an argument of this name cannot be passed by keyword.
_METHOD_PARAMETER = "self"


def names_of_signature(
    key: str, names: Names | Mapping[str, Names] | None, signatures: Mapping[str, Any]
) -> Names | None:
    """Return the part of `inputs=` or `outputs=` that is for one signature."""
    by_key: Any = names
    if isinstance(names, Mapping) and names and names.keys() <= signatures.keys():
        by_key = names.get(key)
    return cast("Names | None", by_key)


def input_names(
    key: str, call: CallModule, indices: Sequence[int], names: Names | None
) -> list[str]:
    """Return unique names for some of the call's flat arguments."""
    known = _argument_names(call)
    defaults = []
    for index in indices:
        argument, path = _split_path(call.args[index])
        name = to_identifier(known.get(argument, argument) + path, fallback="input")
        defaults.append(name if name != _METHOD_PARAMETER else f"{name}_")
    # TensorFlow tells names of arguments, unlike those of results, not apart by their case.
    defaults = unique_names(defaults, ignore_case=True)
    chosen = choose_names(defaults, names, f"inputs of {key}", ignore_case=True)
    if _METHOD_PARAMETER in chosen:
        raise StructureError(
            f"An input of {key} is called {_METHOD_PARAMETER!r}, which TensorFlow cannot pass. "
            "To do: take another name."
        )
    return chosen


def output_names(
    key: str, call: CallModule, names: Names | None, indices: Sequence[int] | None = None
) -> list[str]:
    """Return unique names for some of the call's flat results."""
    chosen = range(len(call.own_results)) if indices is None else indices
    specs = [call.own_results[index] for index in chosen]
    if len(specs) < len(call.own_results):
        specs = _renumbered(specs)
    defaults = unique_names(map(_output_name, specs))
    return choose_names(defaults, names, f"outputs of {key}", ignore_case=False)


def parameter_names(call: CallModule, arguments: Structure, *, first: int) -> tuple[str, ...]:
    """Return the names of the positional arguments from `first` on, as far as they are known."""
    assert isinstance(arguments, Branch)
    args = arguments.children[0][1]
    assert isinstance(args, Branch)
    known = _argument_names(call)
    names = []
    for position in range(first, first + len(args.children)):
        name = known.get(f"args[{position}]", "").split("[")[0]
        names.append(name if name.isidentifier() else f"args_{position}")
    return tuple(unique_names(names))


def _argument_names(call: CallModule) -> dict[str, str]:
    """Return the names that the Python function has for `args[1]` and the like.

    A module has names for the leaves that it takes; each names the whole argument that it is in.
    """
    names: dict[str, str] = {}
    for spec in call.own_args:
        argument, path = _split_path(spec)
        if spec.name.endswith(path) and spec.name != path:
            names.setdefault(argument, spec.name.removesuffix(path))
        if (keyword := _KEYWORD.fullmatch(argument)) is not None:
            names[argument] = keyword[1]
    return names


def _split_path(spec: TensorSpec) -> tuple[str, str]:
    """Return the argument and the path into it: `args[1]` and `['w'][0]`."""
    match = _ARGUMENT.match(spec.path)
    end = match.end() if match else 0
    return spec.path[:end], spec.path[end:]


def _renumbered(specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return results with the paths that they have where the function returns them alone."""
    steps = [match for spec in specs if (match := _RESULT.match(spec.path)) is not None]
    if len(steps) < len(specs):
        return list(specs)
    numbers = {step: number for number, step in enumerate(dict.fromkeys(m[0] for m in steps))}
    renumbered = []
    for spec, match in zip(specs, steps, strict=True):
        first = f"result[{numbers[match[0]]}]" if match[1] else match[0]
        own = "result" if len(numbers) == 1 else first
        renumbered.append(replace(spec, path=own + spec.path.removeprefix(match[0])))
    return renumbered


def _output_name(spec: TensorSpec) -> str:
    if spec.path == "result":
        return "output_0"
    return to_identifier(spec.path.removeprefix("result"), fallback="output")


def choose_names(
    defaults: Sequence[str], names: Names | None, what: str, *, ignore_case: bool
) -> list[str]:
    """Return the names that a user wants instead of some defaults."""
    chosen: list[Any] = list(defaults)  # what a user says may be anything
    if isinstance(names, Mapping):
        if unknown := sorted(names.keys() - set(chosen)):
            raise StructureError(
                f"The {what} are {chosen}; there is no {unknown[0]!r} to rename. To do: rename "
                "some of these."
            )
        chosen = [names.get(name, name) for name in chosen]
    elif isinstance(names, Iterable):
        chosen = [names] if isinstance(names, str) else list(names)
    elif names is not None:
        raise StructureError(
            f"The names of the {what} are {names!r}; expected a sequence, or a mapping from some "
            f"of {chosen} to other names."
        )
    if len(chosen) != len(defaults):
        raise StructureError(
            f"{len(chosen)} names are given for the {what}, which are {len(defaults)}: {defaults}. "
            "To do: give one name to each."
        )
    for name in chosen:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
            raise StructureError(
                f"{name!r} among the {what} is not a valid name. To do: take a letter followed by "
                "letters, digits and underscores."
            )
    if unique_names(chosen, ignore_case=ignore_case) != chosen:
        case = ", where upper and lower case are the same" if ignore_case else ""
        raise StructureError(
            f"The {what} are not unique{case}: {chosen}. To do: give each a name of its own."
        )
    return chosen
