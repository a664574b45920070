"""Tests of the examples of docs/extending.md, run by tests/test_extending.py where the examples are in place."""
