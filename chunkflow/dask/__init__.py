"""chunkflow on dask: tasks that stream large partitions, on one machine or many."""

from chunkflow.system.optional import missing

try:
    from chunkflow.dask.blocks import map_blocks, map_overlap, reduction
    from chunkflow.dask.profile import profile
    from chunkflow.dask.store import store
except ModuleNotFoundError as error:
    raise missing(error, "dask", "chunkflow.dask", "dask") from error

__all__ = ["map_blocks", "map_overlap", "profile", "reduction", "store"]
