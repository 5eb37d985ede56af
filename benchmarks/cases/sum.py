"""A page-cached memmap to its sum; the bound is the link."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.case import Bench, Case, Goal, close_to
from benchmarks.data import in_threads
from benchmarks.peers.streams import file_sums


def cases(bench: Bench) -> Iterator[Case]:
    """A page-cached memmap to its sum."""
    x = bench.x
    runs, missing = file_sums(bench, bench.directory / "x.bin", x.shape, lambda: x)
    total = bench.once("total", lambda: float(sum(in_threads(lambda i: x[i].sum(dtype="f8"), len(x)))))
    limit = ("link", bench.link)
    what, check = f"page-cached memmap {x.shape}", close_to(total)
    yield Case("sum", what, x.nbytes / 1e9, runs, check, limit, Goal(0.93), missing=missing)
