"""The pages of the documentation run: every block of code on them, and what it prints.

`blocks.py` reads a page, `running.py` runs it, and `test_pages.py` does so for each one. All blocks
of a page run in one folder, one after another. An HTML comment before a block, which no reader of
the page sees, says what the fence cannot:

    <!-- continues -->               it runs in the names of the Python block before it
    <!-- output -->                  the text is what the block before it prints; `...` is anything
    <!-- raises StructureError -->   it ends in this error, whose message the next output shows
    <!-- exit 1 -->                  the last command of the block ends with this status
    <!-- file network.py -->         the code is also written to this file of the folder
    <!-- not run: it needs a GPU --> it is shown only

and `<!-- devices 8 -->` anywhere: the page runs in a process of its own, with so many devices;
`<!-- needs torchax -->`: it runs so where this module is installed.
"""
