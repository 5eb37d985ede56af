"""Fourier transforms of arrays of any size, with NumPy's names and results."""

from __future__ import annotations

from typing import Any, Unpack

from chunkflow.api.fourier.transform import transform
from chunkflow.api.operation import ChunkedRunOptions, MultiPass, Options, family

transform_operation = family(
    """A transform of an array.

    Parameters
    ----------
    n : int, optional
        Points along the axis: elements are cut off, or zeros are added. By default as many as there are; for `irfft`,
        ``2 * (m - 1)`` for an axis of m.
    axis : int
        The axis that is transformed.
    s : sequence of int, optional
        Points along each of the axes, -1 for as many as there are, which is the default. See `fft` and `irfft`.
    axes : sequence of int, optional
        The axes that are transformed: all, or the last ``len(s)``, by default.
    norm : {"backward", "ortho", "forward"} or None
        Which direction is scaled, as in NumPy: the inverse (None and "backward"), both, or the transform.
    chunks : int or sequence of int
        Chunk shape of a zarr output that the run creates: one length for all axes, or one for each, -1 for a whole
        axis. By default those of `x`, where it has that shape; in any case smaller where the budget wants it.
    progress : bool, "always" or callable
        As for `chunkflow.map`. Each pass has a progress bar of its own.

    Returns
    -------
    array
        `out`, opened where it was a path: complex, as long as `n` or `s` says along the axes.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An axis that `x` does not have or that is named twice, less than one point, another number of lengths than of
        axes, an unknown `norm`, complex numbers for `rfft` and `rfftn`.
    BudgetError
        Not even a line along an axis fits the budget. Its `smallest` says what would do.
    """
)


@transform_operation
def fft(
    x: Any, n: int | None = None, axis: int = -1, norm: str | None = None, **options: Unpack[ChunkedRunOptions]
) -> MultiPass:
    """The discrete Fourier transform along one axis.

    Examples
    --------
    >>> cf.fft.fft(np.array([1.0, 0.0, 0.0, 0.0]), device="cpu").real
    array([1., 1., 1., 1.])
    """
    return transform("fft", x, n, axis, norm, Options(**options))


@transform_operation
def ifft(
    x: Any, n: int | None = None, axis: int = -1, norm: str | None = None, **options: Unpack[ChunkedRunOptions]
) -> MultiPass:
    """The inverse of `fft`.

    Examples
    --------
    >>> cf.fft.ifft(cf.fft.fft(np.array([1.0, 2.0, 4.0]), device="cpu"), device="cpu").real.round(12)
    array([1., 2., 4.])
    """
    return transform("ifft", x, n, axis, norm, Options(**options))


@transform_operation
def rfft(
    x: Any, n: int | None = None, axis: int = -1, norm: str | None = None, **options: Unpack[ChunkedRunOptions]
) -> MultiPass:
    """The discrete Fourier transform of real numbers along one axis: the half that determines the other.

    Returns
    -------
    array
        `out`, opened where it was a path: complex, ``n // 2 + 1`` long along the axis.

    Examples
    --------
    >>> cf.fft.rfft(np.array([1.0, 0.0, 0.0, 0.0]), device="cpu").real
    array([1., 1., 1.])
    """
    return transform("rfft", x, n, axis, norm, Options(**options))


@transform_operation
def irfft(
    x: Any, n: int | None = None, axis: int = -1, norm: str | None = None, **options: Unpack[ChunkedRunOptions]
) -> MultiPass:
    """The inverse of `rfft`.

    Returns
    -------
    array
        `out`, opened where it was a path: real, as long as `n` along the axis.

    Examples
    --------
    >>> cf.fft.irfft(np.array([1.0, 1.0, 1.0]), device="cpu")
    array([1., 0., 0., 0.])
    """
    return transform("irfft", x, n, axis, norm, Options(**options))


@transform_operation
def fftn(
    x: Any, s: Any = None, axes: Any = None, norm: str | None = None, **options: Unpack[ChunkedRunOptions]
) -> MultiPass:
    """The discrete Fourier transform along several axes.

    Examples
    --------
    >>> cf.fft.fftn(np.ones((2, 2)), device="cpu").real
    array([[4., 0.],
           [0., 0.]])
    """
    return transform("fftn", x, s, axes, norm, Options(**options))


@transform_operation
def ifftn(
    x: Any, s: Any = None, axes: Any = None, norm: str | None = None, **options: Unpack[ChunkedRunOptions]
) -> MultiPass:
    """The inverse of `fftn`.

    Examples
    --------
    >>> cf.fft.ifftn(np.array([[4, 0], [0, 0]]), device="cpu").real
    array([[1., 1.],
           [1., 1.]])
    """
    return transform("ifftn", x, s, axes, norm, Options(**options))


@transform_operation
def rfftn(
    x: Any, s: Any = None, axes: Any = None, norm: str | None = None, **options: Unpack[ChunkedRunOptions]
) -> MultiPass:
    """The discrete Fourier transform of real numbers along several axes; along the last, the half that suffices.

    Returns
    -------
    array
        `out`, opened where it was a path: complex, ``s[-1] // 2 + 1`` long along the last of the axes.

    Examples
    --------
    >>> cf.fft.rfftn(np.ones((2, 4)), device="cpu").real
    array([[8., 0., 0.],
           [0., 0., 0.]])
    """
    return transform("rfftn", x, s, axes, norm, Options(**options))


@transform_operation
def irfftn(
    x: Any, s: Any = None, axes: Any = None, norm: str | None = None, **options: Unpack[ChunkedRunOptions]
) -> MultiPass:
    """The inverse of `rfftn`.

    Returns
    -------
    array
        `out`, opened where it was a path: real.

    Examples
    --------
    >>> x = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    >>> cf.fft.irfftn(cf.fft.rfftn(x, device="cpu"), s=x.shape, axes=(0, 1), device="cpu").round(12)
    array([[1., 2., 3.],
           [4., 5., 6.]])
    """
    return transform("irfftn", x, s, axes, norm, Options(**options))
