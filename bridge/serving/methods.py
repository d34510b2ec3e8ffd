"""The calls of TensorFlow Serving, and what each wants of a signature.

What is checked here is what the server checks at each request, in
tensorflow_serving/servables/tensorflow/{classifier,regressor,predict_util}.cc.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.serving.framework import tf
from xla_call_module.errors import DtypeError, StructureError

__all__ = ["Method", "named_outputs", "parse_method"]


@dataclass(frozen=True, slots=True)
class Method:
    """A call of the server.

    Attributes:
        name: in the SignatureDef.
        input: what the input is called that serialized `tf.Example`s come in.
        outputs: what outputs may be called; empty where that is free.
    """

    name: str
    input: str
    outputs: tuple[str, ...] = ()

    def check_request(self, specs: Mapping[str, Any]) -> None:
        """Refuse a request that the server does not make.

        Raises:
            StructureError: it is so.
        """
        if not self.outputs:
            return
        spec = specs.get(self.input)
        if spec is None or len(specs) > 1 or spec.dtype != tf.string or spec.shape.rank != 1:
            raise StructureError(
                f"The request has {', '.join(map(str, specs.values()))}; {self.name} gives a "
                f"signature serialized tf.Examples, in the one input {self.input!r}. To do: pass "
                "examples=True, and let preprocess= return what is no feature of them."
            )


_METHODS = {
    "predict": Method("tensorflow/serving/predict", "examples"),
    "classify": Method("tensorflow/serving/classify", "inputs", ("scores", "classes")),
    "regress": Method("tensorflow/serving/regress", "inputs", ("outputs",)),
}


def parse_method(method: Any, classes: Sequence[str] | None) -> Method:
    """The call of a name, `predict` or `tensorflow/serving/predict`.

    Raises:
        StructureError: there is none; or it returns no classes, and has some.
    """
    known = _METHODS | {found.name: found for found in _METHODS.values()}
    if not isinstance(method, str) or method not in known:
        raise StructureError(f"method={method!r}; expected one of {', '.join(_METHODS)}.")
    is_list = not isinstance(classes, str) and all(isinstance(c, str) for c in classes or ())
    if classes is not None and (known[method] is not _METHODS["classify"] or not is_list):
        raise StructureError(
            f"classes={classes!r} with method={method!r}; expected names of classes, for classify."
        )
    return known[method]


def named_outputs(
    method: Method, outputs: Mapping[str, Any], classes: Sequence[str] | None
) -> dict[str, Any]:
    """The outputs under the names that the server knows.

    Raises:
        StructureError: there are others, or they have other shapes.
        DtypeError: they have other dtypes.
    """
    if not method.outputs:
        return dict(outputs)
    found = dict(outputs)
    if len(found) == 1 and not found.keys() <= set(method.outputs):
        found = {method.outputs[0]: next(iter(found.values()))}
    if classes is not None and "scores" in found and "classes" not in found:
        _check("scores", found["scores"], method)
        found["classes"] = _class_names(found["scores"], classes)
    if not found or not found.keys() <= set(method.outputs):
        raise StructureError(
            f"The outputs are {', '.join(found)}; {method.name} returns "
            f"{' or '.join(method.outputs)}. To do: pass postprocess= that returns these by name."
        )
    for name, tensor in found.items():
        _check(name, tensor, method)
    return found


def _class_names(scores: Any, classes: Sequence[str]) -> Any:
    number = scores.shape[1]
    if number is not None and number != len(classes):
        raise StructureError(f"There are {number} scores, and {len(classes)} names of classes.")
    return tf.broadcast_to(tf.constant(list(classes)), tf.shape(scores))


def _check(name: str, tensor: Any, method: Method) -> None:
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
