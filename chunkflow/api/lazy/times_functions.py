"""NumPy's functions, and chunkflow's operations, of times: a row of the table says what becomes of the integers.

NaT is what NaN is among floats: it is the result of a reduction that meets it, it comes last in any order, and the
functions with "nan" before their name leave it out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from chunkflow.api.core_axes import whole_axes
from chunkflow.api.lazy import numpy_dispatch, times_statistics
from chunkflow.api.lazy.array import Array
from chunkflow.api.lazy.handlers import Function, Handler, Handlers
from chunkflow.api.lazy.times_parts import Times, counts_in, has_times, operand, same_unit, seen, time_of
from chunkflow.api.lazy.times_rules import OF_A_RUN, first_times, only, refusal, takes
from chunkflow.api.lazy.times_ufuncs import key, unkey
from chunkflow.api.lazy.times_units import is_nat
from chunkflow.api.operation import check_int
from chunkflow.api.reductions import extremes, sums
from chunkflow.api.reductions.exact_means import mean_of_counts
from chunkflow.api.statistics import group_reduce, histogram, quantile, unique
from chunkflow.core.axes import normalize_axes
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.kernels.reductions.exact_means import MOST
from chunkflow.stores.times import NAT, is_time

LATEST = -NAT - 1
"""The key of NaT."""

SHORT = 1 << 13
"""Elements of a line that any budget has room for."""

RETURNED = ("return_index", "return_inverse", "return_counts", "sorted")

# -- Moved, joined, chosen -------------------------------------------------------------------------------------------


def _moved(at: int) -> Handler:
    """The integers are moved; `at` is the place of the array among the arguments."""

    def call(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
        x = only(places, at)
        return x.kept(ours(*places[:at], *x.parts(), *places[at + 1 :], **named))

    return call


def _alike(*at: int) -> Handler:
    """Several arrays, in these places or in all, come to one unit, which is the result's."""

    def call(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
        if named.keys() & {"dtype", "casting"}:
            raise refusal("joining", "takes no dtype=: x.astype(unit) converts each before")
        mine = at or range(len(places))
        counts, dtype = same_unit(_leaves([places[i] for i in mine]))
        changed = iter(counts)
        given = [_rebuilt(value, changed) if i in mine else counts_in(value) for i, value in enumerate(places)]
        return _of(first_times(places), dtype)(ours(*given, **named))

    return call


def _selected(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """Where no condition holds there is the `default`; 0 is no date."""
    conditions, choices, default = [*places, named.get("default", 0)][:3]
    default = np.timedelta64(0) if isinstance(default, int) and default == 0 else default
    counts, dtype = same_unit([*choices, default])
    return _of(first_times([*choices, default]), dtype)(ours(conditions, counts[:-1], counts[-1]))


def _of(x: Times, dtype: np.dtype) -> Callable[[Any], Any]:
    """Makes expressions of counts, or of lists of them."""

    def make(counts: Any) -> Any:
        return type(counts)(map(make, counts)) if isinstance(counts, list | tuple) else type(x)(counts, dtype)

    return make


def _leaves(value: Any) -> list[Any]:
    """Arrays in lists of lists."""
    return [leaf for each in value for leaf in _leaves(each)] if isinstance(value, list | tuple) else [value]


def _rebuilt(value: Any, leaves: Any) -> Any:
    """Lists of lists with other arrays in them."""
    return type(value)(_rebuilt(each, leaves) for each in value) if isinstance(value, list | tuple) else next(leaves)


def _filled_like(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    x, *value = places
    if "dtype" in named:
        return ours(*x.parts(), *value, **named)
    return x.kept(ours(*x.parts(), *(time_of(each, x.dtype) for each in value), **named))


def _padded(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    x, mode = only(places), named.get("mode", "constant")
    if mode in ("mean", "median", "linear_ramp") or named.get("reflect_type", "even") != "even":
        raise refusal("np.pad", "computes none that are not there: give another mode")
    if "constant_values" in named:
        named = named | {"constant_values": time_of(np.asarray(named["constant_values"]), x.dtype)}
    return (_by_key(back=True) if mode == "maximum" else _moved(0))(ours, places, named)


def _inserted(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """Values are cast to the unit of the array."""
    x, where, values = places
    if not isinstance(x, Times):
        raise refusal("np.insert", "needs the array itself as an expression")
    return x.kept(ours(*x.parts(), where, time_of(values, x.dtype), **named))


# -- Ordered ---------------------------------------------------------------------------------------------------------


def _by_key(back: bool) -> Handler:
    """By the order in which NaT is last; what comes `back` are keys."""

    def call(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
        x = only(places)
        found = ours(key(*x.parts()), *places[1:], **named)
        return x.kept(unkey(found)) if back else found

    return call


def _sorted(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """Short lines along the last axis are sorted in the pass that reads them; others are sorted as keys are."""
    x = only(places)
    last = len(x.shape) - 1
    if (
        not x.shape
        or named.get("axis", -1) not in (-1, last)
        or x.shape[-1] > SHORT
        or not named.keys() <= {"axis", "kind"}
    ):
        return _by_key(back=True)(ours, places, named)
    return x.kept(whole_axes(_sorted_lines, "sort", [(x.parts()[0], ("line",))], x.shape[-1:], np.dtype("i8")))


def _sorted_lines(block: Any) -> Any:
    keys = key(block)
    keys.sort(axis=-1)
    keys += 1
    return keys


def _by_count(back: bool) -> Handler:
    """By the order in which NaT is first."""

    def call(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
        x = only(places)
        found = ours(*x.parts(), *places[1:], **named)
        return x.kept(found) if back else found

    return call


def _chosen(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """As `numpy.where`, of branches that are times, or of a condition that is: one holds where its count is not 0."""
    branches = places[1:]
    if len(branches) == 2 and any(has_times(each) or is_time(each) for each in branches):
        return _alike(1, 2)(ours, places, named)
    return ours(*map(counts_in, places), **named)


def _extreme(ours: Function, *, keyed: bool) -> Handler:
    """An extreme by either order, of which `initial` is a time."""

    def call(_: Function, places: list[Any], named: dict[str, Any]) -> Any:
        x = only(places)
        if "initial" in named:
            value = time_of(named["initial"], x.dtype)
            named = named | {"initial": key(value) if keyed else value}
        found = ours(key(*x.parts()) if keyed else x.parts()[0], **named)
        return x.kept(unkey(found) if keyed else found)

    return call


_MIN, _MAX = _extreme(extremes.min, keyed=False), _extreme(extremes.max, keyed=True)
_NANMIN, _NANMAX = _extreme(extremes.min, keyed=True), _extreme(extremes.max, keyed=False)


def _spread(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    return _MAX(ours, places, named) - _MIN(ours, places, named)


def _distinct(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    x = only(places)
    takes("np.unique", named, *RETURNED, *OF_A_RUN)
    found = ours(key(*x.parts()), **named)
    if isinstance(found, tuple):
        return (seen(unkey(found[0]), x.dtype), *found[1:])
    return seen(unkey(found), x.dtype)


def _searched(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """Places in an order, in which NaT is the last."""
    (one, other), _ = same_unit(places)
    return ours(key(one), key(other), **named)


def _of_sets(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """What NumPy's own function gives of the distinct times of both: NaT is one of them, and equal to none."""
    same_unit(places)  # what does not go together is refused before it is read
    return ours(*places, **named)


def _contained(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """NaT is equal to none."""
    takes("np.isin", named, "invert", "assume_unique", "kind")
    if named.pop("kind", None) == "table":
        raise refusal("np.isin", "has no kind='table', which is of integers: leave it out, or")
    (x, tests), _ = same_unit(places)
    inverts = named.pop("invert", False)
    found = ours(x, tests, **named) & (x != NAT)
    return ~found if inverts else found


def _counted(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """A histogram with edges of times; NaT is in no bin."""
    bins = named.pop("bins", None)
    if isinstance(bins, Times | Array):
        raise refusal("a histogram", "needs its edges in memory: compute() them")
    if bins is None or np.ndim(bins) != 1:
        raise refusal("a histogram", f"needs its edges as an array of times, not bins={bins!r}")
    takes("np.histogram", named, "weights", *OF_A_RUN)
    edges = np.asarray(bins)
    (x, counts), _ = same_unit([*places, edges])
    if isinstance(x, Array) and bool(np.any(counts == NAT)):
        raise ArgumentError(f"bins={bins!r}: NaT is no edge")
    found, _ = ours(x, bins=counts, **named)
    return found, edges


# -- Sums and means --------------------------------------------------------------------------------------------------


def _is_span(x: Times, name: str) -> None:
    if x.dtype.kind != "m":
        raise ArgumentTypeError(f"{name} of {x.dtype}: times have no sum; their differences, of timedelta64, have one")


def _summed(skips: bool) -> Handler:
    def call(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
        x = only(places)
        _is_span(x, "a sum")
        takes("a sum", named, "axis", "keepdims", "where", "initial")
        start = time_of(named.pop("initial", 0), x.dtype)
        (counts,) = x.parts()
        missing = is_nat(counts)
        total = sums.sum(np.where(missing, 0, counts), **named)
        total = np.full_like(total, NAT) if start == NAT else total + start
        return x.kept(total if skips else np.where(extremes.any(missing, **named), NAT, total))

    return call


def _accumulated(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    x = only(places)
    _is_span(x, "a sum")
    (counts,) = x.parts()
    missing = is_nat(counts)
    total = ours(np.where(missing, 0, counts), **named)
    met = ours(missing.astype("i8"), **named)
    return x.kept(np.where(met > 0, NAT, total))


def _mean(skips: bool) -> Handler:
    """The mean, exact but for the last step, which rounds towards zero as NumPy's of timedelta64 does."""

    def call(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
        x = only(places)
        takes("a mean", named, "axis", "keepdims", "where")
        (counts,) = x.parts()
        given = named.get("axis")
        axes = range(len(x.shape)) if given is None else normalize_axes(given, len(x.shape), "axis")
        _check_number(math.prod(x.shape[axis] for axis in axes))
        return x.kept(mean_of_counts(counts, skip=skips, **named))

    return call


def _check_number(most: int) -> None:
    if most >= MOST:
        raise refusal("a mean", f"takes fewer than 2^40 elements, not {most}: the means of parts")


def _parts(counts: Any, most: int) -> tuple[int, list[Any]]:
    """Integers as parts of so many bits, the highest first: the sums of `most` of them do not overflow."""
    bits, lower = (32, 1) if most < 1 << 30 else (22, 2)
    _check_number(most)
    low = (1 << bits) - 1
    return bits, [counts >> lower * bits, *(counts >> i * bits & low for i in reversed(range(lower)))]


def _quotient(totals: Sequence[Any], number: Any, bits: int) -> Any:
    """The sum, given by the sums of its parts, divided by a number: long division, whose digits have so many bits."""
    divisor = np.maximum(number, 1)
    found: Any = 0
    rest: Any = 0
    for total in totals:
        dividend = rest * (1 << bits) + total
        found = found * (1 << bits) + dividend // divisor
        rest = dividend % divisor
    return found + ((rest != 0) & (found < 0))


def _differences(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    x: Any = places[0]
    takes("np.diff", named, "n", "axis", "prepend", "append")
    (along,) = normalize_axes(named.get("axis", -1), len(x.shape), "axis")
    edge = tuple([1 if axis == along else n for axis, n in enumerate(x.shape)])
    beside = {
        name: value if np.ndim(value) else np.broadcast_to(np.asarray(value), edge)
        for name in ("prepend", "append")
        if (value := named.get(name, np._NoValue)) is not np._NoValue
    }
    if beside and named.get("n", 1):  # NumPy adds to what it subtracts
        whole = [beside[name] if name else x for name in ("prepend", "", "append") if not name or name in beside]
        x = np.concatenate(whole, axis=along)
    if named.get("n", 1) < 0:
        raise ArgumentError(f"n={named['n']} must not be negative")
    before = (slice(None),) * along
    for _ in range(named.get("n", 1)):
        x = x[(*before, slice(1, None))] - x[(*before, slice(None, -1))]
    return x


def _steps(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """Differences of the flattened array, and what is put before and behind them."""
    takes("np.ediff1d", named, "to_begin", "to_end")
    x, behind, before = [*places, None, None][:3]
    before, behind = named.get("to_begin", before), named.get("to_end", behind)
    found = np.diff(np.ravel(x))
    parts = [np.ravel(each) for each in (before, found, behind) if each is not None]
    return found if len(parts) == 1 else np.concatenate(parts)


def _traced(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    takes("np.trace", named, "offset", "axis1", "axis2")
    return np.sum(np.diagonal(*places, **named), axis=-1)


def _clipped(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    takes("np.clip", named, "min", "max", "a_min", "a_max")
    x, low, high = [*places, None, None][:3]
    low, high = named.get("min", named.get("a_min", low)), named.get("max", named.get("a_max", high))
    found = x if low is None else np.maximum(x, low)
    return found if high is None else np.minimum(found, high)


def _equal(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    one, other = places
    if np.shape(one) != np.shape(other) or len({np.dtype(operand(each).dtype).kind for each in places}) > 1:
        return False
    same = np.equal(one, other)
    if named.get("equal_nan"):
        same = same | (np.isnat(one) & np.isnat(other))
    return extremes.all(same)


# -- Groups ----------------------------------------------------------------------------------------------------------


def _grouped(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """Groups of times, and groups by times."""
    values, *by, func = places
    expected = named.pop("expected_groups", None)
    wanted = list(expected) if isinstance(expected, tuple) and len(expected) == len(by) else [expected] * len(by)
    binned = np.broadcast_to(named.get("isbin", False), len(by)).tolist()
    found_keys = [_key(*each) for each in zip(by, wanted, binned, strict=True)]
    keys, groups = zip(*((key, group) for key, group, _ in found_keys), strict=True)
    more = {"expected_groups": groups if len(by) > 1 else groups[0]}
    if not isinstance(func, str | list | tuple):
        raise ArgumentTypeError(f"func={func!r} must be a name, or several: {', '.join(_OF_GROUPS)}")
    names = [func] if isinstance(func, str) else list(func)
    if isinstance(values, Times):
        if strange := named.keys() & {"fill_value", "min_count", "dtype", "q", "ddof"}:
            raise refusal("groupby_reduce", f"takes no {', '.join(sorted(strange))}")
        found, labels = _reduced_groups(values, names, lambda x, f, **o: ours(x, *keys, func=f, **more, **named, **o))
    else:
        result, *labels = ours(values, *keys, func=names, **more, **named)
        found = list(result) if isinstance(result, tuple) else [result]
    told = (own if own is not None else label for label, (*_, own) in zip(labels, found_keys, strict=True))
    return (found[0] if isinstance(func, str) else tuple(found), *told)


def _key(by: Any, expected: Any, binned: bool) -> tuple[Any, Any, Any]:
    """A key's integers, the groups that are expected among them, and these as they are told."""
    if not isinstance(by, Times):
        return by, expected, None
    given = np.asarray(expected) if expected is not None else np.asarray(0)
    if given.ndim != 1 or given.dtype.kind != by.dtype.kind:
        raise refusal(
            "groupby_reduce", f"as labels needs expected_groups=, an array of {by.dtype.name.partition('[')[0]}"
        )
    if bool(np.isnat(given).any()):
        raise ArgumentError("expected_groups= has NaT, which is in no group: leave it out")
    (key, groups), _dtype = same_unit([by, given])
    if not binned and len(np.unique(groups)) < len(groups):
        raise ArgumentError(f"expected_groups={expected!r} has a label twice: give each once")
    return key, groups, np.stack((given[:-1], given[1:]), axis=-1) if binned else given


_OF_GROUPS = [
    "min",
    "max",
    "nanmin",
    "nanmax",
    "argmin",
    "argmax",
    "first",
    "last",
    "count",
    "sum",
    "nansum",
    "mean",
    "nanmean",
]


def _reduced_groups(x: Times, names: Sequence[str], reduce: Callable[..., Any]) -> tuple[list[Any], Sequence[Any]]:
    """Results of functions of groups, by reductions of integers in them; and the groups."""
    (counts,) = x.parts()
    missing = is_nat(counts)
    present = np.where(missing, 0, counts)
    found: list[Any] = []
    labels: Sequence[Any] = ()

    def asked(values: Any, fn: str, **options: Any) -> Any:
        nonlocal labels
        result, *labels = reduce(values, fn, **options)
        return result

    for name in names:
        if name not in _OF_GROUPS:
            raise refusal(f"groupby_reduce(func={name!r})", f"is not known (it takes {', '.join(_OF_GROUPS)})")
        number = asked(~missing, "sum", dtype="i8")
        lost = asked(missing, "any")
        if name == "count":
            found.append(number)
        elif name in ("argmin", "argmax"):
            found.append(asked(counts if name == "argmin" else key(counts), name))
        elif name in ("min", "nanmax", "first", "last"):
            found.append(x.kept(asked(counts, name.removeprefix("nan"), fill_value=NAT)))
        elif name in ("max", "nanmin"):
            found.append(x.kept(unkey(asked(key(counts), name.removeprefix("nan"), fill_value=LATEST))))
        elif name in ("sum", "nansum"):
            _is_span(x, "a sum")
            total = asked(present, "sum")
            found.append(x.kept(total if name == "nansum" else np.where(lost, NAT, total)))
        else:
            bits, parts = _parts(present, counts.size)
            mean = _quotient([asked(part, "sum", dtype="i8") for part in parts], number, bits)
            found.append(x.kept(np.where(number == 0 if name == "nanmean" else lost | (number == 0), NAT, mean)))
    return found, labels


# -- Tables ----------------------------------------------------------------------------------------------------------


def _of_dtype(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    return np.result_type(*(each.dtype if isinstance(each, Times) else each for each in places))


def _rows(names: str, handler: Handler, numpys: Any = np) -> dict[Any, Handler]:
    """Rows for functions of NumPy's. An older NumPy may lack some."""
    return {vars(numpys)[name]: handler for name in names.split() if name in vars(numpys)}


FUNCTIONS: dict[Any, Handler] = {
    **_rows("transpose flip roll repeat copy reshape ravel squeeze expand_dims moveaxis swapaxes", _moved(0)),
    **_rows("broadcast_to tile split array_split hsplit vsplit dsplit rot90 fliplr flipud unstack", _moved(0)),
    **_rows("take take_along_axis delete matrix_transpose rollaxis diagonal diag resize tril triu", _moved(0)),
    **_rows("atleast_1d atleast_2d atleast_3d broadcast_arrays", _moved(0)),
    **_rows("sliding_window_view", _moved(0), np.lib.stride_tricks),
    **_rows("compress extract", _moved(1)),
    **_rows("concatenate stack hstack vstack dstack column_stack block", _alike(0)),
    **_rows("append", _alike(0, 1)),
    np.insert: _inserted,
    np.where: _chosen,
    np.select: _selected,
    **_rows("full_like zeros_like empty_like", _filled_like),
    np.sort: _sorted,
    **_rows("partition", _by_key(back=True)),
    **_rows("argsort argpartition argmax", _by_key(back=False)),
    **_rows("argmin count_nonzero any all nonzero flatnonzero argwhere shape ndim size", _by_count(back=False)),
    **_rows("min amin", _MIN),
    **_rows("max amax", _MAX),
    np.nanmin: _NANMIN,
    np.nanmax: _NANMAX,
    np.ptp: _spread,
    np.nanargmin: times_statistics.place,
    np.nanargmax: times_statistics.place,
    np.median: times_statistics.median(skips=False),
    np.nanmedian: times_statistics.median(skips=True),
    **_rows("quantile percentile", times_statistics.quantiles(skips=False)),
    **_rows("nanquantile nanpercentile", times_statistics.quantiles(skips=True)),
    np.gradient: times_statistics.gradients,
    np.sum: _summed(skips=False),
    np.nansum: _summed(skips=True),
    np.cumsum: _accumulated,
    np.mean: _mean(skips=False),
    np.nanmean: _mean(skips=True),
    np.diff: _differences,
    np.ediff1d: _steps,
    np.trace: _traced,
    np.clip: _clipped,
    np.pad: _padded,
    np.searchsorted: _searched,
    np.digitize: _searched,
    np.isin: _contained,
    **_rows("union1d setdiff1d setxor1d intersect1d", _of_sets),
    np.array_equal: _equal,
    np.unique: _distinct,
    np.histogram: _counted,
    np.result_type: _of_dtype,
}
"""How NumPy's functions of times give what NumPy's do."""

OPERATIONS: dict[Any, Handler] = {
    **{numpy_dispatch.FUNCTIONS[fn]: handler for fn, handler in FUNCTIONS.items()},
    unique.unique: _distinct,
    histogram.histogram: _counted,
    **dict.fromkeys((quantile.quantile, quantile.percentile), times_statistics.quantiles(skips=False)),
    **dict.fromkeys((quantile.nanquantile, quantile.nanpercentile), times_statistics.quantiles(skips=True)),
    group_reduce.groupby_reduce: _grouped,
}
"""The same by functions of chunkflow's."""

_REDUCE: dict[Any, Function] = {
    np.add: np.sum,
    np.minimum: np.min,
    np.maximum: np.max,
    np.fmin: np.nanmin,
    np.fmax: np.nanmax,
}


def reduced(fn: np.ufunc, method: str, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a ufunc's method gives of times."""
    table: dict[Any, Any] = {"reduce": _REDUCE, "accumulate": {np.add: np.cumsum}}.get(method, {})
    if method == "accumulate":  # there is no order of several axes
        check_int("axis", kwargs.get("axis", 0))
    if method == "accumulate" and fn in _REDUCE and fn is not np.add:
        handler = _by_key(back=True) if fn in (np.maximum, np.fmin) else _by_count(back=True)
        return handler(fn.accumulate, list(inputs), {"axis": 0, **kwargs})
    if fn not in table:
        raise refusal(f"np.{fn.__name__}.{method}")
    return function(table[fn], inputs, {"axis": 0, **kwargs})


def _unlisted(name: str) -> Exception:
    """The error of a function that times do not have."""
    if name == "chunkflow.rechunk":
        return refusal(name, "is not supported, but x.to_zarr(path, chunks=...) stores them with other chunks")
    return refusal(name)


HANDLERS = Handlers(FUNCTIONS, OPERATIONS, _unlisted)


def function(fn: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What one of NumPy's functions gives of times."""
    return args[0].astype(*args[1:], **kwargs) if fn is np.astype else HANDLERS.function(fn, args, kwargs)


operation = HANDLERS.operation
