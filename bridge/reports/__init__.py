"""What `inspect`, `diff` and `verify` found, as values and as text, pictures and pages."""
