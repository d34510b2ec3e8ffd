"""Whether each row of a batch is computed for itself, decided from the operations of a module.

An abstract interpretation: of every value it is known where the rows of the batch are in it, or
which operation mixed them (`value.py`). Each operation has a rule (`table.py`), the regions of
loops and branches and the functions that are called are gone through (`analysis.py`), and what no
rule knows mixes rows.
"""
