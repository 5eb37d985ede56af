"""The cases of ``python -m benchmarks``, one a file: its function ``cases`` yields what is run and beside whom.

A case measures its own limit in the same run: the link, the disk, the decoders, the device's arithmetic, or chunkflow's
own plain map. Peers that are not installed are left out and named.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.case import Bench, Case, Listing


@dataclass(frozen=True)
class Row:
    """A file of this folder: what it measures, what bounds it, its goal, and beside whom."""

    what: str
    bound: str
    goal: str
    peers: str
    standard: bool = False  # one of those that run if none is named
    gib: float = 16
    repeats: int = 3
    device: str | None = None  # the only one it is for
    staged: bool = False  # whether the times of stages are told, as of standard ones
    settings: Mapping[str, Any] = field(default_factory=dict)  # those that --set can change


def _on_cpu(what: str, bound: str, goal: str, peers: str, gib: float, repeats: int = 3, **settings: Any) -> Row:
    return Row(what, bound, goal, peers, gib=gib, repeats=repeats, device="cpu", settings=settings)


LINK, FASTER = "the link", "faster than dask"
ROWS: dict[str, Row] = {
    "sum": Row("page-cached memmap to sum", LINK, "0.93 of it", "a loop, dask, KvikIO", True),
    "reductions": Row("variance and max along each axis of a memmap", LINK, "0.90 of it", "-", True),
    "map": Row("RAM to RAM", "the link, both ways", "0.70 of it", "a loop, dask", True),
    "stencil": Row("7 points, RAM to RAM, three budgets", "a map", "0.95 of it; 0.90 if small", "-", True),
    "file": Row("RAM to a new .npy and zarr", "threads that write", "0.95 of them", "zarr-python", True),
    "cold": Row("file on the disk to sum", "direct reads", "0.95 of them", "a loop, dask, KvikIO", True),
    "zarr": Row(
        "zarr of five codecs to sum", "the link or decoding", "10 to 38 GB/s", "zarr-python, zarrs, dask, cubed", True
    ),
    "products": Row("products of float32 and float64 memmaps", "in core", "0.97, 0.95 of it", "cuBLASXt", True),
    "streams": Row("map, and sum by cf.chunks, by budget", "the link", "-", "a loop, dask in three sizes", gib=16),
    "matrices": Row("products of memmaps and of RAM, device memory", "in core", "-", "cuBLASXt, pinned or not"),
    "axes": Row("sum, mean, var, max along each axis", LINK, "-", "-"),
    "points": Row("stencils of 7 and 27 points", "a map", "-", "-"),
    "statistics": Row("five statistics of a memmap in one pass", "its sum", "-", "-"),
    "expression": Row("ten steps of an expression", "one step", "-", "-"),
    "copies": Row("large zarr of bytes to chunks the other way", "dask's copy, chunks kept", "-", "dask"),
    "transforms": Row("fftn of a complex cube, memmap to memmap", "-", "-", "a loop by hand"),
    "heat": Row("20 iterations of a stencil, steps per pass", "one step a pass", "-", "-"),
    "indexing": Row("lists, points, masks and tables of zarr", "NumPy, in memory", FASTER, "NumPy, dask", gib=0.25),
    "labelled": Row("means of what xarray opened of zarr", "xarray, in memory", FASTER, "xarray, dask", gib=0.5),
    "windows": Row(
        "moving statistics, gradients, boxes, running sums", f"NumPy; on a GPU {LINK}", FASTER, "NumPy, dask", gib=0.125
    ),
    "order": Row(
        "sorts, distinct values, groups, quantiles", f"NumPy; on a GPU {LINK}", FASTER, "NumPy, flox, dask", gib=0.125
    ),
    "operations": Row(
        *("every kind of operation, of data in memory", "the slowest of moving and computing", "0.6 of it"),
        *("NumPy, CuPy, dask",),
        gib=0.125,
        staged=True,
    ),
    "made": Row(
        *("numbers that are made on the device: integers, random ones, coordinates", "the library, in core"),
        *("0.6 of it", "NumPy, CuPy, dask"),
        gib=1,
    ),
    "gpus": Row(
        "map, product and sum by a worker a GPU", "the GPUs", "-", "one GPU", gib=2, settings={"gpus": 0, "side": 0}
    ),
    "training": Row("batches for torch", LINK, "-", "slices, DataLoader"),
    "growth": Row("costs by budget, size, blocks, chunks", "-", "-", "dask"),
    "storage": _on_cpu("maps of one and three arrays by storage", "-", FASTER, "NumPy, dask in four sizes", 0.5, 5),
    "overhead": _on_cpu("what a run and a block cost", "NumPy", "-", "dask", 0.004, 15),
    "block_sizes": _on_cpu("the same maps by size of a block", "the size chosen", "-", "-", 0.5, 5),
    "frameworks": _on_cpu("five operations on zarr, two budgets", "-", FASTER, "dask, cubed", 0.5),
    "passes": _on_cpu("two and three results of an energy", "-", FASTER, "dask, cubed, blosc2", 27 / 128),
    "quantiles": _on_cpu("three exact quantiles", "NumPy in memory", "-", "NumPy, dask", 27 / 128),
    "rechunk": _on_cpu("zarr from slabs to columns, two budgets", "-", FASTER, "dask, cubed", 27 / 128),
    "remote": _on_cpu("zarr behind a slow server to sum", "32 requests", "-", "dask, zarr", 0.25, latency=0.05),
    "cluster": _on_cpu("map, sum, stencil on worker processes", "-", FASTER, "dask", 0.5, workers=2, plane=512),
    "advice": Row(
        "faults that are planted, and whether advice names them",
        "-",
        "all; what-ifs within 25 %",
        "-",
        gib=0.125,
    ),
    "accuracy": _on_cpu("errors of float32 sums, means, variances", "exact arithmetic", "-", "NumPy", 1e8 / 2**28),
}
STANDARD = [name for name, row in ROWS.items() if row.standard]


def made(name: str, bench: Bench) -> Iterator[Case | Listing]:
    """The cases of a file, each made when its turn comes."""
    module = importlib.import_module(f"benchmarks.cases.{name}")
    return module.cases(bench)  # type: ignore[no-any-return]
