"""Datasets of HDF5 files."""
