"""The places of the tests: `tests/<room>/test_<module>.py` for each `<module>.py` of a room.

`bridge/saving/parameters.py` is tested by `tests/bridge/saving/test_parameters.py`, and a verb such
as `bridge/save.py` by `tests/bridge/test_save.py`. Where the tests of a module are several files,
each adds its aspect: `test_save_gradients.py`. Tests of a room as a whole are `test_<room>.py` in
it. What several files of a room use lies beside them. Other subjects have folders of their own:

- `benchmarks/`: what is measured, and never asserted: `make bench`.
- `device/`: files that run on an accelerator, where there is one.
- `distribution/`: the source distribution and the wheel, built and installed: `make dist`.
- `distributed/`: several processes that save and load one model.
- `docs/`: the pages, and the code in them.
- `eight_devices/`: what needs several devices; `verbs/` runs each file in a process that has them.
- `examples/`: every example, as it stands.
- `foreign/`: programs that write SavedModels without this project.
- `fuzzing/`: random programs and damaged files: `make fuzz`.
- `golden/`: files that earlier versions wrote.
- `matrix/`: other versions of TensorFlow and JAX: `make matrix`.
- `mutants/`: faults on purpose, which tests have to notice: `make mutants`.
- `operations/`: every public function of JAX in every target: `python -m tests.operations`.
- `policy/`: the rules of the house, on the sources and on these tests.
- `quick/`: every verb in every mode, once: the core of `make quick`.
- `reported/`: what a person found to be wrong, a small program of each kind.
- `selecting/`: the tests that are run: `make quick`, `make affected`, `make test`.
- `verbs/`: what all verbs share: options, gradients, platforms, hostile places, what they cost.
"""
