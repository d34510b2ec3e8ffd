"""The program that runs and quantizes LiteRT models, in a process of its own.

A copy of this folder runs there: its modules import one another, numpy and the packages of LiteRT,
and nothing else. `worker_program.py` answers requests; `model_execution.py` runs a model, and
`model_quantization.py` quantizes one.
"""

from __future__ import annotations
