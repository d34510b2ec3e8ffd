"""Functions as what the packages take: as an `Exported`, and as one call."""

from __future__ import annotations

import jax
from jax import export

from xla_call_module import from_exported


def export_of(function, *args, platforms=None, checks=(), **kwargs):
    """Return the `Exported` of a function for arguments like these."""
    exporter = export.export(jax.jit(function), platforms=platforms, disabled_checks=checks)
    return exporter(*args, **kwargs)


def call_of(function, *args, **options):
    """Return the call of a function for arguments like these."""
    return from_exported(export_of(function, *args, **options))
