"""Tests of the examples of CONTRIBUTING.md, run by tests/test_contributing.py where the examples are in place."""
