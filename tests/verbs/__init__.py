"""Tests of all verbs at once: their options, gradients, platforms, places, and what they cost."""
