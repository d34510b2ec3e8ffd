"""The signature of a call that another program wrote, as its module says it.

Such a node has dtypes, but neither shapes nor names of its arguments. The module has both, and its
shape assertions quote the specification that it was exported with
(https://docs.jax.dev/en/latest/export/shape_poly.html#shape-assertion-errors).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from xla_call_module._jax import ir
from xla_call_module.analyses.module_shardings import ModuleShardings, read_module_shardings
from xla_call_module.call import CallModule
from xla_call_module.dimensions import Dim, Shape, evaluate_shape
from xla_call_module.errors import FormatError, StructureError
from xla_call_module.stablehlo.attributes import symbol_name, value_attributes
from xla_call_module.stablehlo.modules import (
    Main,
    TensorType,
    find_main,
    is_shape_assertion,
    open_module,
    read_main,
    walk,
)
from xla_call_module.stablehlo.refining import refine_results

# Sizes at which results are looked at: whole numbers of what shapes are usually divided by.
_BASE, _STEP = 24, 48
# Others: `min`, `max`, `mod` and `floordiv` make no polynomial of them.
_ELSEWHERE = (1, 2, 3, 5, 8, 13, 16, 31, 72, 97, 1000)
_MAX_SYMBOLS = 6
_PREFIX = "jit_"
_NOTHING: Mapping[int, Shape] = MappingProxyType({})


def infer_signature(call: CallModule, results: Mapping[int, Shape] = _NOTHING) -> CallModule:
    """Return the call with shapes, names, paths and shardings for its arguments and results.

    Unknown dimensions get the expressions of the module's shape assertions; where it has none, each
    is a variable of its own. Those of results are what somebody says that they are, if the module
    agrees, or else polynomials of these.
    """
    if all(spec.shape is not None for spec in call.args):
        return call
    described, main, infos, shardings = _with_arguments(call)
    shapes = _result_shapes(described, main.results, results)
    specs = tuple(
        dataclasses.replace(
            spec, shape=shape, path=info or spec.path, is_zero=is_zero, sharding=sharding
        )
        for spec, shape, info, is_zero, sharding in zip(
            call.results, shapes, infos, main.zeros, shardings.results, strict=True
        )
    )
    return dataclasses.replace(described, results=specs)


def infer_argument_signature(call: CallModule) -> CallModule:
    """Return the call with shapes, names and shardings for its arguments, as `infer_signature`.

    An unknown dimension of a result is a variable of its own.
    """
    described, main, _, _ = _with_arguments(call)
    taken = {*described.symbols}

    def dims(index: int, type_: TensorType) -> Iterator[Dim]:
        for axis, size in enumerate(type_.shape):
            names = (f"r{index}_{axis}{'_' * more}" for more in itertools.count())
            yield next(name for name in names if name not in taken) if size is None else size

    return dataclasses.replace(
        described,
        results=tuple(
            dataclasses.replace(spec, shape=tuple(dims(index, type_)))
            for index, (spec, type_) in enumerate(zip(call.results, main.results, strict=True))
        ),
    )


def _with_arguments(call: CallModule) -> tuple[CallModule, Main, list[str], ModuleShardings]:
    """Return the call with its arguments described, and what the module says of its results."""
    with open_module(call.module) as module:
        main = read_main(module)
        quoted = _quoted_shapes(module)
        name = symbol_name(module.operation).removeprefix(_PREFIX)
        infos = _result_infos(module)
        shardings = read_module_shardings(module)
    _check_counts(call, main)
    shapes = _argument_shapes(main.args, quoted)
    args = tuple(
        dataclasses.replace(spec, shape=shape, name=own, sharding=sharding)
        for spec, shape, own, sharding in zip(
            call.args, shapes, main.names, shardings.arguments, strict=True
        )
    )
    described = dataclasses.replace(call, name=name, args=args, nr_devices=shardings.nr_devices)
    return described, main, infos, shardings


def argument_shapes(call: CallModule) -> tuple[Shape, ...]:
    """Return the shape of each operand, with the expressions that the module's assertions quote."""
    with open_module(call.module) as module:
        main = read_main(module)
        _check_counts(call, main)
        return tuple(_argument_shapes(main.args, _quoted_shapes(module)))


def _check_counts(call: CallModule, main: Main) -> None:
    if len(main.args) != len(call.args) or len(main.results) != len(call.results):
        raise FormatError(
            f"Node {call.name} has {len(call.args)} inputs and {len(call.results)} results; its "
            f"module takes {len(main.args)} and returns {len(main.results)}."
        )


def _quoted_shapes(module: Any) -> list[tuple[str, ...]]:
    """Return the shapes with variables that the assertions quote, in the order of the arguments."""
    for operation in walk(find_main(module)):
        if is_shape_assertion(operation):
            message = ir.StringAttr(operation.attributes["error_message"]).value
            quoted = re.search(r"shapes specifications: (.*?)\. Obtained", message)
            return _split_specification(quoted[1]) if quoted else []
    return []


def _split_specification(text: str) -> list[tuple[str, ...]]:
    """Return the shapes in `args[0].shape = (b, 3),args[1].shape = (2*b,)`."""
    shapes = []
    for start in re.finditer(r"\.shape = \(", text):
        dims, depth = [""], 0
        for character in text[start.end() :]:
            depth += {"(": 1, ")": -1}.get(character, 0)
            if depth < 0:
                break
            if character == "," and depth == 0:
                dims.append("")
            else:
                dims[-1] += character
        shapes.append(tuple(dim.strip() for dim in dims if dim.strip()))
    return shapes


def _argument_shapes(types: Sequence[TensorType], quoted: list[tuple[str, ...]]) -> list[Shape]:
    unknown = [type_ for type_ in types if None in type_.shape]
    fitting = len(unknown) == len(quoted) and all(
        _fits(type_, shape) for type_, shape in zip(unknown, quoted, strict=True)
    )
    rest = iter(quoted)
    shapes: list[Shape] = []
    for index, type_ in enumerate(types):
        names = next(rest) if fitting and None in type_.shape else ()
        shapes.append(
            tuple(
                size if size is not None else names[axis] if names else f"d{index}_{axis}"
                for axis, size in enumerate(type_.shape)
            )
        )
    return shapes


def _fits(type_: TensorType, shape: tuple[str, ...]) -> bool:
    return len(type_.shape) == len(shape) and all(
        size is None or str(size) == dim for size, dim in zip(type_.shape, shape, strict=True)
    )


def _result_infos(module: Any) -> list[str]:
    """Return the paths into the result that JAX notes down, such as `result['y']`."""
    infos = []
    for attributes in value_attributes(find_main(module), "res_attrs"):
        info = attributes.get("jax.result_info")
        path = "" if info is None else ir.StringAttr(info).value
        infos.append(path if path.startswith("result") or not path else f"result{path}")
    return infos


def _result_shapes(
    call: CallModule, types: Sequence[TensorType], told: Mapping[int, Shape]
) -> list[Shape]:
    """Return the shapes of the results in terms of the arguments' dimension variables."""
    if all(None not in type_.shape for type_ in types):
        return [tuple(size or 0 for size in type_.shape) for type_ in types]
    names = call.symbols
    if len(names) > _MAX_SYMBOLS:
        raise StructureError(
            f"{call.name} has {len(names)} dimension variables; how its results depend on them can "
            f"be found out for at most {_MAX_SYMBOLS}. To do: export it again with fewer."
        )
    corners = {  # where the chosen variables are one step larger than the others
        chosen: _sizes(call, {n: _BASE + (_STEP if n in chosen else 0) for n in names})
        for chosen in _subsets(names)
    }
    shapes: list[Shape] = []
    for index, type_ in enumerate(types):
        dims: list[Dim] = []
        for axis, size in enumerate(type_.shape):
            values = {chosen: sizes[index][axis] for chosen, sizes in corners.items()}
            dims.append(_polynomial(values) if size is None else size)
        shapes.append(tuple(dims))
    samples = _sizes_elsewhere(call, names)
    return [
        _chosen(call, index, [*([told[index]] if index in told else []), shape], samples)
        for index, shape in enumerate(shapes)
    ]


def _sizes(call: CallModule, values: Mapping[str, int]) -> list[tuple[int, ...]]:
    """Return the shapes of the results for values of the dimension variables."""
    shapes = [
        tuple(size or 0 for size in evaluate_shape(spec.shape or (), values)) for spec in call.args
    ]
    return [tuple(n or 0 for n in type_.shape) for type_ in refine_results(call, shapes)]


def _polynomial(values: Mapping[tuple[str, ...], int]) -> Dim:
    """Return the polynomial, linear in each variable, that has the values at the corners.

    Where its coefficients are no whole numbers they are rounded, and it does not fit elsewhere.
    """
    terms: dict[tuple[str, ...], int] = {}
    for chosen in values:
        # In terms of (x - base) / step the coefficients are differences of the corners' values.
        difference = sum(
            (-1) ** (len(chosen) - len(subset)) * values[subset] for subset in _subsets(chosen)
        )
        coefficient = difference // _STEP ** len(chosen)
        for kept in _subsets(chosen):
            share = coefficient * (-_BASE) ** (len(chosen) - len(kept))
            terms[kept] = terms.get(kept, 0) + share
    return _to_text({term: number for term, number in terms.items() if number})


def _subsets(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for count in range(len(names) + 1):
        yield from itertools.combinations(names, count)


def _to_text(terms: Mapping[tuple[str, ...], int]) -> Dim:
    """Return the sum of products, as JAX writes it; the number of one that has no variables."""
    if terms.keys() <= {()}:
        return terms.get((), 0)
    text = ""
    for names in sorted(terms, key=lambda names: (-len(names), names)):
        number = terms[names]
        factors = names if abs(number) == 1 and names else (str(abs(number)), *names)
        text += (" - " if number < 0 else " + ") + "*".join(factors)
    return f"-{text[3:]}" if text.startswith(" - ") else text[3:]


_Sample = tuple[Mapping[str, int], list[tuple[int, ...]]]


def _sizes_elsewhere(call: CallModule, names: Sequence[str]) -> list[_Sample]:
    """Return the module's statements about sizes that the polynomials were not made of."""
    multiples = {name: _BASE * (3 + position) for position, name in enumerate(names)}
    others = ({name: n + i for i, name in enumerate(names)} for n in _ELSEWHERE)
    samples: list[_Sample] = []
    for values in (*others, multiples):
        with contextlib.suppress(StructureError):  # the function does not take such sizes
            samples.append((values, _sizes(call, values)))
    if not samples:
        raise StructureError(
            f"How the results of {call.name} depend on {', '.join(names)} cannot be found out: it "
            "takes none of the sizes that were tried. To do: use the file through TensorFlow."
        )
    return samples


def _chosen(
    call: CallModule, index: int, candidates: Sequence[Shape], samples: Sequence[_Sample]
) -> Shape:
    """Return the first shape that is what the module says at all sizes."""
    for shape in candidates:
        if all(_sizes_of(shape, values) == sizes[index] for values, sizes in samples):
            return shape
    values, sizes = next(
        sample for sample in samples if _sizes_of(candidates[-1], sample[0]) != sample[1][index]
    )
    at = ", ".join(f"{name} = {value}" for name, value in values.items())
    raise StructureError(
        f"The shape {sizes[index]} of {call.results[index].path} of {call.name} at {at} is not a "
        "polynomial of its dimension variables, and no gradient in the file has it, so the "
        "function cannot be exported again. To do: use the file through TensorFlow."
    )


def _sizes_of(shape: Shape, values: Mapping[str, int]) -> tuple[int | None, ...] | None:
    """Return the sizes for values of the variables; None where the text is of something else."""
    try:
        return evaluate_shape(shape, values)
    except StructureError:
        return None
