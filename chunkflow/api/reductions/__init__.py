"""Sums, means, extremes."""
