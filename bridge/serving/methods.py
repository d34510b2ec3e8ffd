"""The methods of TensorFlow Serving (predict, classify, regress), and their signatures.

The checks are those that the server makes at each request, in
tensorflow_serving/servables/tensorflow/{classifier,regressor,predict_util}.cc.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf

from xla_call_module.errors import DtypeError, StructureError


@dataclass(frozen=True, slots=True)
class ServingMethod:
    """A method of the server.

    Attributes:
        name: the method name in the SignatureDef.
        input: the name of the input for serialized `tf.Example`s.
        outputs: the allowed names of outputs; empty where any is allowed.
    """

    name: str
    input: str
    outputs: tuple[str, ...] = ()

    def check_request(self, specs: Mapping[str, Any]) -> None:
        """Check that a request is one that the server makes."""
        if not self.outputs:
            return
        spec = specs.get(self.input)
        if spec is None or len(specs) > 1 or spec.dtype != tf.string or spec.shape.rank != 1:
            raise StructureError(
                f"The request has {', '.join(map(str, specs.values()))}; {self.name} passes "
                f"serialized tf.Examples in one input, {self.input!r}. To do: pass examples=True, "
                "and let preprocess= return the inputs that are not features of them."
            )


MethodName = Literal["predict", "classify", "regress"]
_METHODS = {
    "predict": ServingMethod("tensorflow/serving/predict", "examples"),
    "classify": ServingMethod("tensorflow/serving/classify", "inputs", ("scores", "classes")),
    "regress": ServingMethod("tensorflow/serving/regress", "inputs", ("outputs",)),
}


def parse_method(method: Any, classes: Sequence[str] | None) -> ServingMethod:
    """Return the method of a name, `predict` or `tensorflow/serving/predict`."""
    known = _METHODS | {listed.name: listed for listed in _METHODS.values()}
    if not isinstance(method, str) or method not in known:
        raise StructureError(f"method={method!r}; expected one of {', '.join(_METHODS)}.")
    is_list = not isinstance(classes, str) and all(isinstance(c, str) for c in classes or ())
    if classes is not None and (known[method] is not _METHODS["classify"] or not is_list):
        raise StructureError(
            f"classes={classes!r} with method={method!r}; expected names of classes, for classify."
        )
    return known[method]


def named_outputs(
    method: ServingMethod, outputs: Mapping[str, Any], classes: Sequence[str] | None
) -> dict[str, Any]:
    """Return the outputs under the names that the server expects."""
    if not method.outputs:
        return dict(outputs)
    named = dict(outputs)
    if len(named) == 1 and not named.keys() <= set(method.outputs):
        named = {method.outputs[0]: next(iter(named.values()))}
    if classes is not None and "scores" in named and "classes" not in named:
        _check("scores", named["scores"], method)
        named["classes"] = _class_names(named["scores"], classes)
    if not named or not named.keys() <= set(method.outputs):
        raise StructureError(
            f"The outputs are {', '.join(named)}; {method.name} returns "
            f"{' or '.join(method.outputs)}. To do: pass postprocess= that returns these by name."
        )
    for name, tensor in named.items():
        _check(name, tensor, method)
    return named


def _class_names(scores: Any, classes: Sequence[str]) -> Any:
    number = scores.shape[1]
    if number is not None and number != len(classes):
        raise StructureError(
            f"There are {number} scores, and {len(classes)} names of classes. To do: pass a name "
            "for each score."
        )
    return tf.broadcast_to(tf.constant(list(classes)), tf.shape(scores))


def _check(name: str, tensor: Any, method: ServingMethod) -> None:
    wanted = tf.string if name == "classes" else tf.float32
    if tensor.dtype != wanted:
        raise DtypeError(
            f"{name} is {tensor.dtype.name}; {method.name} returns {wanted.name}. To do: cast it "
            "by postprocess=."
        )
    rank = tensor.shape.rank
    by_row = rank == 1 or (rank == 2 and tensor.shape[1] in (None, 1))
    if not (rank is None or (by_row if name == "outputs" else rank == 2)):
        expected = "(batch,) or (batch, 1)" if name == "outputs" else "(batch, classes)"
        raise StructureError(
            f"{name} has the shape {tensor.shape}; {method.name} returns {expected}. To do: pass "
            "postprocess= that returns it so."
        )
