"""chunkflow on dask: tasks that stream large partitions, on one machine or many."""

from chunkflow.dask.blocks import map_blocks, map_overlap, reduction
from chunkflow.dask.profile import profile
from chunkflow.dask.store import store

__all__ = ["map_blocks", "map_overlap", "profile", "reduction", "store"]
