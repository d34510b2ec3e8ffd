"""The private mark of AutoGraph, behind a named gate that does not import TensorFlow."""

from __future__ import annotations

from typing import Any, TypeVar

Function = TypeVar("Function", bound=Any)


def exempt_from_autograph(function: Function) -> Function:
    """`function`, or a class of such, which AutoGraph calls as it is in a `tf.function`.

    AutoGraph would go into this package, which is no TensorFlow, and warn of Python that it does
    not know. The public `tf.autograph.experimental.do_not_convert` needs TensorFlow, which
    importing this package does not, and wraps a function in a context manager that costs a tenth of
    an eager call; what it marks its wrapper with is an attribute
    (tensorflow/python/autograph/impl/api.py, `autograph_artifact`). Without the gate there are
    warnings. It can go when the public one is a mark, too.
    """
    function.autograph_info__ = {}
    return function
