"""Quantiles: the order statistics that they need, and a fold that finds these block by block.

The fold is a radix selection: it selects by digits of the values' keys, the highest first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from chunkflow.core.grid import Grid, Region, Shape
from chunkflow.core.nest import LoopNest
from chunkflow.kernels.protocol import Fold, is_trial
from chunkflow.kernels.statistics.counting import counted
from chunkflow.kernels.statistics.radix_keys import to_keys
from chunkflow.kernels.statistics.sorting import in_order
from chunkflow.kernels.subnest import on_host

Value = tuple[Any, ...]

PLOTTING = {
    "interpolated_inverted_cdf": (0, 1),
    "hazen": (0.5, 0.5),
    "weibull": (0, 0),
    "median_unbiased": (1 / 3.0, 1 / 3.0),
    "normal_unbiased": (3 / 8.0, 3 / 8.0),
}
"""Alpha and beta of the methods that differ in them alone (Hyndman and Fan, 1996, p. 363)."""

STRIP = 1 << 20
"""Elements that are counted at a time: many more than bins, while their keys take little memory."""

METHODS = (
    *("inverted_cdf", "averaged_inverted_cdf", "closest_observation", *PLOTTING),
    *("linear", "lower", "higher", "midpoint", "nearest"),
)


# -- From order statistics to quantiles ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Rule:
    """Quantiles of `n` numbers in terms of order statistics.

    Attributes
    ----------
    n : int or numpy.ndarray
        Number of elements; of each line, where lines have different numbers.
    below, above : numpy.ndarray, numpy.ndarray or None
        Ranks of the one or two order statistics of each quantile; of lines along further axes.
    weight : numpy.ndarray, float or None
        Weight of `above`; None for their mean, or if there is only `below`.
    dtype : numpy.dtype
        Dtype of the result.
    nans : bool
        Whether there may be NaN. A single one makes the result NaN.
    mean : bool
        Whether the arithmetic mean is taken, as NumPy's median does.
    weak : bool
        Whether the weight, which is an array, does not widen the result.
    """

    n: Any
    below: np.ndarray
    above: np.ndarray | None
    weight: Any
    dtype: np.dtype
    nans: bool
    mean: bool = False
    weak: bool = False

    def ranks(self) -> np.ndarray:
        """The distinct ranks of all needed order statistics, sorted."""
        above = [] if self.above is None else [self.above]
        return np.unique(np.concatenate([self.below, *above, [self.n - 1] if self.nans else []]).astype(np.intp))

    def all_ranks(self) -> np.ndarray:
        """The ranks of `below`, then those of `above`, along the first axis."""
        return self.below if self.above is None else np.concatenate((self.below, self.above))

    def result(self, take: Callable[[np.ndarray], Any]) -> Any:
        """The quantiles, along a first axis; `take` gives order statistics along such an axis.

        Interpolated as NumPy does it, from the nearer side, so that the result is NumPy's to the bit.
        """
        low = take(self.below)
        high = low if self.above is None else take(self.above)
        with np.errstate(all="ignore"):
            if self.mean:
                found = (low if self.above is None else np.concatenate((low, high))).mean(axis=0, keepdims=True)
                if self.by_line:  # the mean of a number and itself may overflow
                    found = np.where(np.asarray(self.n % 2 == 1, like=low), low, found)
            elif self.weight is None:
                found = low
            else:
                found = self._between(low, high)
        if self.nans:
            last = take(np.array([self.n - 1]))
            found = np.where(np.isnan(last), last.astype(found.dtype), found)
        if self.by_line:
            found = np.where(np.asarray(self.n == 0, like=low), found.dtype.type(np.nan), found)
        return found.astype(self.dtype, copy=False)

    @property
    def by_line(self) -> bool:
        """Whether lines have different numbers of elements."""
        return isinstance(self.n, np.ndarray)

    def _between(self, low: Any, high: Any) -> Any:
        step, t = high - low, self.weight
        if isinstance(t, float):
            return high - step * (1 - t) if t >= 0.5 else low + step * t
        t = t if t.ndim > 1 else t.reshape(-1, *(1,) * (low.ndim - 1))
        rest, near = 1 - t, t >= 0.5
        if self.weak and step.dtype.kind == "f":  # as a number of Python's, it is rounded where it is multiplied
            t, rest = t.astype(step.dtype), rest.astype(step.dtype)
        t, rest, near = (np.asarray(a, like=low) for a in (t, rest, near))
        return np.where(near, high - step * rest, low + step * t)


def rule(n: int, q: np.ndarray, method: str, *, weak: bool, dtype: np.dtype, nans: bool) -> Rule:
    """Quantiles `q` (of one dimension) of `n` numbers by one of `METHODS`.

    The nine methods of R. J. Hyndman and Y. Fan, "Sample quantiles in statistical packages", The American
    Statistician 50(4), 361-365, 1996, and NumPy's four others, with NumPy's order of operations. `weak` says that `q`
    was a number of Python's, which does not widen the result.
    """
    return _rule(n, n, n - 1, q, method, weak=weak, dtype=dtype, nans=nans)


def rule_of_lines(number: np.ndarray, q: np.ndarray, method: str, *, weak: bool, dtype: np.dtype) -> Rule:
    """The same of lines that have so many numbers each, before the others; NaN where there is none."""
    n = np.maximum(number, 1)[None]
    q = q.reshape(-1, *(1,) * number.ndim)
    kind = q.dtype if q.dtype.kind == "f" else n.dtype  # NumPy's number of elements does not widen it
    found = _rule(n, n.astype(kind), (n - 1).astype(kind), q, method, weak=False, dtype=dtype, nans=False)
    return replace(found, n=number, weak=weak)


def _rule(n: Any, many: Any, last: Any, q: np.ndarray, method: str, *, weak: bool, dtype: np.dtype, nans: bool) -> Rule:
    """The rule, given `n`, and `n` and ``n - 1`` as numbers to multiply with."""
    if method == "inverted_cdf":
        return Rule(n, _up(many * q - 1, n, odd=False), None, None, dtype, nans)
    if method == "closest_observation":
        return Rule(n, _up(many * q - 1 - 0.5, n, odd=True), None, None, dtype, nans)
    if method in PLOTTING:
        alpha, beta = PLOTTING[method]
        place = many * q + (alpha + q * (1 - alpha - beta)) - 1
    elif method == "averaged_inverted_cdf":
        place = many * q - 1
    else:
        place = last * q
    whole: dict[str, Callable[[Any], Any]] = {"lower": np.floor, "higher": np.ceil, "nearest": np.around}
    one = whole.get(method)
    if one is not None or (method == "linear" and place.dtype.kind in "iu"):
        return Rule(n, (place if one is None else one(place)).astype(np.intp), None, None, dtype, nans)
    if method == "midpoint":
        place = 0.5 * (np.floor(place) + np.ceil(place))
    low = np.floor(place)
    high = low + 1
    # Outside, NumPy counts the weight from the element that it takes instead: index -1 (the last) or 0. This decides
    # the results for infinities and signed zeros.
    for outside, instead in ((place >= last, -1), (place < 0, 0)):
        low[outside] = high[outside] = instead
    weight = place - low
    if method == "averaged_inverted_cdf":
        weight = np.where(weight == 0, 0.5, 1.0)
    elif method == "midpoint":
        weight = np.where(place % 1 == 0, 0.0, 0.5)
    weight = weight.astype(place.dtype)
    below, above = (ranks.astype(np.intp) % n for ranks in (low, high))
    return Rule(n, below, above, float(weight[0]) if weak else weight, dtype, nans)


def median_rule(n: int, dtype: np.dtype, nans: bool) -> Rule:
    """The median of `n` numbers: the one in the middle, or the mean of two."""
    return Rule(n, np.array([(n - 1) // 2]), None if n % 2 else np.array([n // 2]), None, dtype, nans, mean=True)


def median_of_lines(number: np.ndarray, dtype: np.dtype) -> Rule:
    """The median of lines that have so many numbers each, before the others; NaN where there is none."""
    n = np.maximum(number, 1)[None]
    return Rule(number, (n - 1) // 2, n // 2, None, dtype, nans=False, mean=True)


def _up(place: np.ndarray, n: int, *, odd: bool) -> np.ndarray:
    """Each place rounded up to a rank; with `odd`, a place that is an even rank moves up to the next."""
    low = np.floor(place)
    stay = place == low
    if odd:
        stay &= low % 2 == 1
    ranks: np.ndarray = np.clip(np.where(stay, low, low + 1).astype(np.intp), 0, n - 1)
    return ranks


LineRule = Callable[[np.ndarray], Rule]
"""Gives the quantiles of lines that have so many numbers each."""


@dataclass(frozen=True, eq=False)
class WholeLines:
    """Quantiles of blocks that have the reduced axes in full: a function for `map`.

    With `of_lines` NaN are left out: it gives the rule of lines with some.
    """

    rule: Rule
    axes: tuple[int, ...]
    scalar: bool
    keepdims: bool
    of_lines: LineRule | None = None
    any_length: ClassVar[bool] = True

    def __call__(self, block: Any) -> Any:
        """Quantiles of one block, along a new first axis unless `scalar`."""
        kept = tuple(a for a in np.arange(block.ndim).tolist() if a not in self.axes)
        native = block.dtype.newbyteorder("=")
        turned, sides = block.transpose((*kept, *self.axes)), (*[block.shape[a] for a in kept], -1)
        on_cpu = isinstance(block, np.ndarray)
        # Each line in one piece: else NumPy copies it once more, to partition it.
        lines = np.array(turned, native, order="C").reshape(sides) if on_cpu else turned.reshape(sides)
        missing = None
        if self.of_lines is not None:
            missing = np.isnan(lines).sum(-1)
            if on_cpu and not missing.any() and not is_trial():
                missing = None
        if on_cpu and missing is None:
            ranks = self.rule.ranks()
            # A trial's lines may be shorter.
            lines.partition(np.minimum(ranks, lines.shape[-1] - 1) if is_trial() else ranks, -1)
        else:
            lines = in_order(lines)  # CuPy's partition does not know where NaN belongs
        if self.of_lines is not None and missing is not None:
            rule = self.of_lines(lines.shape[-1] - on_host(missing))
            found = rule.result(lambda ranks: along_first(lines, ranks))
        else:
            last = lines.shape[-1] - 1
            found = self.rule.result(
                lambda ranks: np.moveaxis(lines[..., np.asarray(np.minimum(ranks, last), like=lines)], -1, 0)
            )
        shape = [1 if a in self.axes else n for a, n in enumerate(block.shape) if self.keepdims or a not in self.axes]
        return found.reshape(shape if self.scalar else (found.shape[0], *shape))


def along_first(lines: Any, ranks: np.ndarray) -> Any:
    """Elements of lines along the last axis, at ranks along a first one."""
    return np.moveaxis(np.take_along_axis(lines, np.asarray(np.moveaxis(ranks, 0, -1), like=lines), -1), -1, 0)


def strips(block: Any, axes: tuple[int, ...]) -> Iterator[Any]:
    """A block in parts along the longest of some axes, of at most `STRIP` elements; on a GPU it stays whole."""
    along = max(axes, key=lambda a: block.shape[a], default=None)
    if along is None or not isinstance(block, np.ndarray) or block.size <= STRIP:
        yield block
        return
    step = max(1, block.shape[along] * STRIP // block.size)
    for start in range(0, block.shape[along], step):
        yield block[(*(slice(None),) * along, slice(start, start + step))]


# -- Selection in several passes -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Digits(Fold):
    """A fold that finds the next `bits` bits of the keys of order statistics, for each line along the reduced axes.

    The higher bits are known from earlier passes. Keys that begin with them are counted by their next bits. The counts
    show the bin of an order statistic, and its rank there. Results are both, and of a single line how many keys the bin
    has.

    Attributes
    ----------
    axes : tuple of int
        The reduced ones.
    shift, bits : int
        Number of lower bits, and number of bits that this pass finds.
    prefixes, ranks : numpy.ndarray
        For each order statistic (along the first axis) and each line, the known bits, and the rank among the keys that
        begin with them.
    of_lines : callable, optional
        For the first pass, if NaN are left out: the rule of lines with so many numbers, which gives the ranks. The last
        result is how many numbers each line has.
    dtype : numpy.dtype, optional
        The dtype of which keys are counted, if it is another one than the array's.
    """

    axes: tuple[int, ...]
    shift: int
    bits: int
    prefixes: np.ndarray
    ranks: np.ndarray
    of_lines: LineRule | None = None
    dtype: np.dtype | None = None

    def __post_init__(self) -> None:
        rows = self.prefixes.reshape(len(self.prefixes), -1)
        # Ranks are sorted, and so are prefixes: equal rows are neighbours.
        new = np.concatenate(([True], (rows[1:] != rows[:-1]).any(axis=1)))
        self.__dict__.update(firsts=np.flatnonzero(new).tolist(), groups=(np.cumsum(new) - 1).tolist())

    def fold(
        self, value: Value | None, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> Value:
        found: Value = () if value is None else value
        for part in strips(blocks[0], self.axes) if self.strip else blocks:
            counts = self._counted(part, box, trial=not nest.outputs)
            if found:  # new arrays take the sums: `value` stays as it was
                counts = tuple([np.add(one, new, out=new) for one, new in zip(found, counts, strict=True)])
            found = counts
        return found

    def combine(self, left: Value, right: Value) -> Value:
        return tuple([one + other for one, other in zip(left, right, strict=True)])

    def finish(self, value: Value, nest: LoopNest, box: Region) -> Any:
        below = value[0].cumsum(-1)  # of each bin and those before it
        prefixes, ranks = (self._part(known, box) for known in (self.prefixes, self.ranks))
        shape = prefixes.shape
        numbers: tuple[Any, ...] = ()
        if self.of_lines is not None:
            ranks = self.of_lines(on_host(value[1])).all_ranks()
            numbers = (value[1].reshape(1, *shape[1:]),)
        prefixes, ranks = (np.asarray(known.reshape(len(known), -1), like=below) for known in (prefixes, ranks))
        new_prefixes, new_ranks, sizes = np.empty_like(prefixes), np.empty_like(ranks), np.empty_like(ranks)
        for row, group in enumerate(self.__dict__["groups"]):
            counts = below[group]
            digit = (counts <= ranks[row][:, None]).sum(-1)
            digit = np.minimum(digit, counts.shape[-1] - 1)  # the trial call's block may have too few elements
            before = np.take_along_axis(counts, np.maximum(digit - 1, 0)[:, None], -1)[:, 0]
            before = np.where(digit > 0, before, 0)
            new_ranks[row] = ranks[row] - before
            sizes[row] = np.take_along_axis(counts, digit[:, None], -1)[:, 0] - before
            digit = digit.astype(prefixes.dtype)
            if self._first:
                new_prefixes[row] = digit
            else:
                new_prefixes[row] = (prefixes[row] << prefixes.dtype.type(self.bits)) | digit
        bins = (sizes.reshape(shape),) if self._single else ()
        return new_prefixes.reshape(shape), new_ranks.reshape(shape), *bins, *numbers

    @property
    def data_independent(self) -> bool:
        return True

    @property
    def strip(self) -> int:
        """See `Kernel.strip`. It is 0 for several lines, which have as many bins as elements."""
        return STRIP if self._single else 0

    @property
    def _single(self) -> bool:
        """Whether it is of a single line."""
        return self.prefixes.size == len(self.prefixes)

    @property
    def _first(self) -> bool:
        """Whether this is the first pass, in which no bits are known."""
        return self.shift + self.bits == 8 * self.prefixes.dtype.itemsize

    def _part(self, known: np.ndarray, box: Region) -> np.ndarray:
        return known[(slice(None), *(side for a, side in enumerate(box) if a not in self.axes))]

    def _counted(self, block: Any, box: Region, *, trial: bool) -> Value:
        """Counts of a block's keys, by prefix, line and bin. For a trial all have the first prefix: that takes most.

        With `of_lines`, how many of each line's elements are numbers besides.
        """
        kept = tuple(a for a in range(block.ndim) if a not in self.axes)
        lines, bins = math.prod(block.shape[a] for a in kept), 1 << self.bits
        # A trial's block may be one of several lines, or have sides of 1, which spare a copy. It takes all the same.
        several = lines > 1 or (trial and self.prefixes.size > len(self.prefixes))
        block = block if self.dtype is None else block.astype(self.dtype, copy=False)
        keys = to_keys(block).transpose((*kept, *self.axes))
        keys = (keys.copy() if trial and several else keys).reshape(lines, -1)
        number = keys.dtype.type
        known = None if self._first else keys >> number(self.shift + self.bits)
        firsts = self.__dict__["firsts"]
        counts = np.zeros_like(keys, dtype=np.intp, shape=(len(firsts), lines, bins))
        offsets = np.arange(lines, like=counts)[:, None] * bins if several else None
        for row, first in enumerate(firsts):
            where: Any = ...
            if known is not None:
                prefix = self._part(self.prefixes, box)[first].reshape(-1, 1)
                where = np.full_like(keys, row == 0, dtype=bool) if trial else known == np.asarray(prefix, like=keys)
            chosen = (keys[where].reshape(-1) >> number(self.shift)) & number(bins - 1)
            if offsets is not None:
                chosen = chosen.astype(np.intp)
                if known is None:
                    chosen.reshape(lines, -1)[...] += offsets
                else:
                    chosen += np.broadcast_to(offsets, keys.shape)[where]
            counts[row] = counted(chosen, lines * bins).reshape(lines, bins)
        if self.of_lines is None:
            return (counts,)
        return counts, (keys != ~number(0)).sum(-1)  # the greatest key is that of NaN
