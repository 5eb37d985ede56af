"""Batches of an array in a file for a training loop of torch: `chunkflow.datasets.Blocks`, and what torch does itself.

Run ``python -m benchmarks.training [--gib 16] [--repeats 3] [--budget 2GB] [--device cpu]``. Each contender hands the
same batches, of rows of 16 KiB, to the same step, which adds them up on the device; the array is in the page cache.
torch's own are a slice copied to the device, and its DataLoader with four worker processes and pinned memory.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import Accelerator, gpu_parser, in_threads, machine, table, timed
from chunkflow.datasets import Blocks

WIDTH = 4096
BATCH = 4096
WORKERS = 4


class Slices(torch.utils.data.Dataset):
    """The batches as torch would have them."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x

    def __len__(self) -> int:
        return -(-len(self.x) // BATCH)

    def __getitem__(self, i: int) -> torch.Tensor:
        if i >= len(self):
            raise IndexError(i)
        return torch.from_numpy(np.array(self.x[i * BATCH : (i + 1) * BATCH]))


def main() -> None:
    parser = gpu_parser(__doc__, 16.0)
    options = parser.parse_args()
    accelerator, device = Accelerator(options.device), options.device
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        path, rows = Path(directory) / "x.bin", max(BATCH, int(options.gib * 2**30) // (4 * WIDTH))
        x = np.memmap(path, "f4", "w+", shape=(rows, WIDTH))
        parts = min(64, rows)
        in_threads(lambda i: np.copyto(x[i * rows // parts : (i + 1) * rows // parts], np.float32(i % 3)), parts)
        x = np.memmap(path, "f4", "r", shape=(rows, WIDTH))
        expected = sum(
            in_threads(lambda i: float(x[i * rows // parts : (i + 1) * rows // parts].sum(dtype="f8")), parts)
        )

        def train(batches: Iterable[torch.Tensor]) -> float:
            total = torch.zeros((), dtype=torch.float64, device=device)
            for batch in batches:
                total += batch.to(device, non_blocking=True).sum(dtype=torch.float64)
            return float(total)

        loader: dict[str, Any] = {"batch_size": None, "num_workers": WORKERS, "pin_memory": accelerator.is_gpu}
        runs = {
            "chunkflow": lambda: train(Blocks(x, chunks=(BATCH, -1), device=device, budget=options.budget)),
            "slices": lambda: train(Slices(x)),
            f"DataLoader, {WORKERS} workers": lambda: train(torch.utils.data.DataLoader(Slices(x), **loader)),
        }
        link = accelerator.link()
        seconds = timed(runs, options.repeats, lambda _, got: np.testing.assert_allclose(got, expected, rtol=1e-9))
        lines = [("link" if accelerator.is_gpu else "a copy in memory", "-", f"{link:.1f}", "1.00")]
        for name, times in seconds.items():
            rate = x.nbytes / statistics.median(times) / 1e9
            lines.append((name, f"{statistics.median(times):.3f}", f"{rate:.1f}", f"{rate / link:.2f}"))
        print(
            table(
                f"Batches of {BATCH * WIDTH * 4 >> 20} MiB of {x.nbytes / 1e9:.3g} GB",
                lines,
                ["", "seconds", "GB/s", "of it"],
            )
        )
        print(f"{machine()}, torch {torch.__version__}, {os.cpu_count()} processors")


if __name__ == "__main__":
    main()
