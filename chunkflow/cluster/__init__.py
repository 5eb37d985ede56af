"""One pass cut for many machines, as tasks of dask. It knows no user's call, and runs each task by the engine."""
