"""Arrays of other libraries: whatever can be sliced, dask's and xarray's."""
