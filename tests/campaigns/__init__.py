"""Campaigns: many cases that are drawn by seed, run in forks side by side, judged, counted and repeatable by number."""
