"""The program that converts and runs modules, in a process of its own."""
