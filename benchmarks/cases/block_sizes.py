"""chunkflow's rate by the size of a block, to set the default machine's figures by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.case import OURS, Bench, Case
from benchmarks.cases.storage import InFiles, InMemory, block_shape, speed
from benchmarks.data import work

KIB = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536)


def cases(bench: Bench) -> Iterator[Case]:
    """Files and memory, one array and three."""
    for kind in (InFiles, InMemory):
        for fn in (work, speed):
            data = kind(bench.directory, round(bench.gib * 512), fn)
            data.poison()
            runs: dict[str, Callable[[], Any]] = {OURS: data.chunkflow}  # with blocks as it chooses
            runs |= {f"{kib} KiB": lambda kib=kib, data=data: data.chunkflow(block_shape(kib)) for kib in KIB}
            name = f"block sizes, {data.kind}, `{fn.__name__}`"
            what = "by bytes of a block of one array; bytes read and written"
            yield Case(name, what, data.nbytes / 1e9, runs, data.check, (OURS, None))
