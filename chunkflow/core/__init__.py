"""Arithmetic of regions, loop nests and bytes. It knows no store, no device and no operation, and touches no data."""
