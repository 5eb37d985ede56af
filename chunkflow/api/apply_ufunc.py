"""``apply_ufunc``: functions that need some dimensions whole, of arrays whose dimensions have names."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chunkflow.api import mapping
from chunkflow.api.labels import Dims, coordinates, laid, wrapped
from chunkflow.api.operation import check_delegated, check_passed, delegated
from chunkflow.core.grid import Shape
from chunkflow.core.units import listed
from chunkflow.errors import ArgumentError, ArgumentTypeError, ResultError, ResultTypeError, UnsupportedError
from chunkflow.graph.request import Stated
from chunkflow.kernels.map import is_scalar
from chunkflow.stores import is_labelled
from chunkflow.stores.foreign.xarray import arranged, held


def apply_ufunc(
    func: Callable[..., Any],
    *args: Any,
    input_core_dims: Sequence[Sequence[Hashable]] | None = None,
    output_core_dims: Sequence[Sequence[Hashable]] = ((),),
    exclude_dims: Collection[Hashable] = frozenset(),
    vectorize: bool = False,
    kwargs: Mapping[str, Any] | None = None,
    output_sizes: Mapping[Hashable, int] | None = None,
    **options: Any,
) -> Any:
    """Apply a function to labelled arrays block by block, with its core dimensions whole, as `xarray.apply_ufunc`.

    Parameters
    ----------
    func : callable
        ``func(*blocks, **kwargs)``, with blocks that broadcast and have their core dimensions last, in the order of
        `input_core_dims`. It returns an array with the core dimensions of the output last, or a tuple of arrays.
    *args : xarray.DataArray, xarray.Variable, scalar or None
        Dimensions of the same name are cut alike; scalars and None are passed on as they are.
    input_core_dims : sequence of sequences of hashable, optional
        For each argument the dimensions that are never cut; none by default.
    output_core_dims : sequence of sequences of hashable
        For each result the dimensions that follow those which are no core dimensions.
    exclude_dims : collection of hashable
        Core dimensions that may differ in length from one array to another, and whose coordinates are dropped.
    vectorize : bool
        Whether `func` takes core dimensions alone, and is called in a loop, on the CPU (`numpy.vectorize`).
    kwargs : dict, optional
        Passed to `func`.
    output_sizes : dict, optional
        Lengths of output core dimensions that no array has, or that are excluded.
    **options
        ``out, budget, dtype, device, progress, overwrite, sync, workspace`` as for `chunkflow.map`. Of an expression
        the result is one, too: it takes a budget in ``compute(budget="2GB")``, and `dtype` and `workspace` here.

    Returns
    -------
    xarray.DataArray, xarray.Variable or tuple of these
        With the first array's attributes, and the coordinates of all. As many as `output_core_dims` has entries.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Arrays without names, core dimensions that an array lacks, lengths that are not known or differ.
    UnsupportedError
        Results with different core dimensions that go to `out`, or have different dtypes: they are computed as one.
    BudgetError, ResultError, ResultTypeError, ReadError, WriteError
        As for `chunkflow.map`.

    Examples
    --------
    >>> import numpy as np, xarray as xr, chunkflow as cf
    >>> x = xr.DataArray([[3.0, 1.0, 2.0], [6.0, 5.0, 4.0]], dims=("station", "time"), attrs={"units": "m"})
    >>> cf.apply_ufunc(np.sort, x, input_core_dims=[["time"]], output_core_dims=[["time"]], device="cpu").values
    array([[1., 2., 3.],
           [4., 5., 6.]])
    """
    check_delegated("apply_ufunc", options, mapping.blockwise, func)
    arrays = [a for a in args if is_labelled(a)]
    core: list[Dims] = [tuple(dims) for dims in input_core_dims or [()] * len(args)]
    gives: list[Dims] = [tuple(dims) for dims in output_core_dims]
    if len(core) != len(args):
        raise ArgumentError(f"input_core_dims has {len(core)} entries for {len(args)} arguments: one for each")
    if not gives:
        raise ArgumentError("output_core_dims is empty: it has an entry for each result")
    differ, named = len(set(gives)) > 1, tuple(dict.fromkeys(d for dims in gives for d in dims))
    of_all = {d for dims in core for d in dims}
    for arg, dims in zip(args, core, strict=True):
        if not is_labelled(arg) and not is_scalar(arg):
            raise ArgumentTypeError(
                f"an array of type {type(arg).__name__} has no names of dimensions: make it an xarray.DataArray, or "
                "call chunkflow.apply_gufunc, which needs none"
            )
        own = arg.dims if is_labelled(arg) else ()
        if set(dims) - set(own):
            raise ArgumentError(
                f"input_core_dims names {dims} for an array with dimensions {own}: name only dimensions that it has"
            )
        if of_all.difference(dims) & set(own):
            raise ArgumentError(
                f"an array with dimensions {own} has a core dimension of another array, which its own entry {dims} in "
                "input_core_dims lacks: name it there too, or rename it"
            )
    loops = tuple(dict.fromkeys(d for a in arrays for d in a.dims if d not in of_all))
    if set(named) & set(loops):
        raise ArgumentError(
            f"output_core_dims={output_core_dims!r} has dimensions that are no core dimensions of an input, "
            f"{tuple(d for d in named if d in loops)}: name them in input_core_dims too"
        )
    lengths = {d: n for a in arrays for d, n in a.sizes.items() if d not in exclude_dims} | dict(output_sizes or {})
    if unknown := [d for d in named if d not in lengths]:
        raise ArgumentError(
            f"the lengths of the output's dimensions {unknown} are not known: give them in output_sizes="
        )

    coords = coordinates(arrays, exclude_dims)
    pairs: list[Any] = []
    orders: list[tuple[Dims, Dims] | None] = []
    for place, (arg, dims) in enumerate(zip(args, core, strict=True)):
        if not is_labelled(arg):
            pairs += [arg, None]
            orders.append(None)
            continue
        # A core dimension is contracted, so that it is never cut; one that is excluded is each array's own.
        index = tuple((place, d) if d in exclude_dims else ("core", d) if d in dims else d for d in arg.dims)
        pairs += [held(getattr(arg, "variable", arg)), index]
        orders.append((arg.dims, (*laid([d for d in arg.dims if d not in dims], loops), *dims)))
    if vectorize:
        func = np.vectorize(func, signature=_signature(core, gives, exclude_dims))
    given = dict(kwargs or {})
    check_passed("apply_ufunc", given)

    def work(*blocks: Any) -> Any:
        both = zip(blocks, orders, strict=True)
        return func(*(b if order is None else arranged(b, *order) for b, order in both), **given)

    stated, ends = Stated(work, len(gives)), gives[0]
    shapes = [tuple(lengths[d] for d in dims) for dims in gives]
    if differ:
        stated, ends = Stated(_InOne(stated, shapes), 1), (_IN_ONE,)
        lengths[_IN_ONE], options = sum(map(math.prod, shapes)), _of_one(options, output_core_dims)
    result = delegated(
        "apply_ufunc",
        mapping.blockwise,
        stated,
        (*loops, *(("out", d) for d in ends)),
        *pairs,
        new_axes={("out", d): lengths[d] for d in ends},
        **options,
    )
    lasting = {*loops, *(d for d in named if d not in exclude_dims)}
    results = _parts(result, shapes) if differ else result if isinstance(result, tuple) else (result,)
    found = tuple(wrapped(r, (*loops, *dims), lasting, arrays, coords) for r, dims in zip(results, gives, strict=True))
    return found if isinstance(result, tuple) or differ else found[0]


_IN_ONE: Hashable = ("results", "in one")
"""The dimension of several results that are computed as one."""


@dataclass(frozen=True)
class _InOne:
    """A function of several results, which follow one another along one axis; `shapes` are their core ones."""

    func: Stated
    shapes: Sequence[Shape]

    def __call__(self, *blocks: Any) -> Any:
        found = [one if hasattr(one, "dtype") else np.asarray(one) for one in self.func(*blocks)]
        kinds = list(dict.fromkeys(str(one.dtype) for one in found))
        if len(kinds) > 1:
            raise ResultTypeError(
                f"fn returned {listed(kinds)}, and results with different core dimensions are computed as one: give "
                "them one dtype, or call apply_ufunc for each result"
            )
        flat: list[Any] = []
        for one, shape in zip(found, self.shapes, strict=True):
            first = one.ndim - len(shape)
            if one.shape[max(first, 0) :] != shape:
                raise ResultError(
                    f"fn returned shape {one.shape}; output_core_dims and output_sizes say that it ends in {shape}"
                )
            flat.append(one.reshape(*one.shape[:first], math.prod(shape)))
        loops = np.broadcast_shapes(*(one.shape[:-1] for one in flat))
        return np.concatenate([np.broadcast_to(one, (*loops, one.shape[-1])) for one in flat], axis=-1)


def _of_one(options: Mapping[str, Any], dims: Any) -> dict[str, Any]:
    """The options of results that are computed as one."""
    told = options.get("dtype")
    kinds = set(map(np.dtype, told)) if isinstance(told, tuple) else {told}
    if options.get("out") is not None or len(kinds) > 1:
        wrong = "out" if options.get("out") is not None else "dtype"
        raise UnsupportedError(
            f"{wrong}={options[wrong]!r}, and results with different core dimensions, {dims!r}, are computed as one: "
            "leave it out, or call apply_ufunc for each result"
        )
    return {**options, "dtype": kinds.pop()} if "dtype" in options else dict(options)


def _parts(result: Any, shapes: Sequence[Shape]) -> list[Any]:
    """The results that follow one another along the last axis."""
    found, start = [], 0
    for shape in shapes:
        stop = start + math.prod(shape)
        found.append(result[..., start:stop].reshape(*result.shape[:-1], *shape))
        start = stop
    return found


def _signature(core: Sequence[Dims], ends: Sequence[Dims], exclude: Collection[Hashable]) -> str:
    """Signature for `numpy.vectorize`; what is excluded has a name of its own for each array.

    >>> _signature([("time",), ("time", "lon")], [("lon",)], ())
    '(d0),(d0,d1)->(d1)'
    """
    names: dict[Hashable, str] = {}

    def side(lists: Sequence[Dims], first: int) -> str:
        each = ([(place, d) if d in exclude else d for d in dims] for place, dims in enumerate(lists, first))
        return ",".join(f"({','.join(names.setdefault(d, f'd{len(names)}') for d in dims)})" for dims in each)

    return f"{side(core, 0)}->{side(ends, len(core))}"
