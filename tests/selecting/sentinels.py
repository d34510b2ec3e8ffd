"""The tests over the limit that `make test` runs none the less: a round trip of each kind."""

from __future__ import annotations

SENTINELS: tuple[str, ...] = ()
