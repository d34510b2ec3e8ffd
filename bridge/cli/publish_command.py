"""The commands `publish` and `rollback` of `jax-tf-bridge`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from bridge.cli.command_arguments import to_sizes

if TYPE_CHECKING:
    from bridge.serving.publishing import Published

__all__ = ["add_publish", "add_rollback", "run_publish", "run_rollback"]


def add_publish(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `publish`."""
    parser.add_argument("model", metavar="MODEL", help="the folder of a SavedModel of any writer")
    parser.add_argument("base_path", metavar="BASE", help="the folder above the versions")
    parser.add_argument(
        "--version", type=int, help="the version's number; by default the next after the highest"
    )
    parser.add_argument(
        "--warmup", metavar="SIZES", type=to_sizes, help="batch sizes of warmup requests: 1,8,32"
    )
    parser.add_argument(
        "--batching",
        metavar="SIZES",
        type=to_sizes,
        help="batch sizes that the server runs: 1,8,32",
    )
    parser.add_argument("--name", help="the model's name in its configuration; by default BASE's")
    _add_shared(parser)


def add_rollback(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `rollback`."""
    parser.add_argument("base_path", metavar="BASE", help="the folder above the versions")
    parser.add_argument(
        "--to", metavar="VERSION", type=int, help="by default the one before the newest"
    )
    _add_shared(parser)


def _add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep", metavar="COUNT", type=int, help="how many versions stay")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_publish(options: argparse.Namespace) -> int:
    """Publish a model, and return the exit status."""
    from bridge.serving.publishing import publish

    published = publish(
        options.model,
        options.base_path,
        version=options.version,
        warmup=options.warmup,
        batching=options.batching,
        keep=options.keep,
        name=options.name,
    )
    _print(published, as_json=options.json)
    return 0


def run_rollback(options: argparse.Namespace) -> int:
    """Serve an older version again, and return the exit status."""
    from bridge.serving.publishing import rollback

    published = rollback(options.base_path, to=options.to, keep=options.keep)
    _print(published, as_json=options.json)
    return 0


def _print(published: Published, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(published), indent=2))
        return
    print(f"version {published.version}: {published.path}")
    if published.copy_of is not None:
        print(f"a copy of version {published.copy_of}")
    if published.warmup:
        print(f"{published.warmup} warmup records")
    if published.removed:
        print(f"removed: {', '.join(map(str, published.removed))}")
    if published.configs is not None:
        print("tensorflow_model_server", *published.configs.options)
