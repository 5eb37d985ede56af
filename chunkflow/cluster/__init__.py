"""Cluster: one pass cut into partitions for many machines."""
