"""Sums, extremes and the like of a block, and how partial results are put together."""
