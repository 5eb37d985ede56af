"""Histograms, quantiles, order statistics and groups."""
