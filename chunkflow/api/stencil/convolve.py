"""Convolution of a large array with a small one, by the method that takes less time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from chunkflow.api.fourier.convolve import Method, Mode, convolution
from chunkflow.api.operation import ChunkedRunOptions, Options, Request, operation


@operation
def convolve(
    x: Any,
    v: Any,
    mode: Mode = "full",
    method: Method = "auto",
    axes: int | Sequence[int] | None = None,
    *,
    boundary: Any = 0,
    **options: Unpack[ChunkedRunOptions],
) -> Request:
    """Convolve an array with a kernel that is small beside it, as `scipy.signal.convolve`, and NumPy's of lines.

    Blocks overlap by the kernel's extent. Either method reads the array once.

    Parameters
    ----------
    x : array_like, str or path
        The array: see `chunkflow.open`.
    v : array_like
        The kernel: in memory, of finite numbers, with as many dimensions as there are axes to convolve along.
    mode : {"full", "valid", "same"}
        Which part: all of it (``n + k - 1`` elements along an axis of n, for k of the kernel's), what needs nothing
        from beyond the edges (``n - k + 1``), or what lies in the middle, as large as `x`.
    method : {"auto", "direct", "fft"}
        "direct" adds up products: integers are exact, and each result is rounded by its own elements. "fft" transforms
        blocks, as `chunkflow.fft.convolve`: the time hardly depends on the kernel's size, and rounding is relative to
        the largest values of a block. "auto" takes the one that is faster on CPUs: direct for integers and for short
        kernels (of some 30 elements; 240 where the last of its sides that is longer than 1 has 8 or more).
    axes : int or sequence of int, optional
        Along which, one for each dimension of the kernel. All axes of `x` by default.
    boundary : str, number, tuple or dict
        What lies beyond the edges of `x` in mode "same", as for `chunkflow.map_overlap`, but for "none".
    chunks : int or sequence of int, optional
        Shape of the result's blocks, and of the chunks of a zarr array that the run creates, as for `chunkflow.map`.
    out : array, str, path or None
        As for `chunkflow.map`; it may not be `x`.

    Returns
    -------
    array
        `out`, opened where it was a path. Its dtype is what `x` and the kernel promote to; float32 for half precision,
        and float64 for integers that are transformed.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A kernel that is empty, not finite, no array of numbers, of other dimensions, or longer than `x` in mode
        "valid"; an unknown mode, method or boundary, or a boundary in a mode that does not look beyond the edges.
    BudgetError
        Not even one element, with as many around it as the kernel has, fits the budget.

    Examples
    --------
    >>> cf.convolve(np.array([1, 2, 3]), [0, 1, 5], device="cpu")
    array([ 0,  1,  7, 13, 15])
    >>> cf.convolve(np.eye(3), np.ones((3, 3)), "same", boundary="nearest", device="cpu")
    array([[5., 3., 1.],
           [3., 3., 3.],
           [1., 3., 5.]])
    """
    return convolution(x, v, mode, axes, boundary, method, Options(**options))
