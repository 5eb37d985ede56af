"""``chunkflow stats`` reads an array once, and shows its extremes, mean, standard deviation, histogram and gaps."""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import warnings
from typing import Any

import numpy as np

import chunkflow as cf
from chunkflow.cli.common import ARRAY, Commands, add_decode, add_run, command, described, opened, run_options
from chunkflow.cli.histogram import Bars, bars, histogram
from chunkflow.engine.trace import Observer, observing
from chunkflow.stores.protocol import gaps_of

TEXT = """\
The array is read once, also for the histogram: its range is found and its bins are counted in the same pass. A bin is
as wide as a power of two, of integers 1 at least; a bar that is drawn joins several. NaN and infinities are counted,
and left out of all else. Of complex numbers extremes, deviation and histogram are those of the absolute value. Of times
(--decode cf) the first and the last, extremes, mean and NaT are shown. --json has finer bins, and null for what does
not exist or is too large for a double.

  chunkflow stats speed.zarr
  chunkflow stats run.h5:/fields/u --json"""

BARS = 20
"""Most bars that are drawn."""

OF_TIMES = {"first": "first", "last": "last", "min": "min", "max": "max", "mean": "mean", "nat": "NaT"}
"""Statistics of times, and what they are called."""

EIGHTHS = " ▏▎▍▌▋▊▉"
"""Parts of a block of a bar, in eighths."""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "stats", run, "read an array once: extremes, mean, deviation, histogram, NaN", TEXT)
    parser.add_argument("source", metavar="FILE", help=ARRAY)
    parser.add_argument("--json", action="store_true", help="print it for programs")
    add_decode(parser)
    add_run(parser)


def run(options: argparse.Namespace) -> int:
    """Read the array, and print what was found."""
    x = opened(options.source, options.decode)
    of_times = x.dtype.kind in "Mm"
    found = (statistics_of_times if of_times else statistics)(x, **run_options(options))
    shape = {"dtype": str(x.dtype), "shape": list(x.shape)}
    if options.json:
        print(json.dumps({"source": options.source, **shape, **found}, indent=1))
        return 0
    print(described(x, options.source))
    print("\n".join([f"{name:<9}{_text(found[key])}" for key, name in OF_TIMES.items()] if of_times else shown(found)))
    return 0


class GapCounter(Observer):
    """Counts the chunks that a run found missing."""

    wants_spans = False

    def __init__(self) -> None:
        self._gaps: list[Any] = []

    def started(self, plan: Any, run: Any = None) -> None:
        self._gaps += [gaps for _, gaps in gaps_of(run.sources)] if run is not None else []

    def finished(self, error: BaseException | None, peak: int) -> None:
        return

    @property
    def missing(self) -> int:
        """Missing chunks so far."""
        return sum(gaps.number for gaps in self._gaps)


def statistics(x: Any, **options: Any) -> dict[str, Any]:
    """Statistics of a lazy array from one pass: Python's numbers, None where there are none."""
    kind = x.dtype.kind
    counter, done = GapCounter(), dict[str, Any]()
    if x.size:
        with observing(counter):
            done = cf.compute(_of_floats(x) if kind in "fc" else _of_integers(x), progress=True, **options)
    counted = bars(done.pop("histogram")) if done else Bars(np.zeros(1), np.zeros(0, np.int64))
    found = {"elements": x.size, "nan": int(done.pop("nan", 0)), "infinite": int(done.pop("infinite", 0))}
    finite = x.size - found["nan"] - found["infinite"]
    found["finite"] = finite
    for name in ("min", "max", "mean", "std"):
        found[name] = _number(done[name]) if finite else None
    found["of"] = "abs" if kind == "c" else "value"
    found["missing_chunks"] = counter.missing
    found["histogram"] = {"edges": counted.edges.tolist(), "counts": counted.counts.tolist()}
    return found


def statistics_of_times(x: Any, **options: Any) -> dict[str, Any]:
    """Statistics of times from one pass, as texts; None where there are none."""
    found: dict[str, Any] = {"elements": x.size, "nat": 0, **dict.fromkeys(list(OF_TIMES)[:-1])}
    if x.size:
        ends = {"first": x[(0,) * x.ndim], "last": x[(-1,) * x.ndim]}
        asked = {**ends, "min": cf.nanmin(x), "max": cf.nanmax(x), "mean": cf.nanmean(x), "nat": np.isnat(x).sum()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of times that are all NaT
            done = cf.compute(asked, progress=True, **options)
        found["nat"] = int(done.pop("nat"))
        found |= {name: None if np.isnat(value) else str(value) for name, value in done.items()}
    return found


def _of_floats(x: Any) -> dict[str, Any]:
    """Lazy statistics of finite elements. Means are those of the numbers, all else of absolute values, if complex."""
    is_finite = np.isfinite(x)
    size = abs(x) if x.dtype.kind == "c" else x
    finite, wide = np.where(is_finite, size, np.nan), "c16" if x.dtype.kind == "c" else "f8"
    return {
        "nan": np.isnan(x).sum(),
        "infinite": (~(is_finite | np.isnan(x))).sum(),
        "min": cf.nanmin(finite),
        "max": cf.nanmax(finite),
        "mean": cf.nanmean(np.where(is_finite, x, np.nan), dtype=wide),
        "std": cf.nanstd(finite, dtype="f8"),
        "histogram": histogram(size),
    }


def _of_integers(x: Any) -> dict[str, Any]:
    return {
        "min": cf.min(x),
        "max": cf.max(x),
        "mean": cf.mean(x, dtype="f8"),
        "std": cf.std(x, dtype="f8"),
        "histogram": histogram(x.astype("u1") if x.dtype.kind == "b" else x),
    }


def _number(value: Any) -> Any:
    """A number as JSON has it."""
    found = value.item()
    if isinstance(found, complex):
        return [found.real, found.imag]
    return None if isinstance(found, float) and not math.isfinite(found) else found


def shown(found: dict[str, Any]) -> list[str]:
    """Lines for a terminal."""
    lines = []
    for name in ("min", "max", "mean", "std"):
        label = f"|x| {name}" if found["of"] == "abs" and name != "mean" else name
        lines.append(f"{label:<9}{_text(found[name])}")
    for name, label in (("nan", "NaN"), ("infinite", "infinite")):
        part = found[name] / max(found["elements"], 1)
        share = "" if not found[name] else f" ({part:.2%})" if part >= 0.00005 else " (less than 0.01%)"
        lines.append(f"{label:<9}{found[name]}{share}")
    if found["missing_chunks"]:
        lines.append(f"missing  {found['missing_chunks']} chunks, which read as the fill value")
    edges, counts = (np.asarray(found["histogram"][name]) for name in ("edges", "counts"))
    return [*lines, "", *drawn(Bars(edges, counts).fewer(BARS))] if len(counts) else lines


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"{complex(*value):.7g}"
    return "none" if value is None else f"{value:.7g}" if isinstance(value, float) else str(value)


def _draws_blocks() -> bool:
    """Whether the terminal has the characters of bars."""
    try:
        return bool(EIGHTHS.encode(sys.stdout.encoding or "ascii"))
    except UnicodeEncodeError:
        return False


def drawn(found: Bars) -> list[str]:
    """A histogram in lines: the lower edge of each bar, the bar and its count."""
    most = int(found.counts.max())
    digits = max(3, math.ceil(math.log10(max(abs(found.edges).max() / (found.edges[1] - found.edges[0]), 1))) + 2)
    labels = [f"{edge:.{min(digits, 17)}g}" for edge in found.edges[:-1]]
    left, right = max(map(len, labels)), len(str(most))
    room = max(10, min(shutil.get_terminal_size().columns, 100) - left - right - 5)
    block, parts = ("█", EIGHTHS) if _draws_blocks() else ("#", "########")
    lines = []
    for label, count in zip(labels, found.counts, strict=True):
        whole, part = divmod(math.ceil(8 * room * int(count) / most), 8)
        lines.append(f"{label:>{left}} |{block * whole + parts[part] * (part > 0):<{room}} {count:>{right}}")
    return lines
