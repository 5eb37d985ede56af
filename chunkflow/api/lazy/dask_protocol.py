"""dask's collection protocol for lazy arrays. Code that imports dask is in `chunkflow.cluster`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chunkflow.cluster.partition import PARTITION
from chunkflow.errors import ChunkflowError, UnsupportedError
from chunkflow.graph.nodes import Lazy
from chunkflow.system.optional import missing


class OfBlocks:
    """A dask collection that is what its `to_dask` makes of it."""

    __slots__ = ()

    to_dask: Callable[..., Any]

    def to_dask_array(self) -> Any:
        """As `to_dask`: dask's own functions ask for it by this name."""
        return self.to_dask()

    def persist(self, **options: Any) -> Any:
        """The array's parts on dask's workers, as a `dask.array.Array`; options are those of ``dask.persist``.

        Without a cluster they stay in this process's memory: where they are larger, ``cf.open(x.to_zarr(path))`` is an
        expression of what is stored. ``cf.open`` makes one of the parts too.

        Examples
        --------
        >>> import numpy as np, chunkflow as cf
        >>> kept = (cf.open(np.arange(6.0)) * 2).persist()  # without a cluster in this process
        >>> float(kept.sum().compute())
        30.0
        """
        return self.to_dask().persist(**options)

    def visualize(self, *args: Any, **options: Any) -> Any:
        """A picture of the array's tasks, as ``dask.visualize`` draws it with graphviz or ipycytoscape.

        Raises
        ------
        UnsupportedError
            Neither is there.
        """
        try:
            return self.to_dask().visualize(*args, **options)
        except RuntimeError as error:
            if isinstance(error, ChunkflowError):
                raise
            raise UnsupportedError(
                f"dask cannot draw the tasks: {error}. print(chunkflow.explain(x)) shows how x is computed here"
            ) from error

    def __dask_graph__(self) -> Any:
        # An error, where no graph can be made: without a graph dask would return the array as it is.
        return self.to_dask().__dask_graph__()

    def __dask_keys__(self) -> Any:
        return self.to_dask().__dask_keys__()

    def __dask_layers__(self) -> Any:
        return self.to_dask().__dask_layers__()

    def __dask_tokenize__(self) -> Any:
        return self.to_dask().__dask_tokenize__()

    def __dask_postcompute__(self) -> Any:
        return _task_graph().computed, ()

    def __dask_postpersist__(self) -> Any:
        return self.to_dask().__dask_postpersist__()

    @property
    def __dask_optimize__(self) -> Any:
        return _task_graph().optimize

    @property
    def __dask_scheduler__(self) -> Any:
        return _task_graph().scheduler


class Collection(OfBlocks, Lazy):
    """A dask collection. ``dask.compute`` and its like make tasks of `PARTITION` bytes each."""

    __slots__ = ()

    def to_dask(self, partition: str | int = PARTITION, *, budget: Any = None, device: Any = None) -> Any:
        """The array as a `dask.array.Array`, each of whose blocks a task streams through its worker's device.

        Parameters
        ----------
        partition : str or int
            Bytes that a task reads, as ``"64GB"``: its share of the arrays, not a block on the device. A store's chunks
            are not cut.
        budget : int, str or float, optional
            Device memory of each worker, as for `chunkflow.map`. Tasks of one process share it, and take turns.
            Where none is given, half of the worker's memory limit on the CPU.
        device : str or int, optional
            As for `chunkflow.map`, on the worker.

        Returns
        -------
        dask.array.Array
            Its blocks are the partitions. What is reduced is combined in a tree, whose shape depends on the partitions
            alone: with a budget in bytes, results are the same to the bit on any number of workers of a kind.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            `partition` is no number of bytes.
        UnsupportedError
            An operation that makes several passes of its own, or an intermediate result too large to hand on: store
            it first.

        Notes
        -----
        Arrays that ``dask.compute`` gets together, and that read the same, are computed from one read.

        Tasks of one process take turns. Where a cluster's workers declare a resource ``"GPU"`` each task asks for one,
        unless it is for the CPU or ``dask.annotate`` names resources. dask forgets that when it fuses an array's tasks:
        ``dask.config.set({"optimization.fuse.active": False})``, or `chunkflow.dask.store`, keeps it.

        Examples
        --------
        >>> import numpy as np, chunkflow as cf
        >>> d = (cf.open(np.arange(1000.0).reshape(10, 100)) + 1).to_dask(partition="2kB", device="cpu")
        >>> d.chunks
        ((2, 2, 2, 2, 2), (100,))
        >>> float(d.sum().compute(scheduler="sync"))
        500500.0
        """
        tasks = _task_graph()
        return tasks.as_dask(self._node, tasks.Settings(partition, budget, device))

    def __dask_keys__(self) -> Any:
        tasks = _task_graph()
        return tasks.keys_of(self._node, tasks.Settings())

    def __dask_layers__(self) -> tuple[str, ...]:
        tasks = _task_graph()
        return (tasks.name_of(self._node, tasks.Settings()),)

    def __dask_tokenize__(self) -> Any:
        return ("chunkflow", self._node.token)

    def __dask_postpersist__(self) -> Any:
        tasks, node = _task_graph(), self._node
        settings = tasks.Settings()
        return tasks.persisted, (tasks.name_of(node, settings), tasks.chunks_of(node, settings), node.spec.dtype)


def _task_graph() -> Any:
    try:
        from chunkflow.cluster import task_graph  # which imports dask
    except ModuleNotFoundError as error:
        raise missing(error, "dask", "to_dask()", "dask") from error

    return task_graph
