"""`map` and `blockwise`: functions of the user's own, applied to arrays block by block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chunkflow.api.operation import BudgetLike, Chunks, Options, ProgressLike, Request, check_passed, family
from chunkflow.kernels.declare import declare_blockwise, declare_map

block_operation = family(
    """A function of the user's own, applied to blocks.

    Parameters
    ----------
    dtype : dtype or tuple of dtypes, optional
        Of the results; what `fn` returns is cast by the ``same_kind`` rule. Without it the trial call tells it, and
        a later block of a wider dtype is refused if that changes a value.
    workspace : float, optional
        Bytes that `fn` allocates besides its result, per element of a block. With `dtype` it replaces the
        trial call; say it where that call misses something. On the CPU it sees what NumPy allocates in the thread
        that calls `fn`, and nothing of what threads that `fn` starts, or libraries other than NumPy, take.
    **kwargs
        Passed to `fn`.

    Returns
    -------
    array or tuple of arrays
        `out`, opened where it was a path. Of expressions other expressions, several if `dtype` is a tuple: `out,
        budget, device, progress` and `overwrite` are refused then, and belong to what runs them (`chunkflow.compute`).

    Raises
    ------
    ResultError, ResultTypeError
        `fn` returned another shape, dtype or kind of array than it should.
    """
)


@block_operation
def map(
    fn: Callable[..., Any],
    *arrays: Any,
    out: Any = None,
    budget: BudgetLike = None,
    dtype: Any = None,
    chunks: Chunks = None,
    drop_axis: int | Sequence[int] | None = None,
    new_axis: int | Sequence[int] | None = None,
    workspace: float | None = None,
    device: Any = None,
    progress: ProgressLike = None,
    overwrite: bool = False,
    sync: bool | None = None,
    resume: bool = False,
    name: str | None = None,
    checksum: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Apply a function to arrays block by block, streaming them through the device.

    Blocks are read, copied to the device, computed, copied back and written at the same time, within a
    budget of device memory. Parameters are those of dask's ``map_blocks`` where there is one.

    Parameters
    ----------
    fn : callable
        Called as ``fn(*blocks, **kwargs)`` with NumPy arrays on the CPU and CuPy arrays on a GPU (NumPy's
        functions dispatch to either). Returns an array, or a tuple of arrays, of its blocks' shape unless
        `drop_axis`, `new_axis` or `chunks` say otherwise. It must not write to its blocks (on the CPU they
        are read-only), and its result for an element must not depend on how the array was cut. On the CPU it
        is called from several threads at once, so what it returns must not be memory that it writes to again, for
        another block. It is called once more than there are blocks: a trial on a
        small block at the arrays' corner shows what it returns and how much memory it takes. If it has a
        parameter ``block_id`` or ``block_info`` it gets the block's index, or dask's dict.
    *arrays : array_like, str, path or scalar
        Sources that broadcast together as in NumPy: ndarrays, memmaps, paths of ``.npy`` files, paths and URLs of
        zarr arrays, ``zarr.Array`` objects, anything with ``shape``, ``dtype`` and basic slicing. Scalars and None
        are passed to `fn` as they are.
    out : array, str, path, NewArray, tuple of these, or None
        Where the result goes: an array with slice assignment, or the path of a ``.npy`` file or zarr array, or the URL
        of one, to create, which appears under its name only when complete; a `chunkflow.NewArray` in the place of a
        path says how it is stored, and a `chunkflow.ExistingArray` which part of one is written. None makes a NumPy
        array. It may be one of
        the inputs itself (in place). One for each result if `fn` returns a tuple.
    chunks : int or tuple, optional
        Shape of the blocks that `fn` *returns*, which fixes the blocks that it gets: for each axis a length, -1 or
        None for the whole axis (``chunks=("auto", -1)`` for a transform along the last one), or "auto". Needed
        where `fn` resizes an axis. A zarr array that the run creates gets these chunks.
    drop_axis : int or sequence of int, optional
        Axes that `fn` removes; they are never cut.
    new_axis : int or sequence of int, optional
        Axes of the result that `fn` adds; every block fills their whole length.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Shapes that do not broadcast, dtypes that are not numeric, an output that is read-only, of the wrong
        shape or dtype, or that overlaps an input otherwise than in place.

    Notes
    -----
    A function that needs the whole array gives other values for each block. Examples are ``scipy.ndimage.label``, a
    sort or a rank, ``(b - b.mean()) / b.std()``, ``np.unwrap`` and ``np.gradient``. ``docs/libraries.md`` lists what to
    use in their place. Where the plan chooses the blocks, and there are several, `fn` is called on a small block twice
    more, of which one has other values around its middle. If the middle's values change, a `BlockEdgeWarning` says so.

    Examples
    --------
    >>> u, v = np.random.default_rng(0).random((2, 64, 64, 64))
    >>> speed = cf.map(lambda u, v: np.sqrt(u * u + v * v), u, v, budget="8MB", device="cpu")
    >>> np.array_equal(speed, np.sqrt(u * u + v * v))
    True
    """
    check_passed("map", kwargs, fn)
    options = Options(
        out, budget, dtype, chunks, workspace, device, overwrite, progress, None, sync, resume, name, checksum
    )
    declare = declare_map(fn, kwargs, drop_axis, new_axis, chosen=True)
    return Request(declare, arrays, options, fn=fn, shapes_only=True, keeps=True)


@block_operation
def blockwise(
    fn: Callable[..., Any],
    out_ind: Any,
    *array_index_pairs: Any,
    combine: Callable[[Any, Any], Any] | None = None,
    new_axes: Mapping[Any, int] | None = None,
    dtype: Any = None,
    out: Any = None,
    budget: BudgetLike = None,
    device: Any = None,
    progress: ProgressLike = None,
    overwrite: bool = False,
    sync: bool | None = None,
    resume: bool = False,
    name: str | None = None,
    checksum: bool | None = None,
    workspace: float | None = None,
    **kwargs: Any,
) -> Any:
    """Apply a function block by block to arrays whose dimensions are named: products, contractions, transposes.

    The notation is that of dask's ``blockwise``: an index names a dimension, and arrays are cut alike along the
    dimensions of the same name. `map` is the case in which all are aligned from the right.

    Parameters
    ----------
    fn : callable
        Called as ``fn(*blocks, **kwargs)``, as in `map`. It returns an array, or a tuple of arrays, with the
        dimensions of `out_ind`.
    out_ind : str or tuple
        Indices of the result, one for each dimension: ``"ij"``, or any hashables in a tuple.
    *array_index_pairs
        An array (a source as for `map`) and its indices, the next array and its indices, and so on. An extent of 1
        broadcasts against others of its index. An argument whose index is None is passed to `fn` as it is.
    combine : callable, optional
        ``combine(left, right)`` makes one result of those of two blocks that differ along indices missing in
        `out_ind`: ``np.add``, ``np.maximum``. It must be associative and commutative, and must not write to its
        arguments; results of a tuple are combined one by one. Without it such dimensions are never cut, and `fn`
        sees them whole.
    new_axes : dict, optional
        Lengths of the result's dimensions that no array has, by index; every block fills their whole length.
    dtype : dtype or tuple of dtypes, optional
        Of the results; what `fn` returns is cast by the ``same_kind`` rule. Partial results are combined as `fn`
        returns them.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Indices that do not fit the arrays, or extents that differ along one index; and as for `map`.

    Examples
    --------
    A sum over an axis, an outer product and a matrix product:

    >>> import numpy as np, chunkflow as cf
    >>> x, y = np.arange(6.0).reshape(2, 3), np.ones((3, 2))
    >>> cf.blockwise(lambda x: x.sum(axis=0), "j", x, "ij", combine=np.add, device="cpu")
    array([3., 5., 7.])
    >>> cf.blockwise(np.outer, "ij", np.array([1, 2]), "i", np.array([3, 4, 5]), "j", device="cpu")
    array([[ 3,  4,  5],
           [ 6,  8, 10]])
    >>> cf.blockwise(np.matmul, "ik", x, "ij", y, "jk", combine=np.add, device="cpu")
    array([[ 3.,  3.],
           [12., 12.]])
    """
    whole = {f"argument {i}": a for i, a in enumerate(array_index_pairs[:-1:2]) if array_index_pairs[2 * i + 1] is None}
    check_passed("blockwise", whole)
    check_passed("blockwise", kwargs, fn)
    options = Options(
        out, budget, dtype, None, workspace, device, overwrite, progress, None, sync, resume, name, checksum
    )
    declare, arrays = declare_blockwise(fn, kwargs, out_ind, array_index_pairs, combine, new_axes)
    return Request(declare, arrays, options, fn=fn, shapes_only=True)
