"""Statistics of the elements that share a label: of the regions of a segmented image or volume, say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chunkflow import devices
from chunkflow.api.operation import (
    ArraySpec,
    BudgetLike,
    Chunks,
    MultiPass,
    Options,
    ProgressLike,
    Request,
    check_eager,
    execute,
    operation,
)
from chunkflow.api.reductions.request import number_of
from chunkflow.api.statistics.bins import over_everything
from chunkflow.api.statistics.counted import counted
from chunkflow.api.statistics.order_statistics import SHARE
from chunkflow.core.chunking import block_sides
from chunkflow.core.memory import RoomForEach
from chunkflow.core.units import format_bytes
from chunkflow.devices.protocol import Device
from chunkflow.engine.budget import Budget, lease
from chunkflow.engine.dry_run import is_dry, must_suffice, rename
from chunkflow.errors import ArgumentError, ArgumentTypeError, BudgetError
from chunkflow.kernels.statistics.distinct import TooManyValuesError
from chunkflow.kernels.statistics.groups import STATISTICS, Grouped, GroupPartial, bytes_of, fields_of
from chunkflow.stores import spec_of

COPIES, MERGING = 4, 128
"""Memory of a lane that merges: copies of what is kept of each label, and further bytes of each (label and order)."""


@dataclass(frozen=True, eq=False)
class LabelStatistics:
    """Statistics of each label; those that were not asked for are None.

    ``stats["mean"]`` is ``stats.mean``, and ``dict(stats)`` has all of them.

    Attributes
    ----------
    labels : numpy.ndarray
        Of shape (n,): the labels, sorted, or as ``index`` gave them.
    count : numpy.ndarray, optional
        (n,), int64: how many elements have the label.
    sum : numpy.ndarray, optional
        (n,): int64 or uint64 of bools and integers, as NumPy's, else float64.
    mean, var, std : numpy.ndarray, optional
        (n,), float64.
    min, max : numpy.ndarray, optional
        (n,), in the dtype of the values; NaN where one of them is.
    center_of_mass : numpy.ndarray, optional
        (n, ndim), float64: mean position, in elements along each axis, weighted by the values.
    bounding_box : numpy.ndarray, optional
        (n, ndim, 2), int64: for each axis the first place, and the one after the last.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> stats = cf.label_statistics(np.array([1.0, 2.0, 6.0]), np.array([3, 5, 5]), ["count", "mean"], device="cpu")
    >>> stats.labels, stats["mean"], stats.max
    (array([3, 5]), array([1., 4.]), None)
    """

    labels: np.ndarray
    count: np.ndarray | None = None
    sum: np.ndarray | None = None
    mean: np.ndarray | None = None
    var: np.ndarray | None = None
    std: np.ndarray | None = None
    min: np.ndarray | None = None
    max: np.ndarray | None = None
    center_of_mass: np.ndarray | None = None
    bounding_box: np.ndarray | None = None

    def keys(self) -> tuple[str, ...]:
        """Names of what there is, ``"labels"`` first."""
        return tuple(name for name in ("labels", *STATISTICS) if getattr(self, name) is not None)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.keys():
            raise KeyError(f"{name!r} is none of {', '.join(self.keys())}")
        found: np.ndarray = getattr(self, name)
        return found


@operation
def label_statistics(
    values: Any,
    labels: Any,
    statistics: str | Sequence[str] = STATISTICS,
    *,
    index: Any = None,
    ddof: float = 0,
    background: int | None = None,
    chunks: Chunks = None,
    budget: BudgetLike = None,
    device: Any = None,
    progress: ProgressLike = None,
) -> MultiPass:
    """Statistics of the values that have the same label, for all labels in one pass over both arrays.

    As the functions of ``scipy.ndimage`` (``sum_labels``, ``mean``, ``variance``, ``find_objects`` ...), each of which
    goes over the arrays once more. Labels may be any integers, few or many: memory is taken for each one that there
    is, and not up to the largest. With all statistics in three dimensions it is some 640 bytes for each core,
    of a quarter of the budget, since partial results are merged. Fewer statistics take less.

    Parameters
    ----------
    values : array_like, str or path
        A source, as for `chunkflow.map`, of real numbers. It is not read for counts and bounding boxes alone.
    labels : array_like, str or path
        Source of integers or bools, of the shape of `values`.
    statistics : str or sequence of str
        What is wanted of "count", "sum", "mean", "var", "std", "min", "max", "center_of_mass", "bounding_box"; all by
        default. Less takes less time and memory.
    index : int or sequence of int, optional
        Labels wanted, in this order; all that there are by default, sorted. One that no element has gets a count and
        a sum of 0, a bounding box of zeros, and NaN otherwise; the minimum and maximum of integers or bools are 0.
    ddof : float
        At least 0: the variance is that of ``count - ddof`` degrees of freedom, by which it is divided.
    background : int, optional
        Label to leave out, such as 0.
    chunks : int or sequence of int, optional
        Sides of the blocks of both arrays that are computed at a time: for each axis a length, -1 or None for the
        whole axis, or "auto" for the planner's choice, which is the default.
    budget : int, str, float or Budget, optional
        As for `chunkflow.map`. What is kept of labels takes at most a quarter of the budget.

    Returns
    -------
    LabelStatistics
        The labels, and of each statistic asked for a NumPy array that follows them.

    Raises
    ------
    ArgumentError
        Arrays of different shapes, an unknown statistic, a negative `ddof`, an `index` of several dimensions or with
        the `background` in it.
    ArgumentTypeError
        Labels, `index` or `background` that are no integers, values that are not real numbers of at most 64 bits, a
        `ddof` that is no number.
    BudgetError
        There are more labels than a quarter of the budget holds, or not even the smallest block fits.

    Notes
    -----
    Sums of floats, means and centres are added up in double precision, block by block and pairwise. Variances are
    merged about the means of the parts (T. F. Chan, G. H. Golub and R. J. LeVeque, 1979), so that they keep their
    digits however far from zero the values are.

    Examples
    --------
    >>> values = np.array([[1.0, 3.0, 9.0], [5.0, 7.0, 9.0]])
    >>> labels = np.array([[4, 4, 0], [-2, -2, 0]])
    >>> stats = cf.label_statistics(values, labels, ["mean", "bounding_box"], background=0, device="cpu")
    >>> stats.labels, stats.mean
    (array([-2,  4]), array([6., 2.]))
    >>> stats["bounding_box"][1].tolist()
    [[0, 1], [0, 2]]
    """
    values, labels = (np.asarray(a) if isinstance(a, np.generic) else a for a in (values, labels))
    spec, lspec = spec_of(values), spec_of(labels)
    wanted = _asked(statistics)
    _check_arrays(spec, lspec)
    less = number_of("ddof", ddof)
    if less < 0:
        raise ArgumentError(f"ddof={ddof} must be at least 0: it is taken from the number of elements")
    key = np.dtype("u1") if lspec.dtype.kind == "b" else lspec.dtype.newbyteorder("=")
    names = None if index is None else _indexed(index)
    left_out = _left_out(background, names, key)
    kept = None if names is None else _within(names, key)
    block_sides(chunks, spec.shape)
    fields = fields_of(wanted, spec.dtype, len(spec.shape))
    each = bytes_of(fields) + key.itemsize
    sources = (labels, values) if fields.keys() - {"count", "start", "stop"} else (labels,)
    chosen = Options(budget=budget, device=device, progress=progress)
    most = min(spec.size, 1 << 8 * key.itemsize) if kept is None else len(kept)

    def statistics_of_labels() -> LabelStatistics:
        run = devices.resolve(device)
        with _set_aside(budget, run) as (shared, aside):
            label = run.machine.lanes * (COPIES * each + MERGING)
            held = max(1, aside // label)
            needs = RoomForEach(run.reserve, SHARE * label, most)
            if (kept is not None or must_suffice()) and most > held:
                raise BudgetError(
                    f"{'index= has' if kept is not None else 'there may be'} {most} labels, and a quarter of the "
                    f"budget, {format_bytes(aside)}, has room for the statistics of {held}: raise budget= to at least "
                    f"{needs.enough}, or take some at a time with index=",
                    needed=needs.enough,
                    limit=aside,
                    smallest=needs.enough,
                )
            kernel = Grouped(fields, held, kept, left_out)
            within = replace(chosen, budget=shared, device=run)
            try:
                execute(Request(over_everything(kernel, chunks), sources, within))
            except TooManyValuesError as error:
                raise _too_many(error.number, held, aside, counted(labels, chunks, within, needs)) from None
        if is_dry():
            return LabelStatistics(np.empty(0, key))
        (partial,) = kernel.found
        if names is not None:
            partial = _listed(partial, names, spec.dtype)
        elif lspec.dtype.kind == "b":
            partial = GroupPartial(partial.labels.view("?"), partial.fields)
        return _statistics(partial, wanted, spec.dtype, less)

    return MultiPass(sources, statistics_of_labels, chosen, alone=True)


def _too_many(number: int, held: int, aside: int, needs: RoomForEach) -> BudgetError:
    """The error of more labels than there is room for."""
    each = format_bytes(aside // held)
    return BudgetError(
        f"there are {number} labels or more, and a quarter of the budget, {format_bytes(aside)}, has room for the "
        f"statistics of {held}, {each} each: {needs.said(number)}; or ask for fewer statistics=, or name those wanted "
        "with index=",
        needed=needs.enough,
        limit=aside,
        smallest=needs.enough,
        likely=needs.likely(number),
    )


@contextmanager
def _set_aside(budget: BudgetLike, run: Device) -> Iterator[tuple[Budget, int]]:
    """The budget for a run, less a quarter that is set aside for labels; and the bytes of that quarter.

    The plan does not know of the quarter: the number of labels turns out only as they are read. In the plan that memory
    would count as moved with each block, and the blocks would become large for it.
    """
    with lease(budget, run) as leased:
        shared, left = leased.budget, leased.left
        aside = max(0, left - run.reserve) // SHARE
        try:
            with shared.reserved(run, shared.limit_on(run) - left + aside):
                yield shared, aside
        except BudgetError as error:
            if error.limit == left - aside and error.smallest is not None:  # what the plan asks for is the rest
                rename(error, run.reserve - (run.reserve - error.smallest) * SHARE // (SHARE - 1))
            raise


# -- Arguments -----------------------------------------------------------------------------------------------


def _asked(statistics: Any) -> tuple[str, ...]:
    """Names of statistics, checked."""
    names = (statistics,) if isinstance(statistics, str) else statistics
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ArgumentTypeError(f"statistics must be a name or a sequence of names, not {statistics!r}")
    for name in names:
        if name not in STATISTICS:
            raise ArgumentError(f"statistics: {name!r} is none of {', '.join(STATISTICS)}")
    if not names:
        raise ArgumentError(f"statistics is empty: ask for some of {', '.join(STATISTICS)}")
    return tuple(names)


def _check_arrays(spec: ArraySpec, lspec: ArraySpec) -> None:
    if lspec.dtype.kind not in "biu":
        raise ArgumentTypeError(f"labels are integers or bools, and {lspec.name} is of {lspec.dtype}: convert it")
    if spec.dtype.kind not in "biuf" or spec.dtype.itemsize > 8:
        raise ArgumentTypeError(
            f"values are real numbers of at most 64 bits, and {spec.name} is of {spec.dtype}: convert it, or take its "
            "real part"
        )
    if lspec.shape != spec.shape:
        raise ArgumentError(f"labels have the shape {lspec.shape} and values have {spec.shape}: they must be the same")


def _indexed(index: Any) -> np.ndarray:
    """The labels of `index`, checked."""
    check_eager("label_statistics", index=index)
    try:
        names = np.atleast_1d(np.asarray(index))
        if names.dtype.kind == "f" and all(isinstance(n, int) for n in np.asarray(index, object).flat):
            names = np.atleast_1d(np.asarray(index, "u8"))  # NumPy makes floats of small and large ones together
    except (ValueError, OverflowError) as error:
        raise ArgumentError(f"index={index!r} is no array: {error}") from None
    if not names.size:
        names = names.astype("i8")
    if names.dtype.kind not in "biu":
        raise ArgumentTypeError(f"index must be integers that one dtype holds, not of {names.dtype}: {index!r}")
    if names.ndim > 1:
        raise ArgumentError(f"index has {names.ndim} dimensions: it must be a label, or a sequence of them")
    return names.astype(names.dtype.newbyteorder("="), copy=False)


def _left_out(background: Any, names: np.ndarray | None, key: np.dtype) -> int | None:
    """The label to leave out, checked; None if the labels' dtype cannot hold it."""
    if background is None:
        return None
    if not isinstance(background, bool | int | np.integer | np.bool):
        raise ArgumentTypeError(f"background must be a label, an int, not {background!r}")
    if names is not None and (names == background).any():
        raise ArgumentError(f"background={background} is in index= too: leave it out of one of them")
    info = np.iinfo(key)
    return int(background) if info.min <= background <= info.max else None


def _within(names: np.ndarray, key: np.dtype) -> np.ndarray:
    """The labels that a dtype can hold, sorted, each once."""
    info = np.iinfo(key)
    names = names.view("u1") if names.dtype.kind == "b" else names
    found: np.ndarray = np.unique(names[(names >= info.min) & (names <= info.max)].astype(key))
    return found


# -- Results -------------------------------------------------------------------------------------------------


def _listed(partial: GroupPartial, names: np.ndarray, dtype: np.dtype) -> GroupPartial:
    """Partial results of the labels in the order of `names`, with default values for labels that were not found."""
    known = partial.labels
    keys = names.view("u1") if names.dtype.kind == "b" else names
    info = np.iinfo(known.dtype)
    there = np.flatnonzero((keys >= info.min) & (keys <= info.max))
    asked = keys[there].astype(known.dtype)
    at = np.searchsorted(known, asked)
    met = at < len(known)
    met[met] = known[at[met]] == asked[met]
    there, at = there[met], at[met]
    fields = {}
    for name, array in partial.fields.items():
        fields[name] = np.zeros((len(names), *array.shape[1:]), array.dtype)
        if name in ("min", "max") and dtype.kind == "f":
            fields[name][:] = np.nan
        fields[name][there] = array[at]
    return GroupPartial(names, fields)


def _statistics(partial: GroupPartial, wanted: Sequence[str], dtype: np.dtype, ddof: float) -> LabelStatistics:
    fields = partial.fields
    made: dict[str, np.ndarray] = {}
    with np.errstate(all="ignore"):
        for name in wanted:
            if name == "count":
                made[name] = fields["count"]
            elif name == "sum":
                made[name] = fields["exact" if "exact" in fields else "total"]
            elif name == "mean":
                made[name] = fields["total"] / fields["count"]
            elif name in ("var", "std"):
                var = fields["squares"] / np.maximum(fields["count"] - ddof, 0)
                made[name] = np.sqrt(var) if name == "std" else var
            elif name in ("min", "max"):
                made[name] = fields[name].view("?") if dtype.kind == "b" else fields[name]
            elif name == "center_of_mass":
                made[name] = fields["moments"] / fields["total"][:, None]
            else:
                made[name] = np.stack((fields["start"], fields["stop"]), axis=-1)
    return LabelStatistics(partial.labels, **made)
