"""Models for TensorFlow Serving: versions, warmup records, and the server's configuration.

Importing this package imports neither JAX nor TensorFlow; a public name loads what it needs when
it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xla_call_module.lazy_names import load_lazily

if TYPE_CHECKING:
    from bridge.serving.batching import Batching
    from bridge.serving.compose import compose
    from bridge.serving.configuration import ConfigFiles, ModelConfig, write_configs
    from bridge.serving.publishing import Published, publish, rollback
    from bridge.serving.warmup import add_warmup

__all__ = [
    "Batching",
    "ConfigFiles",
    "ModelConfig",
    "Published",
    "add_warmup",
    "compose",
    "publish",
    "rollback",
    "write_configs",
]

_HOMES = {
    "Batching": "bridge.serving.batching",
    "ConfigFiles": "bridge.serving.configuration",
    "ModelConfig": "bridge.serving.configuration",
    "Published": "bridge.serving.publishing",
    "add_warmup": "bridge.serving.warmup",
    "compose": "bridge.serving.compose",
    "publish": "bridge.serving.publishing",
    "rollback": "bridge.serving.publishing",
    "write_configs": "bridge.serving.configuration",
}
load_lazily(__name__)
