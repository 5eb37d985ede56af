"""xarray's accessor ``x.chunkflow``, which is registered by the import, and its manager of chunks.

>>> import xarray as xr, chunkflow.xarray
>>> x = xr.DataArray([[1.0, 2.0], [3.0, 5.0]], dims=("lat", "lon"))
>>> x.chunkflow.mean(dim="lon", device="cpu").values
array([1.5, 4. ])
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import math
import operator
import os
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

import chunkflow
from chunkflow.api.lazy.open import ChunkedArray
from chunkflow.core.settings import temporary_directory
from chunkflow.core.spec import default_chunks
from chunkflow.errors import ArgumentError, BudgetError, ChunkflowError, ResultTypeError, UnsupportedError
from chunkflow.graph.nodes import SourceNode, node_of
from chunkflow.graph.outputs import leaves
from chunkflow.kernels.linalg.lines import fitted
from chunkflow.kernels.statistics.ranks import ranked
from chunkflow.stores.foreign.wrapped import file_of
from chunkflow.stores.foreign.xarray import StoredVariable, held
from chunkflow.stores.publication.claim import Claim
from chunkflow.stores.publication.publish import publish
from chunkflow.stores.publication.settle import settle
from chunkflow.stores.registry import open_target
from chunkflow.stores.zarr.groups import consolidate, default_format, location_of_group, outermost
from chunkflow.system import interrupts
from chunkflow.system.deferred import instance_of
from chunkflow.system.optional import missing

try:
    import xarray
    from xarray import conventions
    from xarray.backends.zarr import ZarrStore, extract_zarr_variable_encoding
    from xarray.computation import computation, fit
    from xarray.computation.rolling import DataArrayRolling
    from xarray.core import _aggregations, dtypes, duck_array_ops, variable
    from xarray.core.common import DataWithCoords
    from xarray.core.groupby import GroupBy
    from xarray.core.indexing import NumpyIndexingAdapter, PandasIndexingAdapter, VectorizedIndexer
    from xarray.namedarray.daskmanager import DaskManager
    from xarray.namedarray.parallelcompat import ChunkManagerEntrypoint
except ModuleNotFoundError as error:
    raise missing(error, "xarray", "chunkflow.xarray", "xarray") from error

T = TypeVar("T")

_is_zarr_array = instance_of("zarr", "Array")

_REDUCTIONS = (
    "all any argmax argmin average count_nonzero max mean median min norm percentile prod ptp quantile reduction"
)
_NAN = "nanargmax nanargmin nanmax nanmean nanmedian nanmin nanpercentile nanprod nanquantile nanstd nansum nanvar"
_OTHERS = "chunks copy cumprod cumsum diff maximum_accumulate minimum_accumulate open std sum transpose var"
_OF_THE_ARRAY = frozenset(f"{_REDUCTIONS} {_NAN} {_OTHERS}".split())
_OF_A_FUNCTION = frozenset({"apply_ufunc", "map", "map_overlap"})


@xarray.register_dataarray_accessor("chunkflow")  # type: ignore[no-untyped-call]
class Accessor:
    """chunkflow's operations as methods of a DataArray: ``x.chunkflow.mean(dim="time", budget="4GB")``.

    ``x.chunkflow.map(fn, *others)`` is ``chunkflow.map(fn, x, *others)``, and so with `map_overlap` and `apply_ufunc`.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> import chunkflow.xarray
    >>> x = xr.DataArray(np.ones((3, 4)), dims=("time", "lon"))
    >>> x.chunkflow.nanmean(dim="time", device="cpu").dims
    ('lon',)
    """

    def __init__(self, array: xarray.DataArray) -> None:
        self._array = array

    def __dir__(self) -> list[str]:
        return sorted(_OF_THE_ARRAY | _OF_A_FUNCTION)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in _OF_THE_ARRAY:
            return functools.partial(getattr(chunkflow, name), self._array)
        if name in _OF_A_FUNCTION:
            work = getattr(chunkflow, name)
            return lambda fn, *others, **options: work(fn, self._array, *others, **options)
        raise AttributeError(f"DataArray.chunkflow has no {name!r}: it has {', '.join(dir(self))}")


class _Functions:
    """NumPy's functions for xarray: what it fills (``zeros_like``, ``full_like``) is an expression of no memory."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def full(self, shape: Any, fill_value: Any, dtype: Any = None, **options: Any) -> Any:
        """An array of one value. xarray gives its chunks, too."""
        filled = np.broadcast_to(np.asarray(fill_value, dtype), shape)
        return ChunkedArray(SourceNode(filled)) if filled.dtype.kind in "biufc" else filled


_AUTO = 1 << 27


def _each_axis(chunks: Any, ndim: int) -> Sequence[Any]:
    return chunks if isinstance(chunks, tuple | list) else (chunks,) * ndim


def _side(asked: Any, length: int) -> int | None:
    """The length of chunks along an axis, of which one or all lengths are given; None if any will do.

    >>> [_side(asked, 10) for asked in (3, -1, 20, (4, 4, 2), "auto")]
    [3, 10, 10, 4, None]
    """
    first = next(iter(asked), None) if isinstance(asked, tuple | list) else asked
    if isinstance(first, str) or first is None:
        return None
    return length if first == -1 else max(min(operator.index(first), length), 1)


class ChunkManager(ChunkManagerEntrypoint[Any]):
    """Lets xarray make (``chunked_array_type="chunkflow"``), compute and store chunkflow's expressions.

    These are missing and raise NotImplementedError: ``scan`` and ``blockwise``.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> xr.DataArray(np.ones((3, 4)), name="t").to_dataset().to_zarr("t.zarr", consolidated=False)  # doctest: +ELLIPSIS
    <xarray...>
    >>> ds = xr.open_zarr("t.zarr", chunks={}, chunked_array_type="chunkflow", consolidated=False)
    >>> float(ds.t.mean().compute(budget="8MB", device="cpu"))
    1.0
    """

    def __init__(self) -> None:
        self.array_cls = ChunkedArray

    def is_chunked_array(self, data: Any) -> bool:
        """Whether it is an expression, also one that was wrapped before this module was imported."""
        return isinstance(data, chunkflow.Array)

    def chunks(self, data: Any) -> tuple[tuple[int, ...], ...]:
        """See `xarray.namedarray.parallelcompat.ChunkManagerEntrypoint.chunks`."""
        return data.chunks  # type: ignore[no-any-return]

    def normalize_chunks(self, chunks: Any, shape: Any = None, *args: Any, **kwargs: Any) -> Any:
        """One chunk along each axis: blocks are planned when an expression runs."""
        return tuple((n,) for n in shape)

    def from_array(self, data: Any, chunks: Any, **kwargs: Any) -> Any:
        """Make an expression of an array of numbers; other arrays, such as times, are loaded."""
        return ChunkedArray(SourceNode(data)) if np.dtype(data.dtype).kind in "biufc" else np.asarray(data)

    def get_auto_chunk_size(self) -> int:
        """Bytes of a chunk, of which xarray asks for dates of calendars that NumPy has not. They are loaded."""
        return _AUTO

    def rechunk(self, data: Any, chunks: Any, **kwargs: Any) -> Any:
        """The same elements in chunks of which a zarr array is made: blocks are planned when an expression runs."""
        asked = chunks if isinstance(chunks, Mapping) else dict(enumerate(_each_axis(chunks, data.ndim)))
        given = {axis: _side(side, data.shape[axis]) for axis, side in asked.items()}
        sides = {axis: side for axis, side in given.items() if side is not None}
        if not sides:
            return data
        rest = [axis for axis in range(data.ndim) if axis not in sides]
        known = getattr(data, "_sides", None)
        others: Sequence[int] = [known[axis] for axis in rest] if known else ()
        if not known:
            bytes_each = data.dtype.itemsize * max(math.prod(sides.values()), 1)
            others = default_chunks(tuple(data.shape[axis] for axis in rest), bytes_each)
        sides |= dict(zip(rest, others, strict=True))
        return ChunkedArray(node_of(data), tuple(sides[axis] for axis in range(data.ndim)))

    def unify_chunks(self, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], list[Any]]:
        """Arrays as they are, each with the names of its axes behind it, and one chunk along each axis."""
        arrays, names = list(args[::2]), args[1::2]
        pairs = zip(arrays, names, strict=True)
        return {name: (n,) for x, axes in pairs for name, n in zip(axes, np.shape(x), strict=True)}, arrays

    def shuffle(self, x: Any, indexer: Sequence[Sequence[int]], axis: int, chunks: Any) -> Any:
        """Elements along an axis in another order, as they lie in groups."""
        return np.take(x, np.concatenate([np.asarray(places, np.intp) for places in indexer]), axis=axis)

    def compute(self, *data: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Compute all in as few passes as there can be; ``x.compute(budget="4GB")`` says how."""
        return tuple(map(np.asarray, chunkflow.compute(list(data), **kwargs)))

    def persist(self, *data: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Expressions of what `compute` gives, which the host's memory holds."""
        return tuple([ChunkedArray(SourceNode(found)) for found in self.compute(*data, **kwargs)])

    @property
    def array_api(self) -> Any:
        """NumPy's functions, which take expressions; its `full` makes one."""
        return _Functions()

    def map_blocks(self, func: Callable[..., Any], *args: Any, dtype: Any = None, **kwargs: Any) -> Any:
        """Apply an elementwise function."""
        return chunkflow.map(func, *args, dtype=dtype, **kwargs)

    def reduction(
        self,
        arr: Any,
        func: Callable[..., Any],
        combine_func: Callable[..., Any] | None = None,
        aggregate_func: Callable[..., Any] | None = None,
        axis: int | Sequence[int] | None = None,
        dtype: Any = None,
        keepdims: bool = False,
    ) -> Any:
        """Reduce along an axis, of which blocks have whole lines: as if there were one chunk along it."""
        last = func if aggregate_func is None else aggregate_func
        axes = np.atleast_1d(np.arange(arr.ndim) if axis is None else axis) % arr.ndim
        along = axis if axis is None or isinstance(axis, Sequence) else int(axis)

        def whole(block: Any) -> Any:
            return last(func(block, axis=along, keepdims=True), axis=along, keepdims=False)

        kept = [n for n in range(arr.ndim) if n not in axes]
        found = chunkflow.blockwise(whole, tuple(kept), arr, tuple(range(arr.ndim)), dtype=dtype)
        return np.expand_dims(found, tuple(axes.tolist())) if keepdims else found

    def apply_gufunc(
        self,
        func: Callable[..., Any],
        signature: str,
        *args: Any,
        output_dtypes: Sequence[Any] | None = None,
        output_sizes: Mapping[Hashable, int] | None = None,
        vectorize: bool | None = False,
        **kwargs: Any,
    ) -> Any:
        """See `xarray.apply_ufunc` with ``dask="parallelized"``: it becomes `chunkflow.apply_ufunc`."""
        taken, given = (
            [[d for d in part.strip("()").split(",") if d] for part in side.replace("),(", ");(").split(";")]
            for side in signature.replace(" ", "").split("->")
        )
        # What has core dimensions alone is the same for every block, as times to which `interp` fits lines are.
        fixed = {
            i: np.asarray(array)
            for i, (array, core) in enumerate(zip(args, taken, strict=True))
            if not isinstance(array, chunkflow.Array) and np.ndim(array) == len(core)
        }
        variables = []
        for i, (array, core) in enumerate(zip(args, taken, strict=True)):
            if i not in fixed:
                loops = np.ndim(array) - len(core)
                variables.append(xarray.Variable([*(f"loop{i}" for i in range(loops, 0, -1)), *core], array))
        # What a function gives has its own dtype, as with dask; of several results each must be told.
        told = None if output_dtypes is None or len(given) == 1 else tuple(map(np.dtype, output_dtypes))

        def work(*blocks: Any) -> Any:
            following = iter(blocks)
            found = func(*(fixed[i] if i in fixed else next(following) for i in range(len(args))))
            for one, dtype in zip(found, told or (), strict=False):
                given_dtype = np.asarray(one).dtype if np.isscalar(one) else one.dtype
                if not np.can_cast(given_dtype, dtype):
                    raise ResultTypeError(
                        f"the function gives {given_dtype}, and output_dtypes={output_dtypes!r} says {dtype}, which "
                        "does not hold it: give the dtypes of what it returns"
                    )
            return found

        result = chunkflow.apply_ufunc(
            work if fixed or told else func,
            *variables,
            input_core_dims=[core for i, core in enumerate(taken) if i not in fixed],
            output_core_dims=given,
            vectorize=bool(vectorize),
            output_sizes=output_sizes,
            dtype=told,
        )
        return tuple(r.data for r in result) if isinstance(result, tuple) else result.data

    def store(self, sources: Any, targets: Any, **kwargs: Any) -> None:
        """Compute into a store, in as few passes as there can be: ``to_zarr(path)`` streams.

        Raises
        ------
        UnsupportedError
            ``compute=False``.
        """
        _refuse_later(kwargs)
        regions = kwargs.get("regions") or [None] * len(targets)
        places = [WritableRegion.of(target, region or ()) for target, region in zip(targets, regions, strict=True)]
        options = {name: kwargs[name] for name in ("budget", "device", "progress") if name in kwargs}
        chunkflow.store(list(sources), places, **options)


# -- What xarray leaves to other libraries ----------------------------------------------------------------------------


def _taught(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Put a function in the place of a library's own, which it gets as its first argument.

    These are not public, and there are no hooks for them: what a version of the library lacks is left out.
    """

    def teach(ours: Callable[..., Any]) -> Callable[..., Any]:
        theirs = getattr(owner, name, None)
        if theirs is not None:

            @functools.wraps(theirs)
            def call(*args: Any, **kwargs: Any) -> Any:
                return ours(theirs, *args, **kwargs)

            setattr(owner, name, call)
        return ours

    return teach


@_taught(variable, "as_compatible_data")
def _wrapped(theirs: Any, data: Any, fastpath: bool = False) -> Any:
    """What a variable holds: of an expression that a user wraps, one that tells xarray of its chunks."""
    chunked = isinstance(data, chunkflow.Array) and not isinstance(data, ChunkedArray)
    return ChunkedArray(data._node) if chunked else theirs(data, fastpath)


@_taught(DaskManager, "is_chunked_array")
def _is_dasks(theirs: Any, manager: Any, data: Any) -> bool:
    """A lazy array is a collection of dask's, too, and xarray wants one manager for each array."""
    return not isinstance(data, chunkflow.Array) and bool(theirs(manager, data))


@_taught(xarray.DataArray, "chunk")
@_taught(xarray.Dataset, "chunk")
@_taught(variable.Variable, "chunk")
def _chunked(theirs: Any, found: Any, *args: Any, **kwargs: Any) -> Any:
    """Expressions stay expressions, also where dask is installed, unless an array of dask's is asked for."""
    given = inspect.signature(theirs).bind_partial(found, *args, **kwargs).arguments
    if given.get("chunked_array_type") is None and _has_expression(found):
        kwargs["chunked_array_type"] = "chunkflow"
    return theirs(found, *args, **kwargs)


@_taught(importlib.import_module(xarray.apply_ufunc.__module__), "apply_variable_ufunc")
def _applied(theirs: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Expressions have whole lines along core dimensions, whatever chunks they tell of."""
    if kwargs.get("dask") == "parallelized" and any(isinstance(getattr(x, "_data", x), chunkflow.Array) for x in args):
        kwargs["dask_gufunc_kwargs"] = {"allow_rechunk": True, **(kwargs.get("dask_gufunc_kwargs") or {})}
    return theirs(func, *args, **kwargs)


@_taught(DaskManager, "from_array")
def _given_to_dask(theirs: Any, manager: Any, data: Any, chunks: Any, **kwargs: Any) -> Any:
    """Of a lazy array, which ``x.chunk(time=20, chunked_array_type="dask")`` gives: dask computes none of its parts."""
    if isinstance(data, chunkflow.Array):
        return data.to_dask().rechunk(chunks)
    return theirs(manager, data, chunks, **kwargs)


def _writers() -> Any:
    """Xarray's module with the function that writes zarr, which older versions have elsewhere."""
    found = importlib.util.find_spec("xarray.backends.writers")
    return importlib.import_module("xarray.backends.api" if found is None else "xarray.backends.writers")


def _given_to(theirs: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Arguments of a call by their names."""
    given = dict(inspect.signature(theirs).bind(*args, **kwargs).arguments)
    return {**given, **given.pop("kwargs", {})}


@dataclass
class _Storing:
    """A call of `to_zarr`: arguments of its runs, attributes that wait for its checks, and arrays that it lengthens."""

    options: Mapping[str, Any]
    awaiting: list[Any] | None = None
    grown: list[tuple[Any, str, tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    claim: Claim | None = None


_storing: ContextVar[_Storing | None] = ContextVar("chunkflow_storing", default=None)


@_taught(_writers(), "to_zarr")
@interrupts.deferred()
def _stored(theirs: Any, dataset: xarray.Dataset, *args: Any, **kwargs: Any) -> Any:
    """Of a dataset with expressions: with chunks that fit the budget, refused before xarray makes or empties a store.

    A block of chunkflow's has whole chunks, whatever they are: they need not lie in those that xarray supposes.
    """
    given = _given_to(theirs, dataset, *args, **kwargs)
    if not _have_expressions([dataset]):
        return theirs(dataset, *args, **kwargs)
    _refuse_later(given)
    options, encoding = given.get("chunkmanager_store_kwargs") or {}, dict(given.get("encoding") or {})
    token = _storing.set(call := _Storing(options))
    try:
        if given.get("mode") not in (None, "w", "w-") or given.get("append_dim") or given.get("region"):
            call.claim = _claimed(given)
            others = any(v.chunks is not None for v in dataset.variables.values() if not _is_expression(v))
            return theirs(**{**given, "safe_chunks": given.get("safe_chunks", True) and others})  # arrays have chunks
        if given.get("mode") == "w":
            _refuse_emptied([dataset], _root_of(given))
        dataset, encoding = _in_chunks(dataset, encoding, given.get("zarr_format"), options)
        return _new_store(theirs, {**given, "dataset": dataset, "encoding": encoding})
    except BaseException as error:
        _shortened(call)
        _reworded(error, options)
        raise
    finally:
        _storing.reset(token)
        if call.claim is not None:
            call.claim.end()


@_taught(_writers(), "_datatree_to_zarr")
@interrupts.deferred()
def _tree_stored(theirs: Any, tree: Any, *args: Any, **kwargs: Any) -> Any:
    """As `_stored`, of all datasets of a tree."""
    given = _given_to(theirs, tree, *args, **kwargs)
    datasets = {node.path: node.to_dataset(inherit=False) for node in tree.subtree}
    if not _have_expressions(datasets.values()):
        return theirs(tree, *args, **kwargs)
    _refuse_later(given)
    options, encoding = given.get("chunkmanager_store_kwargs") or {}, given.get("encoding") or {}
    token = _storing.set(_Storing(options))
    try:
        if given.get("mode", "w-") == "w":
            _refuse_emptied(datasets.values(), _root_of(given))
        if given.get("mode", "w-") in ("w", "w-"):
            for path, dataset in datasets.items():
                _in_chunks(dataset, dict(encoding.get(path) or {}), given.get("zarr_format"), options)
            return _new_store(theirs, given)
        return theirs(tree, *args, **kwargs)
    except BaseException as error:
        _reworded(error, options)
        raise
    finally:
        _storing.reset(token)


def _have_expressions(datasets: Iterable[xarray.Dataset]) -> bool:
    return any(_is_expression(v) for dataset in datasets for v in dataset.variables.values())


def _refuse_later(given: Mapping[str, Any]) -> None:
    if not given.get("compute", True):
        raise UnsupportedError(
            "compute=False is not supported: leave it out, and store when the result is wanted. Nothing was written"
        )


def _new_store(theirs: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Write a whole store. At a path it appears when all is written, in the place of an older one."""
    store, replaces = given.get("store"), given.get("mode") == "w"
    is_path = isinstance(store, str | os.PathLike) and "://" not in (name := os.fspath(store))
    if not is_path or given.get("group") or given.get("storage_options") or name.endswith(".zip"):
        return theirs(**given)
    path = os.path.realpath(os.path.expanduser(name))
    if os.path.lexists(path) and not (replaces and os.path.isdir(path)):
        return theirs(**given)  # which refuses it
    os.makedirs(os.path.dirname(path), exist_ok=True)
    found = _as_one([path], replaces, lambda hidden: theirs(**{**given, "store": hidden[0]}))
    return ZarrStore.open_group(path, mode="r+", consolidated=False) if isinstance(found, ZarrStore) else found


def _as_one(paths: Sequence[str], replaces: bool, write: Callable[[list[str]], T]) -> T:
    """Write under hidden names, which are those of the paths once all is written.

    In a directory that takes no further file, it is written to the paths themselves.
    """
    claims: list[Claim] = []
    try:
        try:
            claims += [Claim(path, overwrite=replaces) for path in paths]
        except PermissionError:
            return write([*paths])
        found = write([claim.partial for claim in claims])
        publish(claims, lambda: None)
    except BaseException as error:
        for claim in claims:
            claim.end()
            error.args = tuple(
                said.replace(claim.partial, claim.name) if isinstance(said, str) else said for said in error.args
            )
        raise
    return found


def _in_chunks(
    dataset: xarray.Dataset, encoding: dict[Hashable, Any], version: Any, options: Mapping[str, Any]
) -> tuple[xarray.Dataset, dict[Hashable, Any]]:
    """A dataset for new arrays, encoded, with chunks that fit the budget; and what is left of its encoding."""
    found = _encoded(dataset, encoding)
    _check_encoding(dataset, encoding, found, version)
    asked = {name: v.encoding.pop("chunks", None) or _sides_of(dataset.variables[name]) for name, v in found.items()}
    fitting = _planned_chunks(found, asked, ".zarr", options)
    for name, v in found.items():
        v.data = ChunkedArray(node_of(v.data), asked[name] or fitting[name])
    coordinates = {name: v for name, v in found.items() if name in dataset.coords}
    dataset = dataset.assign_coords(coordinates).assign({n: v for n, v in found.items() if n not in coordinates})
    return dataset, {name: own for name, own in encoding.items() if name not in found}


def _check_encoding(
    dataset: xarray.Dataset, encoding: Mapping[Hashable, Any], encoded: Mapping[Hashable, xarray.Variable], version: Any
) -> None:
    """Refuse names that zarr's encoding has not, as xarray does, which would empty the store before."""
    version = version or default_format()
    for name, own in encoding.items():
        v = dataset.variables[name].copy(deep=False)
        v.encoding = dict(own)
        v = encoded[name] if name in encoded else conventions.encode_cf_variable(v, name=name)
        _refuse_strange(name, v, version)


def _refuse_strange(name: Hashable, v: xarray.Variable, version: int) -> None:
    extract_zarr_variable_encoding(v, raise_on_invalid=True, name=name, zarr_format=2 if version == 2 else 3)


def _sides_of(v: xarray.Variable) -> tuple[int, ...] | None:
    return getattr(v._data, "_sides", None)


@_taught(ZarrStore, "set_attributes")
def _described(theirs: Any, store: Any, attributes: Any) -> None:
    """Attributes of a store that is there are changed once all is checked that `_placed` checks."""
    call = _storing.get()
    if call is not None and call.awaiting is None and store._mode in _THERE:
        call.awaiting = [attributes]
    else:
        theirs(store, attributes)


_THERE = ("a", "a-", "r+")
"""Modes that leave in a store what is there."""


@_taught(ZarrStore, "set_variables")
def _placed(
    theirs: Any, store: Any, variables: Mapping[Any, Any], check_encoding_set: Any, *args: Any, **kw: Any
) -> Any:
    """Of expressions that go into a store that is there: planned and refused before any array is made longer."""
    call = _storing.get() or _Storing({})
    if store._mode in _THERE and any(map(_is_expression, variables.values())):
        variables = _planned_there(store, variables, check_encoding_set, call)
    for attributes in call.awaiting or ():
        store.set_attributes(attributes)
    call.awaiting = None
    return theirs(store, variables, check_encoding_set, *args, **kw)


def _planned_there(store: Any, variables: Mapping[Any, Any], checked: Any, call: _Storing) -> dict[Any, Any]:
    """The variables, with chunks for those that are new. Those that grow are noted."""
    there, grown, places = set(store.array_keys()), [], dict[Any, Any]()
    written: list[tuple[Any, Any]] = []
    for name, v in variables.items():
        if name in checked:
            _refuse_strange(name, v, store.zarr_group.metadata.zarr_format)
        if name not in there:
            continue
        array = store._open_existing_array(name=name)
        region = tuple((store._write_region or {}).get(dim, slice(None)) for dim in v.dims)
        if store._append_dim is not None and store._append_dim in v.dims:
            axis = v.dims.index(store._append_dim)
            longer = (*array.shape[:axis], array.shape[axis] + v.shape[axis], *array.shape[axis + 1 :])
            grown.append((store, name, array.shape, longer))
            place = chunkflow.ExistingArray(array, append=axis)
        else:
            place = WritableRegion.of(array, region)
            if not _is_expression(v) and v.size:
                written.append((name, place))
        if _is_expression(v):
            places[name] = place
    for name, place in written:
        _refuse_replaced(name, place, variables)
    lazy = {name: v.copy(deep=False) for name, v in variables.items() if _is_expression(v)}
    asked = {name: v.encoding.pop("chunks", None) or _sides_of(v) for name, v in lazy.items() if name not in places}
    for name, sides in _planned_chunks(lazy, asked, ".zarr", call.options, places).items():
        if name in asked:
            lazy[name].data = ChunkedArray(node_of(lazy[name]._data), asked[name] or sides)
    call.grown += grown
    if call.claim is not None and grown:
        call.claim.say({"lengths": {name: [before, longer] for _, name, before, longer in grown}}, sync=True)
    return {**variables, **{name: v for name, v in lazy.items() if name in asked}}


def _refuse_replaced(name: Hashable, place: Any, variables: Mapping[Any, xarray.Variable]) -> None:
    """Refuse to write elements from memory, as xarray does at once, to where an expression reads later."""
    target = None
    with suppress(ChunkflowError):  # strings and the like, of which no expression is made
        target = open_target(place).footprint
    for other, v in variables.items():
        if target is not None and _is_expression(v):
            for leaf in _leaves(v):
                if leaf.footprint is not None and leaf.footprint.within(leaf.shape).overlaps(target):
                    raise ArgumentError(
                        f"{other} reads from the stored {name}, which to_zarr replaces before it computes {other}: "
                        f"store {other} first, or to another store"
                    )


def _claimed(given: Mapping[str, Any]) -> Claim | None:
    """A claim on a group in a directory to which elements are appended: it notes the lengths that arrays had before.

    Another append that was killed is undone first. None where no file can lie beside the store.
    """
    place = _root_of(given) if given.get("append_dim") else None
    if place is None or not os.path.isdir(place):
        return None
    with suppress(PermissionError):
        return Claim(place, outermost(place))
    return None


def _shortened(call: _Storing) -> None:
    """Arrays that the call made longer, and did not fill, get their lengths back, unless others changed them since."""
    if call.claim is not None:
        call.claim.leave()
        with suppress(Exception):  # an error is on its way, and what is left is settled later
            settle(call.claim.path)
        return
    stores = []
    for store, name, before, longer in call.grown:
        with suppress(Exception):  # an error is on its way
            array = store._open_existing_array(name=name)
            if array.shape == longer:
                array.resize(before)
                stores += [] if store in stores else [store]
    for store in stores:
        with suppress(Exception):
            if store._consolidate_on_close:
                consolidate(store.zarr_group)


@_taught(_writers(), "to_netcdf")
@interrupts.deferred()
def _written(theirs: Any, dataset: xarray.Dataset, *args: Any, **kwargs: Any) -> Any:
    """Of a dataset with expressions: refused before xarray makes or empties a file, which appears whole."""
    given = _given_to(theirs, dataset, *args, **kwargs)
    return _file_written(theirs, given, [dataset], [given.get("encoding") or {}], "path_or_file")


@_taught(_writers(), "_datatree_to_netcdf")
@interrupts.deferred()
def _tree_written(theirs: Any, tree: Any, *args: Any, **kwargs: Any) -> Any:
    """As `_written`, of all datasets of a tree."""
    given = _given_to(theirs, tree, *args, **kwargs)
    datasets = [node.to_dataset(inherit=False) for node in tree.subtree]
    return _file_written(theirs, given, datasets, [{}] * len(datasets), "filepath")


def _file_written(
    theirs: Any, given: dict[str, Any], datasets: Sequence[xarray.Dataset], encodings: Sequence[Any], where: str
) -> Any:
    _refuse_read(datasets, [given.get(where)])
    if not _have_expressions(datasets):
        return theirs(**given)
    _refuse_later(given)
    try:
        for dataset, encoding in zip(datasets, encodings, strict=True):
            _planned_chunks(_encoded(dataset, encoding), {}, ".npy", {})
        path = None if given.get("multifile") or given.get("mode", "w") != "w" else _file_at(given.get(where))
        if path is None:
            return theirs(**given)
        return _as_one([path], True, lambda hidden: theirs(**{**given, where: hidden[0]}))
    except BaseException as error:
        _reworded(error, {})
        raise


def _file_at(path: Any) -> str | None:
    """Where a file lies or will lie; None if it is none, as a pipe is, or none in a directory."""
    if not isinstance(path, str | os.PathLike) or "://" in os.fspath(path) or "#" in os.fspath(path):
        return None
    place = os.path.realpath(os.path.expanduser(os.fspath(path)))
    is_there = os.path.isfile(place) if os.path.lexists(place) else os.path.isdir(os.path.dirname(place))
    return place if is_there else None


@_taught(xarray, "save_mfdataset")
@_taught(_writers(), "save_mfdataset")
@interrupts.deferred()
def _written_each(theirs: Any, datasets: Any, paths: Any, *args: Any, **kwargs: Any) -> Any:
    """Refused before any file is written, as where another of the datasets reads from it. All appear as one."""
    datasets, paths = list(datasets), list(paths)
    given = inspect.signature(theirs).bind(datasets, paths, *args, **kwargs).arguments
    known = [one for one in datasets if isinstance(one, xarray.Dataset)]
    _refuse_read(known, paths)
    if not _have_expressions(known):
        return theirs(datasets, paths, *args, **kwargs)
    _refuse_later(given)
    places = [_file_at(path) for path in paths]
    files = [place for place in places if place is not None]
    if given.get("mode", "w") != "w" or len({*files}) < len(paths) or len(datasets) != len(paths):
        return theirs(datasets, paths, *args, **kwargs)
    return _as_one(files, True, lambda hidden: theirs(datasets, hidden, *args, **kwargs))


def _reworded(error: BaseException, options: Mapping[str, Any]) -> None:
    """Let an error of a budget name a way that xarray's writers take: they have no ``budget=``."""
    if isinstance(error, BudgetError) and "budget" not in options:
        way = "raise the budget, by 'with chunkflow.Budget(...):' or chunkflow.config.set(budget=...),"
        error.args = (str(error.args[0]).replace("raise budget=", way), *error.args[1:])


def _root_of(given: Mapping[str, Any]) -> str | None:
    """The place of a store that ``mode="w"`` empties; None if there is none that is known."""
    store, group = given.get("store"), (given.get("group") or "").strip("/")
    if isinstance(store, str) and store.startswith("file://"):
        store = store.removeprefix("file://")
    if isinstance(store, os.PathLike) or (isinstance(store, str) and "://" not in store):
        return os.path.realpath(os.path.join(os.path.expanduser(store), group))
    options = {"storage_options": given["storage_options"]} if given.get("storage_options") else {}
    return location_of_group(store, group, options)


def _refuse_emptied(datasets: Iterable[xarray.Dataset], root: str | None) -> None:
    """Refuse to empty a store from which something is still to be read."""
    for name, place in _read_by(datasets):
        if root is not None and (place == root or place.startswith(f"{root.rstrip('/')}/")):
            raise ArgumentError(
                f"mode='w' empties {root}, from which {name} is still to be read: write to another store, and put "
                "that into the place of this one"
            )


def _refuse_read(datasets: Iterable[xarray.Dataset], paths: Iterable[Any]) -> None:
    """Refuse to write netCDF files from which something is still to be read."""
    files = {os.path.realpath(os.path.expanduser(path)) for path in paths if isinstance(path, str | os.PathLike)}
    for name, place in _read_by(datasets):
        if place in files:
            raise ArgumentError(
                f"{name} is still to be read from {place}, which to_netcdf writes: write to another file"
            )


def _read_by(datasets: Iterable[xarray.Dataset]) -> Iterator[tuple[Hashable, str]]:
    """Variables of datasets with expressions, each with the places of files, folders and objects that it reads."""
    for dataset in datasets:
        if any(map(_is_expression, dataset.variables.values())):
            for name, v in dataset.variables.items():
                for leaf in _leaves(v):
                    places = _places_of(leaf)
                    yield from ((name, place if "://" in place else os.path.realpath(place)) for place in places)


def _leaves(v: xarray.Variable) -> Iterator[SourceNode]:
    """Sources of an expression, or of a variable that lies in a store still."""
    if isinstance(v._data, chunkflow.Array):
        yield from leaves(node_of(v._data), ())
    elif v.size and v.dtype.kind in "biufc" and hasattr(v._data, "get_duck_array"):
        with suppress(ChunkflowError):
            yield SourceNode(held(v))


def _places_of(leaf: SourceNode) -> Iterator[str]:
    """Paths and URLs of what a source reads, as far as they are known."""
    for part in getattr(leaf.footprint, "parts", (leaf.footprint,)):
        if part is not None and isinstance(part.space, tuple) and part.space[0] in ("zarr", "dataset"):
            yield part.space[1]
    for known in leaf.identities:
        yield from known.places
    arrays = [leaf.source]
    while arrays:
        array = arrays.pop()
        arrays += getattr(array, "arrays", ())  # of a view
        file = file_of(array.data if isinstance(array, StoredVariable) else array)
        if file:
            yield file


def _is_expression(v: xarray.Variable) -> bool:
    return isinstance(v._data, chunkflow.Array) and bool(v.size)


def _encoded(dataset: xarray.Dataset, encoding: Mapping[Hashable, Any]) -> dict[Hashable, xarray.Variable]:
    """Variables that are expressions, as they will be stored: to encode them once more changes nothing."""
    found = {}
    for name, v in dataset.variables.items():
        if _is_expression(v):
            found[name] = own = v.copy(deep=False)
            own.encoding = dict(encoding.get(name, v.encoding))  # one that is given is all of it
            found[name] = conventions.encode_cf_variable(own, name=name)
    return found


def _planned_chunks(
    variables: Mapping[Hashable, xarray.Variable],
    asked: Mapping[Hashable, Any],
    ending: str,
    options: Mapping[str, Any],
    there: Mapping[Hashable, Any] | None = None,
) -> dict[Hashable, tuple[int, ...] | None]:
    """Chunks of new arrays of variables that fit the budget, or those that are asked for; else an error is raised.

    Others go where they are `there`.
    """
    known = {name: options[name] for name in ("budget", "device") if name in options}
    there = there or {}
    places = {name: os.path.join(temporary_directory(), f"chunkflow-{uuid.uuid4().hex}{ending}") for name in variables}
    outs = [
        there[name] if name in there else chunkflow.NewArray(place, chunks=asked.get(name) or None)
        for name, place in places.items()
    ]
    if not outs:
        return {}
    try:
        plans = chunkflow.explain(chunkflow.store, [v._data for v in variables.values()], outs, **known).plans
    except BudgetError as error:
        for name, place in places.items():
            error.args = (error.args[0].replace(place, str(name)), *error.args[1:])
        raise
    planned = {spec.name: spec.chunks for plan in plans for spec in plan.outputs}
    return {name: planned.get(place) for name, place in places.items()}


_masks: ContextVar[dict[Any, np.ndarray] | None] = ContextVar("chunkflow_masks", default=None)
"""Masks that a call of `where` has computed, by their expressions; None outside of one."""


@_taught(DataWithCoords, "where")
def _where(theirs: Any, *args: Any, **kwargs: Any) -> Any:
    """With ``drop=True`` it picks elements of the array, and then of the condition, by the same masks."""
    token = _masks.set({})
    try:
        return theirs(*args, **kwargs)
    finally:
        _masks.reset(token)


@_taught(xarray.DataArray, "isel")
@_taught(xarray.Dataset, "isel")
def _picked(theirs: Any, found: Any, indexers: Mapping[Any, Any] | None = None, *args: Any, **kwargs: Any) -> Any:
    """Masks that are expressions are computed first, in one pass: xarray would compute each for every variable."""
    masks = _masks.get()
    masks = {} if masks is None else masks
    given = {**(indexers or {}), **kwargs}
    marks = {name: x.variable._data for name, x in given.items() if isinstance(x, xarray.DataArray) and x.dtype == bool}
    lazy = {name: x for name, x in marks.items() if isinstance(x, chunkflow.Array)}
    if not lazy:
        return theirs(found, indexers, *args, **kwargs)
    new = {x._node: x for x in lazy.values() if x._node not in masks}
    masks.update(zip(new, map(np.asarray, chunkflow.compute(list(new.values()))), strict=True))
    ready = {name: given[name].copy(data=masks[x._node]) for name, x in lazy.items()}
    if indexers is None:
        return theirs(found, None, *args, **{**kwargs, **ready})
    return theirs(found, {**indexers, **ready}, *args, **kwargs)


@_taught(variable.Variable, "__getitem__")
def _at_places(theirs: Any, found: Any, key: Any) -> Any:
    """One place that is an expression is a table of one place: xarray takes no such index but dask's."""
    full = found._item_key_to_tuple(key)
    given = full if isinstance(full, tuple) else (full,)
    if not any(map(_is_lazy_place, given)):
        return theirs(found, key)
    sides = ("one place of an expression", "and one more axis")  # of several axes it is looked up, not cut out
    return theirs(found, tuple([_table(each, sides) if _is_lazy_place(each) else each for each in given])).squeeze(
        sides
    )


def _is_lazy_place(index: Any) -> bool:
    place = index._data if isinstance(index, xarray.Variable) else index
    return isinstance(place, chunkflow.Array) and not place.ndim


def _table(index: Any, sides: tuple[str, str]) -> xarray.Variable:
    place: Any = index._data if isinstance(index, xarray.Variable) else index
    return xarray.Variable(sides, place.reshape(1, 1))


@_taught(DataArrayRolling, "_array_reduce")
def _rolled(theirs: Any, rolling: Any, **kwargs: Any) -> Any:
    """Windows of an expression are reduced by its own view of them: bottleneck and numbagg would have whole lines."""
    if isinstance(rolling.obj.variable._data, chunkflow.Array):
        kwargs = {name: None if name.endswith("_move_func") else value for name, value in kwargs.items()}
    return theirs(rolling, **kwargs)


@_taught(NumpyIndexingAdapter, "_vindex_get")
@_taught(PandasIndexingAdapter, "_vindex_get")
def _looked_up(theirs: Any, adapter: Any, indexer: Any) -> Any:
    """Elements at places of an expression: a coordinate of numbers is a table, and else the places are computed."""
    indices = indexer.tuple
    if not any(isinstance(index, chunkflow.Array) for index in indices):
        return theirs(adapter, indexer)
    if len(indices) == 1 and adapter.dtype.kind in "biuf" and not isinstance(adapter.array, chunkflow.Array):
        return chunkflow.take(np.asarray(adapter.array), indices[0])
    return theirs(adapter, VectorizedIndexer(chunkflow.compute(indices)))


@_taught(computation, "_calc_idxminmax")
def _label_of_extreme(
    theirs: Any, *, array: Any, dim: Any = None, skipna: bool | None = None, fill_value: Any = dtypes.NA, **kwargs: Any
) -> Any:
    """What `idxmax` and `idxmin` do. Labels that are no numbers, as dates, are those at places which are computed."""
    along = array.dims[0] if dim is None and array.ndim == 1 else dim
    labels = array[along].values if along in array.dims and along in array.coords else np.empty(0)
    if not isinstance(array.variable._data, chunkflow.Array) or labels.dtype.kind in "biuf":
        return theirs(array=array, dim=dim, skipna=skipna, fill_value=fill_value, **kwargs)
    numbered = array.drop_vars(along).assign_coords({along: np.arange(len(labels))})
    places = theirs(array=numbered, dim=along, skipna=skipna, fill_value=-1, **kwargs).compute()
    found = places.copy(data=labels[places.values.astype(np.intp)])
    filled = skipna or (skipna is None and array.dtype.kind in "fc")
    return found.where(places >= 0, fill_value) if filled else found


@_taught(duck_array_ops, "_push")
def _pushed(theirs: Any, array: Any, n: int | None = None, axis: int = -1) -> Any:
    """What `ffill` and `bfill` do."""
    return chunkflow.ffill(array, axis, n) if isinstance(array, chunkflow.Array) else theirs(array, n, axis)


@_taught(fit, "least_squares")
def _least_squares(theirs: Any, lhs: Any, rhs: Any, rcond: float | None = None, skipna: bool = False) -> Any:
    """What `polyfit` does. Lines are whole in a block where elements may be missing."""
    if not (skipna and isinstance(rhs, chunkflow.Array)):
        return theirs(lhs, rhs, rcond=rcond, skipna=skipna)
    if rhs.dtype.kind == "c":
        raise UnsupportedError("polyfit with skipna=True takes no complex numbers: fit the real and the imaginary part")
    (along, *others), own = range(rhs.ndim), functools.partial(fitted, matrix=lhs, rcond=rcond)
    left = functools.partial(own, residuals=True)
    every = (along, *others)
    return (
        chunkflow.blockwise(own, ("degree", *others), rhs, every, new_axes={"degree": lhs.shape[1]}, dtype="f8"),
        chunkflow.blockwise(left, tuple(others), rhs, every, dtype="f8"),
    )


@_taught(xarray.Dataset, "rank")
def _ranked(theirs: Any, data: xarray.Dataset, dim: Hashable, *, pct: bool = False, keep_attrs: Any = None) -> Any:
    """Ranks of expressions, without bottleneck. Lines are whole in a block."""
    wanted = {name: array for name, array in data.data_vars.items() if dim in array.dims}
    if not wanted or not all(isinstance(array.variable._data, chunkflow.Array) for array in wanted.values()):
        return theirs(data, dim, pct=pct, keep_attrs=keep_attrs)

    def of(array: xarray.DataArray) -> xarray.DataArray:
        axis, x, every = array.get_axis_num(dim), array.variable._data, tuple(range(array.ndim))
        places, ranks = tuple("rank" if a == axis else a for a in every), functools.partial(ranked, axis=axis)
        new = {"rank": x.shape[axis]}
        found = array.copy(data=chunkflow.blockwise(ranks, places, x, every, new_axes=new, dtype="f8"))
        found.encoding = {}  # a file's scale and dtype are not those of ranks
        return found / array.notnull().sum([dim]) if pct else found

    return data.drop_vars(data.data_vars.keys() - wanted.keys()).map(of, keep_attrs=keep_attrs)


@_taught(GroupBy, "_binary_op")
def _with_groups(theirs: Any, groups: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
    """An expression less its climatology: xarray would give one in memory to dask, and here it is a source."""
    if _has_expression(groups._obj) and isinstance(other, xarray.DataArray | xarray.Dataset) and not other.chunks:
        other = other.map(_expressed) if isinstance(other, xarray.Dataset) else _expressed(other)
    return theirs(groups, other, *args, **kwargs)


def _has_expression(found: Any) -> bool:
    own = getattr(found, "variable", found)
    variables = found.variables.values() if isinstance(found, xarray.Dataset) else [own]
    return any(isinstance(variable._data, chunkflow.Array) for variable in variables)


def _expressed(array: xarray.DataArray) -> xarray.DataArray:
    """An array of numbers as an expression."""
    return array.copy(data=ChunkedArray(SourceNode(array.values))) if array.dtype.kind in "biufc" else array


@_taught(GroupBy, "_flox_reduce")
def _grouped(theirs: Any, *args: Any, **kwargs: Any) -> Any:
    _teach_flox()
    return theirs(*args, **kwargs)


@_taught(GroupBy, "_flox_scan")
def _scanned(theirs: Any, groups: Any, *args: Any, func: str, **kwargs: Any) -> Any:
    """Sums up to each element of a group: of expressions group by group, as without flox."""
    if not _has_expression(groups._obj):
        return theirs(groups, *args, func=func, **kwargs)
    with xarray.set_options(use_flox=False):  # type: ignore[no-untyped-call]
        return getattr(groups, func)(*args, **{key: value for key, value in kwargs.items() if key != "numeric_only"})


@_taught(GroupBy, "quantile")
def _quantiles_of_groups(theirs: Any, groups: Any, q: Any, dim: Any = None, **kwargs: Any) -> Any:
    """Quantiles of each group: along lines of an array all in one pass, else group by group, of any length."""
    with xarray.set_options(**({} if _along_lines(groups, dim) else {"use_flox": False})):  # type: ignore[no-untyped-call]
        return theirs(groups, q, dim, **kwargs)


@_taught(_aggregations.DataArrayGroupByAggregations, "median")
@_taught(_aggregations.DatasetGroupByAggregations, "median")
def _medians_of_groups(theirs: Any, groups: Any, dim: Any = None, **kwargs: Any) -> Any:
    """As `_quantiles_of_groups`."""
    with xarray.set_options(**({} if _along_lines(groups, dim) else {"use_flox": False})):  # type: ignore[no-untyped-call]
        return theirs(groups, dim, **kwargs)


def _along_lines(groups: Any, dim: Any) -> bool:
    """Whether groups are reduced along one dimension of arrays of several, of which a block has whole lines."""
    data, along = groups._obj, (dim,) if isinstance(dim, str) or dim is None or dim is ... else tuple(dim)
    arrays = data.variables.values() if isinstance(data, xarray.Dataset) else [data.variable]
    lazy = [v for v in arrays if isinstance(v._data, chunkflow.Array)]
    return not lazy or (along in ((None,), (groups._group_dim,)) and all(v.ndim > 1 for v in lazy))


@functools.cache
def _teach_flox() -> None:
    """Let xarray's calls of flox reduce the groups of an expression here, in one pass."""

    @_taught(importlib.import_module("flox.xarray"), "groupby_reduce")
    def groupby_reduce(theirs: Any, array: Any, *by: Any, **kwargs: Any) -> Any:
        if not isinstance(array, chunkflow.Array):
            return theirs(array, *by, **kwargs)
        given = {name: kwargs[name] for name in ("func", "isbin", "axis", "dtype", "min_count") if name in kwargs}
        more = kwargs.get("finalize_kwargs") or {}
        groups = kwargs.get("expected_groups")
        groups = tuple(groups) if isinstance(groups, list | tuple) else groups
        fill = _of_missing(given["func"], by, groups, kwargs.get("fill_value"), given.get("axis"))
        groups = groups[0] if isinstance(groups, tuple) and len(by) == 1 and len(groups) == 1 else groups
        return chunkflow.groupby_reduce(array, *by, expected_groups=groups, fill_value=fill, **given, **more)


def _of_missing(func: Any, by: Sequence[Any], groups: Any, fill: Any, axis: Any) -> Any:
    """What groups without elements get: NaN, where no number stands for none, as the least of no integers.

    If each group has elements it is None, and integers stay integers.
    """
    if fill is None and str(func).removeprefix("nan") not in ("min", "max", "first", "last"):
        return None
    if isinstance(fill, int | float | complex | np.generic):
        return fill
    listed = groups if isinstance(groups, tuple) else (groups,)
    codes = [np.asarray(keys) for keys in by if not isinstance(keys, chunkflow.Array)]
    lengths = [len(each) for each in listed if hasattr(each, "step")]  # pandas' ranges
    if not len(codes) == len(by) == len(lengths):
        return np.nan
    shape = np.broadcast_shapes(*(each.shape for each in codes))
    if axis is not None and len(np.atleast_1d(axis)) != len(shape):
        return np.nan
    full = all(np.bincount(each[each >= 0], minlength=n).all() for each, n in zip(codes, lengths, strict=True))
    return None if full and (_along_own_axes(codes) or _all_meet(codes, lengths)) else np.nan


def _along_own_axes(codes: Sequence[np.ndarray]) -> bool:
    """Whether no two arrays, of as many axes, have elements along the same one: then each meets all of the others'."""
    used = [axis for each in codes for axis, n in enumerate(each.shape) if n > 1]
    return len(used) == len(set(used)) and len({each.ndim for each in codes}) == 1


_PART = 1 << 16
"""Elements of labels that are looked at together."""


def _all_meet(codes: Sequence[np.ndarray], lengths: Sequence[int]) -> bool:
    """Whether each combination of groups has an element, of arrays that broadcast, a part of which is in memory.

    >>> _all_meet([np.array([[0], [1]]), np.array([[0, 1], [1, 1]])], (2, 2))
    False
    >>> _all_meet([np.array([[0], [1]]), np.array([[0, 1], [1, 0]])], (2, 2))
    True
    """
    met = np.zeros(lengths, bool)
    for part in np.nditer(list(codes), ["external_loop", "buffered", "zerosize_ok"], buffersize=_PART):
        kept = np.all([each >= 0 for each in part], axis=0)
        met[tuple(each[kept] for each in part)] = True
        if met.all():
            break
    return bool(met.all())


# -- Regions -----------------------------------------------------------------------------------------------------------


class WritableRegion:
    """A region of an array that is written to, as an array of its own: what ``to_zarr(append_dim="time")`` adds."""

    def __init__(self, array: Any, bounds: Sequence[range]) -> None:
        self._array, self._starts = array, [side.start for side in bounds]
        self.shape, self.dtype = tuple(map(len, bounds)), array.dtype

    @classmethod
    def of(cls, array: Any, region: Sequence[slice]) -> Any:
        """The region; the array itself where that is all of it."""
        bounds = [range(n)[side] for n, side in zip(array.shape, region, strict=False)]
        if bounds == [range(n) for n in array.shape[: len(bounds)]]:
            return array
        if _is_zarr_array(array) and all(side.step == 1 for side in bounds):
            return chunkflow.ExistingArray(array, region=tuple(slice(side.start, side.stop) for side in bounds))
        return cls(array, bounds)

    def _there(self, region: Sequence[slice]) -> tuple[slice, ...]:
        return tuple(slice(s.start + at, s.stop + at) for s, at in zip(region, self._starts, strict=True))

    def __getitem__(self, region: Sequence[slice]) -> Any:
        return self._array[self._there(region)]

    def __setitem__(self, region: Sequence[slice], block: Any) -> None:
        self._array[self._there(region)] = block
