"""The analysis that finds out from a module's operations whether each row is computed for itself.

It is an abstract interpretation. Each value of a module is a `BatchValue`: its shape, the place of
the rows of the batch in it, the integers that are known of it, or the operation that mixed rows.

    CallModule ── analysis.py      walks functions, regions and loops (loop_rules.py)
                    │ row_operation.py: an operation whose operands are abstract values
                    ▼
                  rule_table.py    the rule of each operation: abstract operands -> results

An operation that has no rule mixes rows, unless all of its operands are the same for every batch.
So a missing rule refuses a function, and never lets a wrong one pass.

To add an operation: write `_name(op: RowOperation) -> BatchValue` in the file of its family, put it
into the `RULES` there, and add a function that uses it to
`tests/bridge/batching/rowwise/row_functions.py`: all of them are tried with other rows and other
batch sizes. `op.mixed("does this")` is the error of an operation that mixes rows; `op.data` refuses
operands that have the size of the batch as a number, and `op.plain` those that have rows.
"""
