"""Reports of `inspect` and `diff`, as values and as text, pictures and pages."""
