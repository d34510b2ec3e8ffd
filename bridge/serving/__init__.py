"""Models for TensorFlow Serving: versions, warmup records, and the server's configuration.

Importing this package imports neither JAX nor TensorFlow; a public name loads what it needs when
it is first used. Only `compose` needs TensorFlow.

`publish` writes a model as the next version below a folder that the server watches
(`base_path.py`, on a disk or in an object store). `signatures.py` reads the signatures as requests
reach them, from files of any writer, with the batch sizes that they take; the requests of
`warmup.py` and the files of `configuration.py` are checked against these before the version
appears. `first_requests.py` says what XLA compiles for which sizes, and `server_commands.py` has
the options without which a server compiles nothing. `compose` puts a user's TensorFlow functions
around a call: `preprocessing.py` makes inputs of a request, and `methods.py` names the outputs as
Serving's method wants them. All messages of Serving are declared in `messages.py`; a field that is
needed is added there, and a test compares it with upstream's.
"""

import typing as _typing

from xla_call_module.lazy_names import load_lazily as _load_lazily

if _typing.TYPE_CHECKING:
    from bridge.serving.compose import compose
    from bridge.serving.configuration import Batching, ConfigFiles, ModelConfig, write_configs
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
    "Batching": "bridge.serving.configuration",
    "ConfigFiles": "bridge.serving.configuration",
    "ModelConfig": "bridge.serving.configuration",
    "Published": "bridge.serving.publishing",
    "add_warmup": "bridge.serving.warmup",
    "compose": "bridge.serving.compose",
    "publish": "bridge.serving.publishing",
    "rollback": "bridge.serving.publishing",
    "write_configs": "bridge.serving.configuration",
}
_load_lazily(__name__)
