"""The check that a golden file gives the numbers that were written beside it.

`python -m tests.golden.reading` with `XLA_FLAGS=--xla_force_host_platform_device_count=2` reads all
of them in the running JAX, which is all that it needs, and prints how many work of each writer.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import bridge
from tests.golden.write_kinds import DEVICES, KINDS, SEVERAL_DEVICES, Kind, arrays_of, values

GOLDEN = Path(__file__).parent


def folders_of(*, several_devices: bool) -> list[Path]:
    """Return the folders of the kinds that run on one device, or of the others."""
    folders = sorted(path.parent for path in GOLDEN.glob("*/jax-*/*/values.npz"))
    return [path for path in folders if (path.name in SEVERAL_DEVICES) == several_devices]


def numbers_of(folder: Path) -> Mapping[str, np.ndarray[Any, Any]]:
    """Return the arrays that were computed when the file was written."""
    with np.load(folder / "values.npz") as stored:
        return dict(stored)


def check_leaves(
    leaves: Iterable[Any], numbers: Mapping[str, np.ndarray[Any, Any]], what: str
) -> None:
    """Compare the leaves with those that are stored under a name, dtypes included."""
    count = sum(name.startswith(f"{what}/") for name in numbers)
    for index, leaf in zip(range(count), leaves, strict=True):
        expected = numbers[f"{what}/{index}"]
        assert np.asarray(leaf).dtype == expected.dtype
        np.testing.assert_allclose(leaf, expected, rtol=2e-4, atol=2e-5, err_msg=f"{what}/{index}")


def check_in_jax(folder: Path, kind: Kind) -> None:
    """Compare results and gradients of a file, also after it was serialized by this JAX."""
    numbers = numbers_of(folder)
    model = bridge.load(folder / "model")
    made = kind.make()
    assert set(model.signatures) == set(made)
    for key, (_, _, arguments) in made.items():
        exported = model.signatures[key].exported
        given = arguments if kind.devices == 1 else _placed(arguments)
        for name, leaves in values(exported.call, given, kind.order).items():
            check_leaves(leaves, numbers, f"{key}/{name}")
        if folder.name == "sharded_gspmd" and jax.__version_info__ >= (0, 10):
            continue  # JAX serializes no shardings without names any more
        again = jax.export.deserialize(exported.serialize(vjp_order=kind.order))
        check_leaves(arrays_of(jax.tree.leaves(again.call(*given))), numbers, f"{key}/result")


def _placed(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments on every device, as a program of several devices takes them."""
    devices = np.array(jax.devices()[:DEVICES])
    mesh = jax.sharding.Mesh(devices, ("rows",))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return jax.tree.map(lambda leaf: jax.device_put(jnp.asarray(leaf), whole), arguments)


def main() -> int:
    """Read every file; 0 if all of them work."""
    worked: dict[str, list[bool]] = {}
    for folder in [*folders_of(several_devices=False), *folders_of(several_devices=True)]:
        writer = "/".join(folder.parts[-3:-1])
        try:
            check_in_jax(folder, KINDS[folder.name])
        except Exception as error:  # noqa: BLE001 - one that is not read does not end the others
            print(f"{writer}/{folder.name}: {type(error).__name__}: {error}")
            worked.setdefault(writer, []).append(False)
        else:
            worked.setdefault(writer, []).append(True)
    for writer, read in worked.items():
        print(f"JAX {jax.__version__} reads {sum(read)} of {len(read)} of {writer}")
    return int(not all(itertools.chain(*worked.values())))


if __name__ == "__main__":
    sys.exit(main())
