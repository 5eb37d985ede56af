"""Histograms, quantiles, distinct values and groups of a block."""
