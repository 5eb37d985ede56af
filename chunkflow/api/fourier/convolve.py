"""Convolution of a large array with a small one: by Fourier transforms of blocks that overlap, or sums of products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, Unpack

import numpy as np

from chunkflow.api.operation import ArraySpec, ChunkedRunOptions, Declared, Options, Request, check_eager, operation
from chunkflow.api.rearrange.move import Arranged, Composition
from chunkflow.core.arrangement import Separable, padded
from chunkflow.core.axes import ordered_axes
from chunkflow.core.grid import Shape
from chunkflow.core.nest import nest, output_axes
from chunkflow.core.windows import Windows
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.kernels.fourier import convolved
from chunkflow.kernels.linalg.gemm import working
from chunkflow.kernels.stencil.overlap import Halo, Overlap, boundaries, with_halo
from chunkflow.kernels.stencil.windows import LONG, ByWeights, WindowKernel
from chunkflow.stores.checks import elements_of

Mode = Literal["same", "valid", "full"]
MODES = ("same", "valid", "full")
"""Parts of a convolution that can be asked for."""

Method = Literal["auto", "direct", "fft"]
METHODS = ("auto", "direct", "fft")
"""Ways to compute it."""

SHIFTS = 30
"""Shifted arrays that are added up in the time of the transforms, which hardly depends on the kernel's size."""

BY_BLAS = 8
"""So many times faster are sums along lines that BLAS makes."""


@operation
def convolve(
    x: Any,
    kernel: Any,
    mode: Mode = "same",
    axes: int | Sequence[int] | None = None,
    *,
    boundary: Any = 0,
    **options: Unpack[ChunkedRunOptions],
) -> Request:
    """Convolve an array with a kernel that is small beside it.

    Blocks overlap by the kernel's extent and are transformed at lengths that suit the transform (overlap-save). So the
    time hardly depends on the kernel's size, and rounding is relative to the largest values of a block, not to each
    result. NaN and infinities of `x` reach what a plain convolution lets them reach; of complex numbers it is all NaN.

    Parameters
    ----------
    kernel : array_like
        In memory, with as many dimensions as there are axes to convolve along.
    mode : {"same", "valid", "full"}
        Which part, as in `scipy.signal.fftconvolve`: what lies in the middle, as large as `x`; what needs nothing from
        beyond its edges (``n - k + 1`` elements along an axis of n); or all of it (``n + k - 1``).
    axes : int or sequence of int, optional
        Along which, one for each dimension of the kernel. All axes of `x` by default.
    boundary : str, number, tuple or dict
        What lies beyond the edges of `x` in mode "same", as for `chunkflow.map_overlap`, but for "none". The middle of
        a kernel of even length is that of `scipy.signal`, one element before that of `scipy.ndimage`.
    chunks : int or sequence of int, optional
        Shape of the result's blocks, and of the chunks of a zarr array that the run creates, as for `chunkflow.map`.
    out : array, str, path or None
        As for `chunkflow.map`; it may not be `x`.

    Returns
    -------
    array
        `out`, opened where it was a path. Its dtype is what `x` and the kernel promote to; float64 for integers,
        float32 for half precision.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A kernel that is empty, not finite, no array of numbers, of other dimensions, or longer than `x` in mode
        "valid"; an unknown mode or boundary, or a boundary in a mode that does not look beyond the edges.
    BudgetError
        Not even one element, with as many around it as the kernel has, fits the budget.

    References
    ----------
    T. G. Stockham (1966), "High-speed convolution and correlation", AFIPS Conf. Proc. 28, 229-233.

    Examples
    --------
    >>> cf.fft.convolve(np.array([1.0, 2.0, 3.0, 4.0]), [1.0, 1.0], mode="full", device="cpu").round(12)
    array([1., 3., 5., 7., 4.])
    >>> cf.fft.convolve(np.eye(3), np.ones((3, 3)), boundary="nearest", device="cpu").round(12)
    array([[5., 3., 1.],
           [3., 3., 3.],
           [1., 3., 5.]])
    """
    return convolution(x, kernel, mode, axes, boundary, "fft", Options(**options))


def convolution(
    x: Any,
    kernel: Any,
    mode: Mode,
    axes: int | Sequence[int] | None,
    boundary: Any,
    method: Method,
    options: Options,
) -> Request:
    """Request of a convolution; arguments as for `convolve`."""
    if mode not in MODES:
        raise ArgumentError(f"mode={mode!r} is unknown: use one of {', '.join(map(repr, MODES))}")
    if method not in METHODS:
        raise ArgumentError(f"method={method!r} is unknown: use one of {', '.join(map(repr, METHODS))}")
    weights = _weights(kernel)
    zero = isinstance(boundary, bool | int | float | np.generic) and not boundary
    if mode != "same" and not zero:
        raise ArgumentError(f"boundary={boundary!r} has no meaning in mode={mode!r}: it is for mode='same'")

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        (spec,) = specs
        ndim = len(spec.shape)
        spread = _spread(weights, axes, ndim)
        exact = np.result_type(spec.dtype, weights.dtype)
        is_direct = method == "direct" or (method == "auto" and (exact.kind in "biu" or is_shorter(spread.shape)))
        dtype = exact if is_direct and exact.kind in "biu" else _dtype(spec.dtype, weights.dtype)
        kinds = boundaries(boundary, spec) if mode == "same" else ("none",) * ndim
        halo: list[Halo] = []
        extents = []
        for axis, (n, k) in enumerate(zip(spec.shape, spread.shape, strict=True)):
            if mode == "valid" and k > n:
                raise ArgumentError(
                    f"the kernel has {k} elements along axis {axis}, where {spec.name} has {n}: in mode='valid' it may "
                    "not be longer; use 'same' or 'full'"
                )
            if mode == "same" and kinds[axis] == "none" and k > 1:
                raise ArgumentError(
                    f"boundary='none' along axis {axis} leaves open what lies beyond the edges: give a number, "
                    "'nearest', 'reflect', 'mirror' or 'periodic', or use mode='valid'"
                )
            halo.append((k // 2, (k - 1) // 2) if mode == "same" else (0, k - 1))
            extents.append(n if mode == "same" else max(n - k + 1, 0))
        op = nest([spec.shape])
        operand = with_halo(replace(op.operands[0], axes=tuple(range(ndim))), spec, halo, kinds)
        op = replace(op, extents=tuple(extents), operands=(operand,))
        straight = output_axes(ndim)
        if is_direct and (long := [axis for axis, k in enumerate(spread.shape) if k > 1]):
            windows = Windows(ndim, tuple(long), tuple(spread.shape[axis] for axis in long))
            turned = np.flip(spread).reshape(windows.widths)
            return Declared(
                op, WindowKernel(ByWeights(turned, windows, working(dtype), dtype), windows, tuple(halo)), straight
            )
        run = {"kernel": spread.astype(dtype), "dtype": dtype}
        return Declared(op, Overlap(convolved, args, run, straight, depth=(tuple(halo),), trim=None), straight)

    def with_zeros(specs: Sequence[ArraySpec]) -> Arranged:
        (spec,) = specs
        reach = [k - 1 for k in _spread(weights, axes, len(spec.shape)).shape]
        sides = zip(spec.shape, reach, strict=True)
        return Arranged(Separable(tuple(padded(n, k, k, "constant", (0, 0)) for n, k in sides)), spec.chunks)

    # The full convolution is the valid part of that of the array padded with zeros.
    return Request(declare, (Composition((x,), with_zeros) if mode == "full" else x,), options)


def is_shorter(sides: Shape) -> bool:
    """Whether sums of products take less time than transforms, for a kernel with these sides; as measured on CPUs."""
    long = [k for k in sides if k > 1] or [1]
    return math.prod(long) <= SHIFTS * (BY_BLAS if long[-1] >= LONG else 1)


def _weights(kernel: Any) -> np.ndarray:
    """The kernel as an array, checked to be of numbers."""
    check_eager("convolve", kernel=kernel)
    try:
        weights = elements_of(kernel)
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(f"kernel is no array in the host's memory: {error}") from None
    if weights.dtype.kind not in "biufc":
        raise ArgumentTypeError(f"kernel must be an array of numbers, not of {weights.dtype}")
    if not weights.size:
        raise ArgumentError(f"kernel has the shape {weights.shape}, and no element")
    if not np.isfinite(weights).all():
        raise ArgumentError("kernel holds NaN or infinities, which would leave no finite result")
    return weights


def _spread(weights: np.ndarray, axes: int | Sequence[int] | None, ndim: int) -> np.ndarray:
    """The kernel with as many dimensions as the array."""
    found = list(range(ndim)) if axes is None else ordered_axes(axes, ndim, "axes")
    if len(found) != weights.ndim:
        raise ArgumentError(
            f"kernel has {weights.ndim} dimensions and there are {len(found)} axes to convolve along: name one "
            "for each with axes="
        )
    shape = [1] * ndim
    for axis, k in zip(found, weights.shape, strict=True):
        shape[axis] = k
    return weights.transpose(np.argsort(found)).reshape(shape) if found else weights.reshape(shape)


def _dtype(one: np.dtype, other: np.dtype) -> np.dtype:
    dtype = np.result_type(one, other)
    if dtype.kind not in "fc":
        return np.dtype(np.float64)
    return np.dtype(np.float32) if dtype == np.float16 else dtype
