"""Questions about a module: its custom calls, operations, branches, devices, dependences."""
