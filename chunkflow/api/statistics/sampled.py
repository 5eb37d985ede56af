"""Where order statistics of all elements likely lie, told by a sample, so that one pass may find them all.

Elements between two sampled ones around each rank are gathered, and those below are counted: if the ranks are among the
gathered ones, these are sorted and the order statistics are exact. Else nothing is lost but the pass. R. W. Floyd and
R. L. Rivest, "Expected time bounds for selection", Communications of the ACM 18, 1975, select so in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from chunkflow.core.grid import Region, fit
from chunkflow.kernels.statistics.gathered import FEW
from chunkflow.kernels.statistics.radix_keys import key_dtype, to_keys
from chunkflow.stores import Source
from chunkflow.stores.protocol import leaves

Ranks = Callable[[int], np.ndarray]
"""The ranks that are wanted of so many numbers."""

LEAST, PARTS, MOST = 1 << 24, 1 << 8, 1 << 21
"""Elements of an array of which a sample is taken, how many there are to one of the sample, and the largest sample."""

STRIP = 1 << 13
"""Elements of the sample that lie together, so that they are read at once."""

DEVIATIONS = 4.0
"""Standard deviations of a share on either side of it: a rank is beyond them once in ten thousand times."""

NEAR = 1e-6
"""Share of the elements within which ranks have one interval."""


@dataclass(frozen=True)
class Intervals:
    """Keys between which order statistics likely lie, both ends with them, and about how many elements do."""

    lows: np.ndarray
    highs: np.ndarray
    number: float


def is_sampled(source: Source) -> bool:
    """Whether small regions anywhere in a source cost little: it is in memory, or of files without chunks."""
    specs = [source.spec, *(getattr(leaf, "spec", source.spec) for leaf in leaves([source]))]
    slow = any(spec.chunks is not None or spec.storage.remote or spec.storage.asking for spec in specs)
    return source.spec.size >= LEAST and not slow


def likely(
    source: Source, ranks: Ranks, most: float, in_order: Callable[[np.ndarray], np.ndarray] = np.sort
) -> Intervals | None:
    """Intervals of keys that likely hold the order statistics of some ranks; None if they hold more than `most` keys.

    Nor are there any for more than a few ranks, or a sample that is too small. `in_order` sorts keys, along one axis.

    Elements that lie together may be alike. So the deviation of a share is that of the strips' own shares.
    """
    spec = source.spec
    wanted = _places(ranks(spec.size), spec.size)
    number = min(MOST, spec.size // PARTS, int(most))  # it takes less than what is gathered
    least = sum(math.sqrt(place * (1 - place) / max(1, number)) for place in wanted)
    if len(wanted) > FEW or number < STRIP or 2 * DEVIATIONS * least * spec.size > most:
        return None
    strips = _strips(source, number)
    flat = in_order(strips.reshape(-1))
    some = flat.searchsorted(~flat.dtype.type(0)) if spec.dtype.kind == "f" else len(flat)  # NaN are behind
    numbers = round(spec.size * some / len(flat))
    ends = []
    for place in _places(ranks(max(1, numbers)), spec.size):
        value = flat[min(int(place * len(flat)), len(flat) - 1)]
        shares = _shares(strips <= value)
        # Ranks among numbers follow how many there are: their share deviates too.
        spread = math.sqrt(shares.var(ddof=1) / len(shares)) + 1 / len(flat)
        if numbers < spec.size:
            missing = _shares(strips == ~flat.dtype.type(0))
            spread += math.sqrt(missing.var(ddof=1) / len(missing))
        low, high = (place + way * DEVIATIONS * spread for way in (-1, 1))
        ends.append((low, high))
    return _intervals(flat, ends, spec.size, most)


def _shares(marks: np.ndarray) -> np.ndarray:
    """Share of each row's marks that are set: row by row is ten times as quick as along an axis."""
    found: np.ndarray = np.array([np.count_nonzero(row) for row in marks]) / marks.shape[1]
    return found


def _places(ranks: np.ndarray, size: int) -> list[float]:
    """The shares of elements below some ranks, of those that are close to each other one."""
    found: list[float] = []
    for place in sorted(ranks.reshape(-1).tolist()):
        if not found or place / size - found[-1] > NEAR:
            found.append(place / size)
    return found


def _intervals(flat: np.ndarray, ends: list[tuple[float, float]], size: int, most: float) -> Intervals | None:
    """Keys at shares of a sorted sample; intervals that meet are one."""
    joined: list[tuple[float, float]] = []
    for low, high in ends:
        if joined and low <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    least, greatest = flat.dtype.type(0), ~flat.dtype.type(0)
    lows = [flat[int(low * len(flat))] if low > 0 else least for low, _ in joined]
    highs = [flat[math.ceil(high * len(flat))] if high * len(flat) < len(flat) - 1 else greatest for _, high in joined]
    pairs = [[lows[0], highs[0]]]
    for low_key, high_key in zip(lows[1:], highs[1:], strict=True):
        if low_key <= pairs[-1][1]:
            pairs[-1][1] = max(high_key, pairs[-1][1])
        else:
            pairs.append([low_key, high_key])
    both = np.array(pairs, flat.dtype)
    held = flat.searchsorted(both[:, 1], "right") - flat.searchsorted(both[:, 0], "left")
    number = float(held.sum()) / len(flat) * size
    return Intervals(both[:, 0], both[:, 1], number) if number * 1.05 <= most else None


def _strips(source: Source, number: int) -> np.ndarray:
    """Keys of about so many elements, a row for each of the strips that are read. The same ones each time."""
    spec = source.spec
    sides = fit(spec.shape, (1,) * len(spec.shape), spec.order, min(STRIP, number))
    rows, rng = max(2, number // math.prod(sides)), np.random.default_rng(0)
    starts = [rng.integers(0, n - side + 1, rows).tolist() for n, side in zip(spec.shape, sides, strict=True)]
    found = np.empty((rows, *sides), spec.dtype)
    for strip, *start in zip(found, *starts, strict=True):
        region: Region = tuple([slice(at, at + side) for at, side in zip(start, sides, strict=True)])
        source.read(region, strip)
    keys = to_keys(found.reshape(rows, -1))
    return np.asarray(keys, key_dtype(spec.dtype))
