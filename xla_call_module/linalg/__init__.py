"""Factorizations of linear algebra in StableHLO that runs on every platform."""
