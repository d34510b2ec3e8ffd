"""The gates for what differs between versions of JAX, with and without the newest public names."""

from __future__ import annotations

import dataclasses

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import bridge
from bridge.core._jax import dimension_bounds, replace_shardings
from xla_call_module._jax import has_hlo_shardings, named_shardings
from xla_call_module.exported import from_exported, to_exported

REMOVED = ("in_shardings_hlo", "out_shardings_hlo")
MOST = 1 << 20


@pytest.mark.parametrize("is_public", [True, False])
def test_bounds_of_dimensions(monkeypatch, is_public):
    """JAX since 0.12 tells them; what is found by asking is the same."""
    if not is_public:
        monkeypatch.delattr(jax.export, "symbolic_dim_bounds", raising=False)
    constraints = ["b >= 4", "mod(b, 2) == 0", "c >= 3", "c <= 17", "d <= 2000000"]
    b, c, d = jax.export.symbolic_shape("b, c, d", constraints=constraints)
    bounds = {
        "b": (b, (4, MOST)), "c": (c, (3, 17)), "d": (d, (1, MOST)), "2*c": (2 * c, (6, 34)),
        "b*c": (b * c, (12, MOST)), "c - 2": (c - 2, (1, 15)), "5": (5, (5, 5)),
    }  # fmt: skip
    found = {name: dimension_bounds(dim, most=MOST) for name, (dim, _) in bounds.items()}
    assert found == {name: expected for name, (_, expected) in bounds.items()}


@pytest.fixture
def without_hlo_shardings(monkeypatch):
    """The class as it will be once the fields are gone that JAX has marked for removal."""
    kind = jax.export.Exported
    fields = {name: f for name, f in kind.__dataclass_fields__.items() if name not in REMOVED}
    initialize = kind.__init__

    def start(self, **given):
        kept = {name: value for name, value in given.items() if name not in REMOVED}
        initialize(self, **kept, **dict.fromkeys(REMOVED, ()))
        for name in REMOVED:
            del vars(self)[name]

    monkeypatch.setattr(kind, "__init__", start)
    monkeypatch.setattr(kind, "__dataclass_fields__", fields)


@pytest.mark.skipif(has_hlo_shardings(), reason="this JAX reads the fields itself")
@pytest.mark.usefixtures("without_hlo_shardings")
def test_nothing_needs_the_shardings_of_the_compiler(tmp_path):
    mesh = AbstractMesh((2,), ("a",))
    rows, whole = (NamedSharding(mesh, PartitionSpec(*names)) for names in (("a",), ()))
    jitted = jax.jit(lambda x: jnp.sin(x) * 2, in_shardings=rows, out_shardings=rows)
    exported = jax.export.export(jitted)(jax.ShapeDtypeStruct((4,), np.float32))
    assert not any(hasattr(exported, name) for name in REMOVED)
    named = named_shardings(exported)
    assert [sharding.spec for side in named for sharding in side] == [rows.spec] * 2
    again = to_exported(from_exported(exported))
    assert named_shardings(again) == named
    changed = replace_shardings(exported, (whole,), (whole,))
    assert named_shardings(changed) == ((whole,), (whole,))
    assert not any(hasattr(one, name) for one in (again, changed) for name in REMOVED)
    data = bytes(exported.serialize(vjp_order=1))
    (tmp_path / "exported.bin").write_bytes(data)
    saved = bridge.save(tmp_path / "exported.bin", tmp_path / "model")
    (signature,) = bridge.load(saved.path).signatures.values()
    assert named_shardings(signature.exported) == named
    assert signature.exported.has_vjp()
    fields = {field.name for field in dataclasses.fields(signature.exported)}
    assert fields.isdisjoint(REMOVED)
