"""``apply_ufunc``: functions that need some dimensions whole, of arrays whose dimensions have names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from chunkflow.api import mapping
from chunkflow.api.labels import Dims, coordinates, laid, wrapped
from chunkflow.api.operation import check_delegated, check_passed, delegated
from chunkflow.errors import ArgumentError, ArgumentTypeError, UnsupportedError
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
        For each result the dimensions that follow those which are no core dimensions. Several results have the same.
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
        Results with different core dimensions.
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
    gives = {tuple(dims) for dims in output_core_dims}
    if len(core) != len(args):
        raise ArgumentError(f"input_core_dims has {len(core)} entries for {len(args)} arguments: one for each")
    if len(gives) != 1:
        raise UnsupportedError(f"output_core_dims={output_core_dims!r} differ: call apply_ufunc for each result")
    (ends,) = gives
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
    if set(ends) & set(loops):
        raise ArgumentError(
            f"output_core_dims={ends} has dimensions that are no core dimensions of an input, "
            f"{tuple(d for d in ends if d in loops)}: name them in input_core_dims too"
        )
    lengths = {d: n for a in arrays for d, n in a.sizes.items() if d not in exclude_dims} | dict(output_sizes or {})
    if unknown := [d for d in ends if d not in lengths]:
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
        func = np.vectorize(func, signature=_signature(core, [ends] * len(output_core_dims), exclude_dims))
    given = dict(kwargs or {})
    check_passed("apply_ufunc", given)

    def work(*blocks: Any) -> Any:
        both = zip(blocks, orders, strict=True)
        return func(*(b if order is None else arranged(b, *order) for b, order in both), **given)

    result = delegated(
        "apply_ufunc",
        mapping.blockwise,
        Stated(work, len(output_core_dims)),
        (*loops, *(("out", d) for d in ends)),
        *pairs,
        new_axes={("out", d): lengths[d] for d in ends},
        **options,
    )
    lasting = {*loops, *(d for d in ends if d not in exclude_dims)}
    if isinstance(result, tuple):
        return tuple(wrapped(r, (*loops, *ends), lasting, arrays, coords) for r in result)
    return wrapped(result, (*loops, *ends), lasting, arrays, coords)


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
