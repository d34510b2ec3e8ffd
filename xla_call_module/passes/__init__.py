"""Passes from one call to another one, a file each."""
