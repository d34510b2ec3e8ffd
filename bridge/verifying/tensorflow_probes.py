"""`python tensorflow_probes.py [NAME ...]`: print the known deviations of a TensorFlow as JSON.

The names are those of `xla_call_module.versions.DEVIATIONS`. Like `tensorflow_run.py`, which it is
copied with, this file runs where this package need not be installed: it imports TensorFlow alone,
and asks TensorFlow's own functions, compiled by XLA.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

_NAN = math.nan


def _compiled(function: Callable[[Any], Any], numbers: Sequence[float]) -> list[Any]:
    run = tf.function(function, jit_compile=True, autograph=False)
    results: list[Any] = run(tf.constant(numbers, tf.float32)).numpy().ravel().tolist()
    return results


def maximum_of_nan() -> bool:
    """Return whether the maximum of numbers and NaN is a number."""
    results = _compiled(lambda x: tf.stack([tf.reduce_max(x), tf.reduce_min(x)]), [1.0, _NAN, 2.0])
    return not all(map(math.isnan, results))


def clamp_of_nan() -> bool:
    """Return whether NaN, clipped between two numbers, is a number."""
    clip: Any = tf.raw_ops.ClipByValue  # `tf.clip_by_value` has other operations
    results = _compiled(lambda x: clip(t=x, clip_value_min=-1.0, clip_value_max=1.0), [_NAN])
    return not math.isnan(results[0])


def erf_of_nan() -> bool:
    """Return whether the error function of NaN is a number."""
    return not math.isnan(_compiled(tf.math.erf, [_NAN])[0])


def float8_conversion() -> bool:
    """Return whether a number that float8 cannot represent survives a conversion to it."""
    dtype = getattr(tf.dtypes, "experimental", tf).float8_e4m3fn
    result: float = _compiled(lambda x: tf.cast(tf.cast(x, dtype), tf.float32), [0.3])[0]
    return result != 0.3125


def int4_inside() -> bool:
    """Return whether a program with 4-bit integers is refused on the CPU."""
    try:
        results = _compiled(
            lambda x: tf.cast(tf.cast(tf.cast(x, tf.int4), tf.int8), x.dtype), [3.0]
        )
    except tf.errors.OpError as error:
        return _is_of_int4(error)
    return results != [3.0]


def int8_product() -> bool:
    """Return whether a product of int8 is wrong on a GPU, where a size is no multiple of 4."""
    if not tf.config.list_physical_devices("GPU"):
        return False
    values = tf.reshape(tf.range(15) - 7, (3, 5))
    product = tf.function(
        lambda x: tf.matmul(x, x, transpose_b=True, output_type=tf.int32), jit_compile=True
    )(tf.cast(values, tf.int8))
    return bool(tf.reduce_any(product != tf.matmul(values, values, transpose_b=True)))


def _is_of_int4(error: tf.errors.OpError) -> bool:
    """Return whether XLA refuses 4-bit integers; TensorFlow raises the same where it has no cast.

    Only the text tells, and this file has its gates itself, since it runs where the package is not
    installed. It can go when TensorFlow 2.15, which refuses them, is no longer supported.
    """
    return "S4/U4" in str(error)


PROBES: Mapping[str, Callable[[], bool]] = {
    probe.__name__: probe
    for probe in (
        maximum_of_nan,
        clamp_of_nan,
        erf_of_nan,
        float8_conversion,
        int4_inside,
        int8_product,
    )
}


def probe_all(names: Sequence[str]) -> list[str]:
    """Return the deviations that this TensorFlow has, as far as it can run their probes."""
    present = []
    for name in names:
        try:
            holds = PROBES[name]()
        except (tf.errors.OpError, AttributeError, TypeError, ValueError):
            holds = False
        if holds:
            present.append(name)
    return present


def main(names: Sequence[str]) -> None:
    """Print which of the named deviations this TensorFlow has; by default of all."""
    report = {"tensorflow": tf.__version__, "deviations": probe_all(names or list(PROBES))}
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
