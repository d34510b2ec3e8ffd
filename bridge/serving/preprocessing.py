"""The tensors of a request, and the inputs of a signature that are made of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from xla_call_module.errors import DtypeError, StructureError, quote


@dataclass(frozen=True, slots=True)
class PreprocessedRequest:
    """The tensors of a request, and the way from them to the inputs of a signature.

    Attributes:
        to_inputs: a function from these tensors to the inputs of the signature, and to those that
            `postprocess` takes besides the outputs.
    """

    specs: Mapping[str, Any]
    to_inputs: Callable[[Mapping[str, Any]], tuple[dict[str, Any], dict[str, Any]]]


def read_request(
    inputs: Mapping[str, Any],
    preprocess: Any,
    request: Mapping[str, Any] | None,
    examples: Any,
    *,
    one_name: str,
    beside: Collection[str] = (),
) -> PreprocessedRequest:
    """Return the request that the options of `compose` describe."""
    if request is not None and preprocess is None and not {*request} <= {*beside}:
        raise StructureError(
            "request= says what preprocess= takes, or postprocess= besides the outputs, and no "
            "function has such parameters. To do: leave request= out."
        )
    if isinstance(examples, Mapping):
        if request is not None:
            raise StructureError(
                "request= and examples= both say what preprocess= takes. To do: leave one out."
            )
        features, given = dict(examples), _parsed_specs(examples)
    elif not examples:
        given = _request_specs(preprocess, request, inputs)
        return _called(inputs, preprocess, given, beside)
    else:
        given = _request_specs(preprocess, request, inputs)
        # What has no batch is no feature of a row.
        given = {n: s for n, s in given.items() if preprocess is not None or _has_batch(s)}
        features = {name: _to_feature(name, spec) for name, spec in given.items()}
    if not features:
        raise StructureError(
            "No input has a batch as its first dimension, so tf.Examples cannot hold any. To do: "
            "leave examples= out, or pass preprocess=."
        )
    below = _called(inputs, preprocess, given, beside)
    return _of_examples(below, features, given, one_name)


def _of_examples(
    below: PreprocessedRequest, features: Mapping[str, Any], given: Mapping[str, Any], one_name: str
) -> PreprocessedRequest:
    """Return a request of serialized `tf.Example`s, and of tensors that are no features."""
    others = {name: spec for name, spec in below.specs.items() if name not in given}
    if one_name in others:
        raise StructureError(
            f"The input {one_name} of the signature has the name of the input for tf.Examples. To "
            "do: give it another one by inputs=."
        )

    def to_inputs(tensors: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        parsed = tf.io.parse_example(tensors[one_name], dict(features))
        cast = {
            name: tf.cast(parsed[name], spec.dtype) if _is_cast(spec) else parsed[name]
            for name, spec in given.items()
        }
        return below.to_inputs({**cast, **{name: tensors[name] for name in others}})

    return PreprocessedRequest(
        {one_name: tf.TensorSpec([None], tf.string, one_name), **others}, to_inputs
    )


def _called(
    inputs: Mapping[str, Any], preprocess: Any, given: Mapping[str, Any], beside: Collection[str]
) -> PreprocessedRequest:
    """Return a request of the tensors of two functions, and of the inputs that none returns."""
    passed = {name for name in given if name in beside}
    if preprocess is None:
        own = _named_specs({**inputs, **given})
        rest = {name: spec for name, spec in own.items() if name in inputs or name not in passed}
    else:
        function = as_function(preprocess)
        parameters = parameters_of(preprocess)
        taken = {n: s for n, s in given.items() if n not in passed or n in parameters}
        returned = named_tensors(_trace(function, taken), list(inputs), "preprocess")
        rest = {name: spec for name, spec in inputs.items() if name not in returned}

    def preprocessed(tensors: Mapping[str, Any]) -> dict[str, Any]:
        if preprocess is None:
            return {}
        results = function(**{name: tensors[name] for name in taken})
        return named_tensors(results, list(inputs), "preprocess")

    def to_inputs(tensors: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        whole = {**{name: tensors[name] for name in rest}, **preprocessed(tensors)}
        return _checked(whole, inputs), {name: tensors[name] for name in passed}

    return PreprocessedRequest(_named_specs({**rest, **given}), to_inputs)


def parameters_of(function: Any) -> frozenset[str]:
    """Return the names of the parameters of a Python or TensorFlow function; none of None."""
    if function is None:
        return frozenset()
    python = getattr(function, "python_function", function)
    try:
        return frozenset(inspect.signature(python).parameters)
    except (TypeError, ValueError):  # of a callable that is written in C
        return frozenset()


def _trace(function: Any, given: Mapping[str, Any]) -> Any:
    try:
        return function.get_concrete_function(**given).structured_outputs
    except (ValueError, TypeError, LookupError) as error:
        raise StructureError(
            f"TensorFlow cannot trace preprocess for {', '.join(map(str, given.values()))}: "
            f"{quote(error)}. To do: take these, or say with request= what arrives."
        ) from error


def as_function(function: Any) -> Any:
    """Return a TensorFlow function, made of a Python function where it is one."""
    if not callable(function):
        raise StructureError(f"{function!r} is not a function; expected a function of tensors.")
    return function if hasattr(function, "get_concrete_function") else tf.function(function)


def named_tensors(value: Any, names: Sequence[str], what: str) -> dict[str, Any]:
    """Return the result of a function as tensors by name."""
    if isinstance(value, Mapping):
        return dict(value)
    if tf.is_tensor(value) or isinstance(value, tf.TensorSpec):
        if len(names) == 1:
            return {names[0]: value}
        raise StructureError(
            f"{what} returns one tensor, and there are {', '.join(names)}. To do: return a dict by "
            "their names."
        )
    raise StructureError(
        f"{what} returns {type(value).__name__}; expected a tensor, or a dict of tensors by name."
    )


def _checked(tensors: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors for the inputs of a signature after checking them."""
    if unknown := sorted(tensors.keys() - inputs.keys()):
        raise StructureError(
            f"preprocess returns {unknown[0]!r}; the inputs of the signature are "
            f"{', '.join(inputs)}. To do: return some of these."
        )
    for name, tensor in tensors.items():
        spec = inputs[name]
        if not isinstance(tensor, tf.Tensor):
            raise StructureError(
                f"preprocess returns a {type(tensor).__name__} for {name}; expected {spec}. To do: "
                "make it dense, as with to_tensor()."
            )
        if tensor.dtype != spec.dtype:
            raise DtypeError(
                f"preprocess returns {tensor.dtype.name} for {name}; expected {spec}. To do: "
                "tf.cast it."
            )
        if not spec.shape.is_compatible_with(tensor.shape):
            raise StructureError(
                f"preprocess returns the shape {tensor.shape} for {name}; expected {spec}."
            )
    return dict(tensors)


def _request_specs(
    preprocess: Any, request: Mapping[str, Any] | None, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the specs of a request's tensors, by name."""
    if request is None:
        return _named_specs(inputs) if preprocess is None else _signature_of(preprocess)
    given: Any = request  # users may pass anything
    named = isinstance(given, Mapping)
    if not named or not all(isinstance(spec, tf.TensorSpec) for spec in given.values()):
        raise StructureError(
            f"request={request!r}; expected a mapping from names to tf.TensorSpec, such as "
            "{'text': tf.TensorSpec([None], tf.string)}."
        )
    return _named_specs({**inputs, **given} if preprocess is None else given)


def _signature_of(preprocess: Any) -> dict[str, Any]:
    """Return the specs in the `input_signature` of a TensorFlow function, by name."""
    if not hasattr(preprocess, "get_concrete_function"):
        raise StructureError(
            "The arguments of preprocess are not known. To do: pass request=, such as "
            "{'text': tf.TensorSpec([None], tf.string)}, or a tf.function with an input_signature."
        )
    try:
        positional, keywords = preprocess.get_concrete_function().structured_input_signature
    except (ValueError, TypeError) as error:
        raise StructureError(
            "The arguments of preprocess are not known, as it has no input_signature. To do: pass "
            "request=, such as {'text': tf.TensorSpec([None], tf.string)}."
        ) from error
    specs = [*positional, *keywords.values()]
    if not all(isinstance(spec, tf.TensorSpec) and spec.name for spec in specs):
        raise StructureError(
            f"preprocess takes {specs}; expected tensors, each with a name. To do: pass request=."
        )
    return {spec.name: spec for spec in specs}


def _has_batch(spec: Any) -> bool:
    return bool(spec.shape.rank) and spec.shape[0] is None


def _is_cast(spec: Any) -> bool:
    return isinstance(spec, tf.TensorSpec) and spec.dtype not in (tf.string, tf.float32, tf.int64)


def _to_feature(name: str, spec: Any) -> Any:
    """Return the feature that holds a row of a tensor."""
    if not spec.shape.rank or spec.shape[0] is not None or None in spec.shape[1:]:
        raise StructureError(
            f"{name} is {spec}, and a tf.Example has rows of fixed shapes only. To do: pass the "
            "features as examples=, and a preprocess= that makes the input of them."
        )
    if spec.dtype == tf.string:
        stored = tf.string
    elif spec.dtype.is_floating:
        stored = tf.float32
    elif spec.dtype.is_integer or spec.dtype.is_bool:
        stored = tf.int64
    else:
        raise DtypeError(
            f"{name} is {spec}, and a tf.Example has float32, int64 and strings. To do: pass the "
            "features as examples=, and a preprocess= that makes the input of them."
        )
    return tf.io.FixedLenFeature(spec.shape[1:], stored)


def _parsed_specs(features: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specs of what `tf.io.parse_example` returns for features."""

    def parse(serialized: Any) -> Any:
        return tf.io.parse_example(serialized, dict(features))

    try:
        spec = tf.TensorSpec([None], tf.string)
        parsed = tf.function(parse, autograph=False).get_concrete_function(spec).structured_outputs
    except (ValueError, TypeError) as error:
        raise StructureError(
            f"examples={dict(features)!r} are not features of a tf.Example: {error}. To do: pass "
            "such as {'x': tf.io.FixedLenFeature([3], tf.float32)}."
        ) from error
    return _named_specs(parsed)


def _named_specs(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specs of tensors, each with its name; those of ragged and others as they are."""
    specs = {
        name: value if isinstance(value, tf.TypeSpec) else tf.type_spec_from_value(value)
        for name, value in values.items()
    }
    return {
        name: tf.TensorSpec(spec.shape, spec.dtype, name)
        if isinstance(spec, tf.TensorSpec)
        else spec
        for name, spec in specs.items()
    }
