"""The files that TensorFlow Serving, and who publishes for it, put into a SavedModel's folder."""

from __future__ import annotations

__all__ = ["OWN_BATCHING_FILE", "PUBLICATION_FILE", "SERVING_FILES", "WARMUP_FILE"]

# tensorflow_serving/servables/tensorflow/saved_model_warmup_util.h
WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
# Read with --enable_per_model_batching_parameters, instead of the server's own file
# (tensorflow_serving/servables/tensorflow/bundle_factory_util.cc).
OWN_BATCHING_FILE = "batching_params.pbtxt"
# Of which version another one is a copy; `bridge.serving.rollback` writes it.
PUBLICATION_FILE = "assets.extra/jax_tf_bridge_publication.json"
# None of them changes what the model computes.
SERVING_FILES = frozenset({OWN_BATCHING_FILE, PUBLICATION_FILE, WARMUP_FILE})
