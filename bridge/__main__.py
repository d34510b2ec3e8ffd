"""`python -m bridge`, the same as the command `jax-tf-bridge`."""

from __future__ import annotations

import sys

from bridge.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
