"""Batches of an array in a file for a training loop of torch: `chunkflow.datasets.Blocks`, and what torch does itself.

Each contender hands the same batches, of rows of 16 KiB, to the same step, which adds them up on the device; the array
is in the page cache. torch's own are a slice copied to the device, and its DataLoader with four worker processes and
pinned memory.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from benchmarks.case import OURS, Bench, Case, MissingError, close_to
from benchmarks.data import in_threads, mapped
from benchmarks.probe import installed

WIDTH = 4096
BATCH = 4096
WORKERS = 4


class Slices:
    """The batches as torch would have them: its DataLoader takes whatever has a length and items."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x

    def __len__(self) -> int:
        return -(-len(self.x) // BATCH)

    def __getitem__(self, i: int) -> Any:
        if i >= len(self):
            raise IndexError(i)
        return importlib.import_module("torch").from_numpy(np.array(self.x[i * BATCH : (i + 1) * BATCH]))


def cases(bench: Bench) -> Iterator[Case]:
    """The three in turn, beside the link."""
    if not installed("torch")[0]:
        raise MissingError("torch")
    torch, datasets = importlib.import_module("torch"), importlib.import_module("chunkflow.datasets")
    path, rows = bench.directory / "batches.bin", max(BATCH, int(bench.gib * 2**30) // (4 * WIDTH))
    parts = min(64, rows)
    places = [slice(i * rows // parts, (i + 1) * rows // parts) for i in range(parts)]
    x = mapped(path, "f4", (rows, WIDTH))
    in_threads(lambda i: np.copyto(x[places[i]], np.float32(i % 3)), parts)
    x = np.memmap(path, "f4", "r", shape=(rows, WIDTH))
    expected = sum(in_threads(lambda i: float(x[places[i]].sum(dtype="f8")), parts))

    def train(batches: Iterable[Any]) -> float:
        total = torch.zeros((), dtype=torch.float64, device=bench.device)
        for batch in batches:
            total += batch.to(bench.device, non_blocking=True).sum(dtype=torch.float64)
        return float(total)

    loader: dict[str, Any] = {"batch_size": None, "num_workers": WORKERS, "pin_memory": bench.is_gpu}
    blocks: dict[str, Any] = {"chunks": (BATCH, -1), "budget": bench.budget, **bench.options}
    runs = {
        OURS: lambda: train(datasets.Blocks(x, **blocks)),
        "slices": lambda: train(Slices(x)),
        f"DataLoader, {WORKERS} workers": lambda: train(torch.utils.data.DataLoader(Slices(x), **loader)),
    }
    what, limit = f"batches of {BATCH * WIDTH * 4 >> 20} MiB", ("the link", bench.link)
    yield Case("training", what, x.nbytes / 1e9, runs, close_to(expected, 1e-9), limit)
