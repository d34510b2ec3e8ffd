"""Tests of `bridge.core_ops`, by the targets that have its rules."""
