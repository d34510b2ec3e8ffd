"""What a person found to be wrong, that no other test had noticed: a small program of each kind.

Each is named by what it is, with the runtime in the name of its file and the year in the name of
its table, and is kept as it was found, whatever else covers it by now.
"""
