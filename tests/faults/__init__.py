"""Fault campaigns: lmtool is killed, interrupted, starved of disk and fed with damage, thousands of times.

`make test-faults` runs all of them, `python -m tests.faults --help` says how to run a part, and benchmarks/results.md
what they hold. One process imports everything once; each command then runs in a fork of it, in a copy of a small home.
"""
