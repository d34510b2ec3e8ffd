"""Tests of lifted functions."""
