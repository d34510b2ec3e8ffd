"""`python -m tests.distribution FOLDER`: the source distribution and the wheel, for `make dist`."""

import sys
from pathlib import Path

from tests.distribution.building import build

for path in build(Path(sys.argv[1])):
    print(f"{path}: {path.stat().st_size:,} bytes")
