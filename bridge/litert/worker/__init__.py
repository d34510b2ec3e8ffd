"""The program that converts modules to LiteRT, and runs models, in a process of its own.

A copy of this folder runs there: its modules import one another, numpy and the packages of LiteRT,
and nothing else. `worker_program.py` answers requests. `module_conversion.py` converts modules, and
corrects before and after it what litert-converter, or the runtime, makes wrong
(`conversion_corrections.py`, `dynamic_sizes.py`, `loop_outlining.py`, `shared_buffers.py`,
`tensor_copies.py`); `model_execution.py` runs a model, and `model_quantization.py` quantizes one.

To add a correction: a function of the module that the converter is given, called in
`module_conversion.py`, whose docstring says what would come out wrong without it.
"""

from __future__ import annotations
