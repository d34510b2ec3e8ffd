"""The command `jax-tf-bridge manifest`: whether a SavedModel is what was written."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from savedmodel.files.model_folder import read_one_version
from savedmodel.manifest import compare_manifest, read_manifest
from xla_call_module.errors import StructureError

__all__ = ["add_manifest", "run_manifest"]


def add_manifest(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("path", help="the folder with saved_model.pb")
    parser.add_argument("--json", action="store_true", help="for programs")


def run_manifest(options: argparse.Namespace) -> int:
    """Compare a folder with its manifest; 0 for as it was written, 1 for different."""
    folder = Path(options.path)
    if not folder.is_dir():
        raise StructureError(f"{folder} is no folder. To do: name the folder of a SavedModel.")
    differences, manifest = read_one_version(
        folder, lambda opened: (compare_manifest(opened), read_manifest(opened))
    )
    assert manifest is not None
    if options.json:
        found = {"path": options.path, "differences": list(differences), **manifest.to_json()}
        print(json.dumps(found, indent=2))
        return 1 if differences else 0
    for difference in differences:
        print(difference)
    if not differences:
        print(f"{options.path}: {len(manifest.files)} files, all as in the manifest")
    return 1 if differences else 0
