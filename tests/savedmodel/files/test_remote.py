"""Addresses: etils over a real fsspec file system, in memory."""

from __future__ import annotations

import re
import sys

import fsspec
import jax
import numpy as np
import pytest
from etils.epath import gpath
from etils.epath.backend import fsspec_backend
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import known_implementations

import bridge
from xla_call_module.errors import MissingDependencyError, StructureError, installing


@pytest.fixture
def store(monkeypatch):
    """A store that `s3://` leads to for the length of a test."""

    class Store(MemoryFileSystem):
        protocol = "s3"
        store = {}  # noqa: RUF012 - fsspec's own way
        pseudo_dirs = [""]  # noqa: RUF012
        written = []  # noqa: RUF012

        @classmethod
        def _strip_protocol(cls, path):
            return super()._strip_protocol(path.removeprefix("s3://"))

        def open(self, path, mode="rb", **options):
            if "w" in mode:
                self.written.append(path.rpartition("/")[2])
            return super().open(path, mode, **options)

    _forget_file_systems()
    known = known_implementations["s3"]["class"]
    fsspec.register_implementation("s3", Store, clobber=True)
    monkeypatch.setenv("EPATH_USE_TF", "false")
    yield Store
    _forget_file_systems()
    fsspec.register_implementation("s3", known, clobber=True)


def _forget_file_systems():
    """Forget what etils has decided of addresses before: which system each is on, and whose."""
    fsspec_backend._get_filesystem.cache_clear()
    gpath._is_tf_installed.cache_clear()


@pytest.fixture
def exported():
    return jax.export.export(jax.jit(lambda w, x: w * x))(np.ones(3, np.float32), 1.0)


def _files(store):
    return {path.partition("bucket/")[2]: file.getvalue() for path, file in store.store.items()}


def test_save_to_an_address(store, exported, tmp_path):
    weights = np.ones(3, np.float32)
    written = bridge.save(exported, "s3://bucket/model", params=weights)
    bridge.save(exported, tmp_path / "model", params=weights)
    local = {
        str(file.relative_to(tmp_path)): file.read_bytes()
        for file in (tmp_path / "model").rglob("*")
        if file.is_file()
    }
    assert _files(store) == local
    assert (written.path, written.bytes) == ("s3://bucket/model", sum(map(len, local.values())))
    assert store.written[-1] == "saved_model.pb"


def test_an_address_is_only_replaced_when_asked(store, exported):
    bridge.save(exported, "s3://bucket/model", params=np.ones(3, np.float32))
    before = _files(store)
    with pytest.raises(StructureError, match=r"s3://bucket/model exists.*overwrite=True"):
        bridge.save(exported, "s3://bucket/model", params=np.zeros(3, np.float32))
    assert _files(store) == before
    bridge.save(exported, "s3://bucket/model", params=np.zeros(3, np.float32), overwrite=True)
    assert _files(store).keys() == before.keys()
    assert _files(store) != before


def test_without_etils(monkeypatch, exported):
    monkeypatch.setitem(sys.modules, "etils", None)
    with pytest.raises(MissingDependencyError, match=re.escape(installing("remote"))):
        bridge.save(exported, "s3://bucket/model", params=np.ones(3, np.float32))


@pytest.mark.parametrize(
    ("path", "match"),
    [
        (np.sin, r"Expected a path, got sin\. To do: pass what is written first"),
        (3, "Expected a path, got a int"),
        ("C:\\models\\m", r"C:\\models\\m is a path of Windows"),
    ],
)
def test_what_is_no_path_here(path, match):
    for verb in (lambda: bridge.save(np.sin, path, args="f32[]"), lambda: bridge.load(path)):
        with pytest.raises(StructureError, match=match):
            verb()
