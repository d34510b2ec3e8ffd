"""TensorFlow on modules that may end its process: `python -m` this, one fork for each.

JAX, whose threads would not survive a fork, is not imported; the modules arrive as bytes, and each
takes and returns four numbers.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import time

import tensorflow as tf

from xla_call_module._tf import eager_call_module

IDLE = 5  # seconds without any end, after which those that still run are taken to hang


def main() -> None:
    """Read `{name: base64}`, print `{name: outcome}`: a result, an error or what ended it."""
    modules = json.load(sys.stdin)
    running = {_fork(base64.b64decode(text)): name for name, text in modules.items()}
    outcomes = {}
    while running:
        ended = _wait(running)
        for child, reader in ended or running:
            if not ended:
                os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            with os.fdopen(reader) as pipe:
                said = pipe.read() if ended else "hangs"
            outcomes[running[child, reader]] = said or f"signal {os.WTERMSIG(status)}"
        running = {pair: name for pair, name in running.items() if pair not in (ended or running)}
    json.dump(outcomes, sys.stdout)


def _wait(running):
    """Those that have ended; none after a while in which all the others did nothing."""
    start = time.monotonic()
    while time.monotonic() - start < IDLE:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if ended := [pair for pair in running if os.waitid(os.P_PID, pair[0], flags)]:
            return ended
        time.sleep(0.05)
    return []


def _fork(module):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with os.fdopen(writer, "w") as pipe:
                pipe.write(_run(module))
        finally:
            os._exit(0)
    os.close(writer)
    return child, reader


def _run(module):
    """The numbers, or the error's first words."""
    try:
        results = eager_call_module()(
            [tf.constant([0.0, 1.0, 2.0, 3.0])],
            version=9,
            module=module,
            Sout=[[4]],
            Tout=[tf.float32],
            dim_args_spec=[],
            platforms=["CPU"],
            function_list=[],
            has_token_input_output=False,
            disabled_checks=[],
        )
    except tf.errors.OpError as error:
        return str(error)
    return str(results[0].numpy().tolist())


if __name__ == "__main__":
    main()
