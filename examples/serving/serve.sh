#!/bin/sh
# Serve what publish.py has published, with TensorFlow Serving's own container:
# gRPC on port 8500, REST and Prometheus metrics on port 8501. What it compiles is kept in
# FOLDER/compiled: a version with other weights and the same program compiles nothing.
#
# Without --xla_cpu_compilation_enabled, or --xla_gpu_compilation_enabled from 2.18 on, the server
# disables XLA, and every request fails with "XLA compilation disabled".
#
#     examples/serving/serve.sh FOLDER [gpu]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$(cd "$1" && pwd)
platform=${2:-cpu}
image=${SERVING_IMAGE:-tensorflow/serving:2.19.1}
gpus=
if [ "$platform" = gpu ]; then
  image=${SERVING_IMAGE:-tensorflow/serving:2.19.1-gpu}
  gpus=--gpus=all
fi
mkdir -p "$folder/compiled"
exec docker run --rm $gpus \
  --publish 8500:8500 --publish 8501:8501 \
  --volume "$folder/models:/models:ro" \
  --volume "$here/configs:/configs:ro" \
  --volume "$folder/compiled:/compiled" \
  --env TF_XLA_FLAGS=--tf_xla_persistent_cache_directory=/compiled \
  "$image" \
  --model_config_file=/configs/models.config \
  --monitoring_config_file=/configs/monitoring.config \
  --enable_batching=true \
  --batching_parameters_file=/configs/batching_parameters.txt \
  "--xla_${platform}_compilation_enabled=true"
