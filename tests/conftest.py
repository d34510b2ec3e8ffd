"""What holds for every test: quiet frameworks, on the CPU.

Both variables are read when TensorFlow and JAX are imported, so they are set here, before any test
module is, and subprocesses inherit them. One that is already set stays: with
`CUDA_VISIBLE_DEVICES=0` the same tests run on a GPU.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
