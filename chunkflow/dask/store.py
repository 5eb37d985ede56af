"""Stores the results of a cluster: each task writes its own partition, and the output appears when all are done."""

from __future__ import annotations

import inspect
import os
import sys
from typing import Any

import dask
import dask.local
import dask.multiprocessing
import dask.threaded
import numpy as np
from dask.delayed import Delayed

from chunkflow.api.lazy.compute import places_by_node
from chunkflow.cluster.partition import PARTITION, pass_of
from chunkflow.cluster.resources import asking
from chunkflow.cluster.task_graph import Builder, Settings
from chunkflow.cluster.tasks import Opened
from chunkflow.core.grid import Shape
from chunkflow.errors import ArgumentTypeError
from chunkflow.graph.nodes import Node
from chunkflow.graph.outputs import check_clear, places_of
from chunkflow.stores import Sink, open_target, spec_of
from chunkflow.stores.commit import commit_all
from chunkflow.stores.file.memmap import mapped_file
from chunkflow.stores.views.shared import Mapped


def store(
    arrays: Any,
    outs: Any,
    *,
    partition: str | int = PARTITION,
    chunks: tuple[int, ...] | None = None,
    budget: Any = None,
    device: Any = None,
    overwrite: bool = False,
    sync: bool | None = None,
    **options: Any,
) -> Any:
    """Compute lazy arrays into stores by dask's workers, which all must reach the stores by the same names.

    Each task streams a partition from its sources to the output, in whole chunks of it, so nothing but partial results
    of what is reduced passes between tasks. The output has its name when all of them are done; if one fails, nothing
    appears. A task that is run again, because its worker is gone, writes the same once more.

    Parameters
    ----------
    arrays : Array or sequence of Array
        What is computed; see `chunkflow.open`.
    outs : str, path, zarr.Array, numpy.memmap, or sequence of these
        Where each goes: the path of a zarr array or ``.npy`` file to create, or an array that is there.
    partition : str or int
        Bytes that a task reads, as ``"64GB"``.
    chunks : tuple of int, optional
        Of a zarr array that is created.
    budget : int, str or float, optional
        Device memory of each worker, as for `chunkflow.map`. Tasks of one process share it, and take turns.
        Where none is given, half of the worker's memory limit on the CPU.
    device : str or int, optional
        As for `chunkflow.map`, on the worker.
    overwrite : bool
        Whether a path that exists may be replaced.
    sync : bool, optional
        Whether what is new is on the client's disk at the end, as for `chunkflow.map`.
    **options
        For ``dask.compute``: a scheduler, say.

    Returns
    -------
    array or tuple of arrays
        The outputs, opened where they were paths.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An unknown option; another number of outputs than of arrays; what is no expression; an output that other
        processes cannot open, or that overlaps a source.
    OutputExistsError
        As for `chunkflow.map`.
    UnsupportedError
        As for `chunkflow.Array.to_dask`.
    Exception
        What went wrong in a task, with the region of its partition, and of the block, as notes.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> from chunkflow.dask import store
    >>> x = cf.open(np.arange(1000.0).reshape(10, 100))
    >>> store(x + 1, "y.npy", partition="2kB", device="cpu", scheduler="sync").sum()
    np.float64(500500.0)
    """
    _check_options(options)
    wanted = places_by_node(arrays, outs)
    check_clear(places_of(wanted, overwrite=overwrite).values(), list(wanted))
    builder = Builder(Settings(partition, budget, device))
    sinks: list[Sink] = []
    try:
        finished = []
        with asking(device):
            for node, place in wanted.items():
                sink, opened = _opened(node, place, chunks, overwrite)
                sinks.append(sink)
                finished.append(builder.stored(node, opened))
            graph = builder.graph()
        dask.compute(*(Delayed(key, graph, layer=key[0]) for key in finished), **options)
        results = commit_all(sinks, sync=sync)
    except BaseException:
        for sink in sinks:
            sink.abort()
        raise
    return results if isinstance(arrays, list | tuple) else results[0]


def _check_options(options: dict[str, Any]) -> None:
    """Refuse what is no option of ``dask.compute`` or of a scheduler: they ignore what they do not know.

    Raises
    ------
    ArgumentTypeError
        It names the options, and those that there are.
    """
    takers: list[Any] = [dask.compute, dask.threaded.get, dask.multiprocessing.get, dask.local.get_async]
    if "distributed" in sys.modules:
        takers.append(sys.modules["distributed"].Client.get)
    parameters = [p for taker in takers for p in inspect.signature(taker).parameters.values()]
    known = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    known = known - {"self", "dsk", "keys", "result", "submit"} | {"scheduler", "pool", "num_workers", "get"}
    if unknown := sorted(options.keys() - known):
        own = [name for name, p in inspect.signature(store).parameters.items() if p.kind is p.KEYWORD_ONLY]
        raise ArgumentTypeError(
            f"unknown arguments {', '.join(unknown)}: store takes {', '.join(own)}, and for dask.compute "
            f"{', '.join(sorted(known))}"
        )


def _opened(node: Node, place: Any, chunks: Shape | None, overwrite: bool) -> tuple[Sink, Opened]:
    """The sink of a node, and what workers need to open it."""
    target = open_target(place, overwrite=overwrite)
    if chunks is None:
        specs = [spec_of(source) for source in pass_of(node)[0].sources]
        chunks = next((spec.chunks for spec in specs if spec.chunks and spec.shape == node.shape), None)
    spec = target.describe(node.shape, node.spec.dtype, chunks)
    if isinstance(place, np.ndarray) and (found := mapped_file(place)) is not None:
        return target.open(spec), Opened(Mapped(*found, place.shape, place.strides, place.dtype), spec)
    if not isinstance(place, str | os.PathLike):
        if isinstance(place, np.ndarray) or not hasattr(place, "store"):
            raise ArgumentTypeError(
                f"the output is a {type(place).__name__}, which other processes cannot write to: give the path of a "
                ".zarr or .npy, or a zarr.Array, or an np.memmap of mode 'r+', in a place that all workers reach"
            )
        return target.open(spec), Opened(place, spec)
    sink = target.open(spec)
    if not hasattr(sink, "shared"):
        sink.abort()
        raise ArgumentTypeError(
            f"the output {target.name} is created by one process alone: give a local path that ends in .zarr or .npy, "
            "or a zarr.Array, made before, in a store that all workers reach"
        )
    return sink, Opened(sink.shared, spec)
