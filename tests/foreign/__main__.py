"""`python -m tests.foreign OUT NAME ...`: run `write_NAME.main(OUT/NAME)` for each name."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path


def main(out, names):
    """Write into a new folder for each name."""
    os.environ["KERAS_BACKEND"] = "jax"  # read at the first import of Keras, whoever makes it
    for name in names:
        (out / name).mkdir(parents=True)
        import_module(f"tests.foreign.write_{name}").main(out / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
