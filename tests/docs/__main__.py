"""`python -m tests.docs PAGE` runs the blocks of a page in the current folder."""

import sys
from pathlib import Path

from tests.docs.running import run_page

print(f"{run_page(Path(sys.argv[1]).absolute())} blocks run")
