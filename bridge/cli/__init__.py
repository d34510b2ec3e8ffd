"""The command `jax-tf-bridge`.

`main.py` has the table of commands, and the short ones; a longer command has a file of its own.
What a command needs is imported when it runs, so that `inspect` and `--help` do without JAX. A
command declares its arguments, calls the public function of the same name, and prints what that
returns, as text (`terminal.py`) or as JSON. `export` does more: `export_job.py` finds the function
(`targets.py`), reads its parameters, and writes the SavedModel with its manifest.

The commands that convert to another format are those of `bridge.formats` (`convert_command.py`).

To add a command, write a function that declares its arguments and one that runs it and returns the
exit status, and list both in `_COMMANDS` of `main.py`. An option of `bridge.save` is declared in
`SAVE_ARGUMENTS` of `command_arguments.py`, and `export` has it.
"""
