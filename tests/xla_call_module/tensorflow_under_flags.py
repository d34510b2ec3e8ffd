"""TensorFlow under values of TF_XLA_FLAGS: `python -m` this, cases in, outcomes out.

TensorFlow reads the variable once in a process, so each case has its own: a fork of one that has
imported TensorFlow and not used it. JAX, whose threads would not survive a fork, is not imported;
the modules arrive as bytes.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import traceback

import tensorflow as tf

from xla_call_module._tf import eager_call_module

# Calls that break one check each: with the check they are refused, without it they run.
SHAPES = {"platform": ([2],), "shape_assertions": ([2, 3],)}
REFUSALS = {
    "platform": "not among the platforms",
    "shape_assertions": "Input shapes do not match the polymorphic shapes specification",
}
PLATFORMS = {"platform": ["TPU"], "shape_assertions": ["CPU"]}


def main() -> None:
    """Read `{"modules": {check: base64}, "cases": [[before, after], …]}`, print the outcomes."""
    request = json.load(sys.stdin)
    modules = {name: base64.b64decode(text) for name, text in request["modules"].items()}
    outcomes = []
    for batch in _batches(request["cases"], size=4):
        pipes = [_fork(modules, *case) for case in batch]
        outcomes += [_read(*pipe) for pipe in pipes]
    json.dump(outcomes, sys.stdout)


def _batches(cases, *, size):
    return [cases[start : start + size] for start in range(0, len(cases), size)]


def _fork(modules, before, after):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 3
        try:
            with os.fdopen(writer, "w") as pipe:
                json.dump(_skipped_checks(modules, before, after), pipe)
            status = 0
        finally:
            traceback.print_exc()
            os._exit(status)
    os.close(writer)
    return child, reader


def _read(child, reader):
    """The checks that TensorFlow did not make, or None where it ended the process."""
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) != 3
    return json.loads(text) if text else None


def _skipped_checks(modules, before, after):
    _set(before)
    tf.config.list_physical_devices()
    if after is not None:
        _set(after)
    return [name for name, module in modules.items() if _runs(name, module)]


def _set(value):
    os.environ.pop("TF_XLA_FLAGS", None)
    if value is not None:
        os.environ["TF_XLA_FLAGS"] = value


def _runs(name, module):
    operands = [tf.ones(shape) for shape in SHAPES[name]]
    try:
        eager_call_module()(
            operands,
            version=9,
            module=module,
            Sout=[[]],
            Tout=[tf.float32.as_datatype_enum],
            platforms=PLATFORMS[name],
        )
    except (tf.errors.NotFoundError, tf.errors.InvalidArgumentError) as error:
        if REFUSALS[name] not in str(error):
            raise
        return False
    return True


if __name__ == "__main__":
    main()
