"""One pass cut for many machines, as tasks of dask."""
