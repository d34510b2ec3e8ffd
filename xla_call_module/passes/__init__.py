"""Passes: rewrites of the module of a call, and the pipeline that orders them.

The way of the data:

    CallModule ─ open_call ─▶ ParsedCall ─ run_on_module ─▶ ParsedCall ─ serialized ─▶ CallModule
              parses once                each pass in turn            serializes once

- `module_pass.py` has the values: an `UnparsedCall` becomes a call when its module is parsed, as
  that of an `Exported` does; a `ParsedCall` is a call with its parsed module; a `ModulePass` has a
  name, what it ensures, a function that finds what contradicts that, and the rewrite.
- `pipeline.py` has the one order of the passes, for a `Target`: `prepare` makes one call fit for
  its consumer, `prepare_chain` a function and its VJPs; `Prepared` has what is known of them then,
  so that nobody parses them again for it. `save`, `convert`, `retarget` of a file and
  of an `Exported`, and `jax-tf-bridge passes` all go through it.
- `platform_selection.py`, `linear_algebra.py`, `int8_products.py`, `cut_convolutions.py`,
  `constants.py`, `gspmd.py`, `older_forms.py` and `exported_form.py` have a pass each, or several,
  in the order of running.
- `asserting.py` has the pass that leaves of a call its shape assertions alone, which a file or a
  graph makes before the call.
- `residuals.py` makes of a forward and a backward pass the call and the VJP that they are of.
- `retargeting.py` is the last step: which version of StableHLO a release reads, and the error where
  there is none. `obstacles.py` tells which releases run a call as it stands.
- `remeshing.py` rewrites the module of an `Exported` for a mesh of other sizes.

To add a pass:

1. Write a function in a file of this folder that returns a `ModulePass`. `violation` returns why
   the pass runs, and an empty text after it has run; `rewrite` changes the module in place and
   returns `parsed.rewritten("the entry for CallModule.changes", ...)` with the fields that are
   others now. `may_apply` says of a call that is not parsed whether there may be work; most passes
   leave it out.
2. Put it into `passes_for` of `pipeline.py`, with the reason for its place, and into `requires` of
   those that come after it.
3. Let `_everything` of `tests/xla_call_module/passes/test_pipeline.py` have something for it to do.
   The tests there check that each pass ensures what it says, and undoes nothing of the earlier
   ones.
4. If the pass is for some releases of TensorFlow alone, add a `Feature` to `versions.py`, and put
   it into `lacks` of those releases. What no pass can give another form is refused for them by
   `needs_of` of `retargeting.py`.
"""
