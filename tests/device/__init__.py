"""The tests for an accelerator: `make device`, or `python -m tests.device [ARGUMENT ...]`.

A process that sees a CPU alone writes each function of `tests/matrix`; JAX and, where it is
installed, TensorFlow load the file on the device. There they must compute what JAX itself computes
on that device, and what it computes on a CPU, as exactly as dtype and precision promise. On a
machine without an accelerator the same tests run on the CPU.

- `writing.py`: what is written for a function, and the numbers that belong to it.
- `precision.py`: how closely two devices agree, from dtypes and precisions alone.
- `speed.py`: `python -m tests.device.speed`, times and linear algebra, as ratios to the peer.

The functions over eight devices are not among them: `tests/eight_devices` runs those.
"""

from __future__ import annotations

# The environment variable that says that all functions of the matrix are run.
IN_FULL = "TESTS_DEVICE"
