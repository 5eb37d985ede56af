"""Zarr arrays, versions 2 and 3, local and remote."""
