"""`python -m tests.docs PAGE` runs the blocks of a page in a new folder.

With `--write` it writes what they print now into the page.
"""

import contextlib
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

from tests.docs.running import run_page

failed = False
pages = [Path(page).absolute() for page in sys.argv[1:] if page != "--write"]
for page in pages:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        sys.path.insert(0, folder)
        try:
            print(f"{page.name}: {run_page(page, write='--write' in sys.argv)} blocks run")
        except AssertionError as error:
            failed = True
            print(error, file=sys.stderr)
        sys.path.remove(folder)
sys.exit(failed)
