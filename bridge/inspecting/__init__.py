"""The content of a SavedModel as values, and these as text and as pictures.

`report.py` makes the values that `inspect` returns, of those of `tensor_report.py`,
`order_report.py` and `graph_report.py`; `sharding.py` makes those of arrays on a mesh, and
`cost.py` those of XLA's analyses; `written_file.py` has what the verbs return that write a file.
`report_facts.py` has their facts as text, in the words of `wording.py`. `report_text.py` prints
these on a terminal, and `html.py` makes the page of `inspect --html`, with the pictures of
`pictures.py`, both as elements of `markup.py`, in which all text of a file is escaped.
`diff_weights.py` compares variables for `diff`.

To show something else of a file, add a field to a report in `report.py`, and a fact in
`report_facts.py`, which the terminal and the page both show; `--json` has it without more.
"""
