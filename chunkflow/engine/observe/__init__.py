"""Observers of runs: progress, profiles, and measured against predicted times."""
