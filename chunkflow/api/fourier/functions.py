"""Fourier transforms of arrays of any size, with NumPy's names and results."""

from __future__ import annotations

from typing import Any

from chunkflow.api.fourier.transform import gives, plans, run
from chunkflow.api.operation import composed
from chunkflow.core.chunking import Chunks
from chunkflow.engine.options import BudgetLike, Options, ProgressLike


@composed(gives=gives("fft"), plans=plans("fft"))
def fft(
    x: Any,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    *,
    chunks: Chunks = None,
    out: Any = None,
    budget: BudgetLike = None,
    device: Any = None,
    progress: ProgressLike = False,
    overwrite: bool = False,
) -> Any:
    """The discrete Fourier transform along one axis.

    Parameters
    ----------
    x, n, axis, norm, chunks, out, budget, device, progress, overwrite
        See `chunkflow.fft`.

    Returns
    -------
    array
        `out`, opened where it was a path: complex, as long as `n` along the axis.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An axis that `x` does not have, less than one point, an unknown `norm`.
    BudgetError
        Not even a line along the axis fits the budget. Its `smallest` says what would do.

    Examples
    --------
    >>> import numpy as np
    >>> from chunkflow.fft import fft
    >>> fft(np.array([1.0, 0.0, 0.0, 0.0]), device="cpu").real
    array([1., 1., 1., 1.])
    """
    options = Options(out, budget, chunks=chunks, device=device, overwrite=overwrite)
    return run("fft", x, n, axis, norm, options, progress)


@composed(gives=gives("ifft"), plans=plans("ifft"))
def ifft(
    x: Any,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    *,
    chunks: Chunks = None,
    out: Any = None,
    budget: BudgetLike = None,
    device: Any = None,
    progress: ProgressLike = False,
    overwrite: bool = False,
) -> Any:
    """The inverse of `fft`.

    Parameters
    ----------
    x, n, axis, norm, chunks, out, budget, device, progress, overwrite
        See `chunkflow.fft`.

    Returns
    -------
    array
        `out`, opened where it was a path: complex, as long as `n` along the axis.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An axis that `x` does not have, less than one point, an unknown `norm`.
    BudgetError
        Not even a line along the axis fits the budget. Its `smallest` says what would do.

    Examples
    --------
    >>> import numpy as np
    >>> from chunkflow.fft import fft, ifft
    >>> ifft(fft(np.array([1.0, 2.0, 4.0]), device="cpu"), device="cpu").real.round(12)
    array([1., 2., 4.])
    """
    options = Options(out, budget, chunks=chunks, device=device, overwrite=overwrite)
    return run("ifft", x, n, axis, norm, options, progress)


@composed(gives=gives("rfft"), plans=plans("rfft"))
def rfft(
    x: Any,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    *,
    chunks: Chunks = None,
    out: Any = None,
    budget: BudgetLike = None,
    device: Any = None,
    progress: ProgressLike = False,
    overwrite: bool = False,
) -> Any:
    """The discrete Fourier transform of real numbers along one axis: the half that says all.

    Parameters
    ----------
    x, n, axis, norm, chunks, out, budget, device, progress, overwrite
        See `chunkflow.fft`.

    Returns
    -------
    array
        `out`, opened where it was a path: complex, ``n // 2 + 1`` long along the axis.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An axis that `x` does not have, less than one point, an unknown `norm`, complex numbers.
    BudgetError
        Not even a line along the axis fits the budget. Its `smallest` says what would do.

    Examples
    --------
    >>> import numpy as np
    >>> from chunkflow.fft import rfft
    >>> rfft(np.array([1.0, 0.0, 0.0, 0.0]), device="cpu").real
    array([1., 1., 1.])
    """
    options = Options(out, budget, chunks=chunks, device=device, overwrite=overwrite)
    return run("rfft", x, n, axis, norm, options, progress)


@composed(gives=gives("irfft"), plans=plans("irfft"))
def irfft(
    x: Any,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    *,
    chunks: Chunks = None,
    out: Any = None,
    budget: BudgetLike = None,
    device: Any = None,
    progress: ProgressLike = False,
    overwrite: bool = False,
) -> Any:
    """The inverse of `rfft`.

    Parameters
    ----------
    x, n, axis, norm, chunks, out, budget, device, progress, overwrite
        See `chunkflow.fft`.

    Returns
    -------
    array
        `out`, opened where it was a path: real, as long as `n` along the axis.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An axis that `x` does not have, less than one point, an unknown `norm`.
    BudgetError
        Not even a line along the axis fits the budget. Its `smallest` says what would do.

    Examples
    --------
    >>> import numpy as np
    >>> from chunkflow.fft import irfft
    >>> irfft(np.array([1.0, 1.0, 1.0]), device="cpu")
    array([1., 0., 0., 0.])
    """
    options = Options(out, budget, chunks=chunks, device=device, overwrite=overwrite)
    return run("irfft", x, n, axis, norm, options, progress)


@composed(gives=gives("fftn"), plans=plans("fftn"))
def fftn(
    x: Any,
    s: Any = None,
    axes: Any = None,
    norm: str | None = None,
    *,
    chunks: Chunks = None,
    out: Any = None,
    budget: BudgetLike = None,
    device: Any = None,
    progress: ProgressLike = False,
    overwrite: bool = False,
) -> Any:
    """The discrete Fourier transform along several axes.

    Parameters
    ----------
    x, s, axes, norm, chunks, out, budget, device, progress, overwrite
        See `chunkflow.fft`.

    Returns
    -------
    array
        `out`, opened where it was a path: complex.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BudgetError
        As for `fft`; also an axis named twice, or other than one length for each.

    Examples
    --------
    >>> import numpy as np
    >>> from chunkflow.fft import fftn
    >>> fftn(np.ones((2, 2)), device="cpu").real
    array([[4., 0.],
           [0., 0.]])
    """
    options = Options(out, budget, chunks=chunks, device=device, overwrite=overwrite)
    return run("fftn", x, s, axes, norm, options, progress)


@composed(gives=gives("ifftn"), plans=plans("ifftn"))
def ifftn(
    x: Any,
    s: Any = None,
    axes: Any = None,
    norm: str | None = None,
    *,
    chunks: Chunks = None,
    out: Any = None,
    budget: BudgetLike = None,
    device: Any = None,
    progress: ProgressLike = False,
    overwrite: bool = False,
) -> Any:
    """The inverse of `fftn`.

    Parameters
    ----------
    x, s, axes, norm, chunks, out, budget, device, progress, overwrite
        See `chunkflow.fft`.

    Returns
    -------
    array
        `out`, opened where it was a path: complex.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BudgetError
        As for `fft`; also an axis named twice, or other than one length for each.

    Examples
    --------
    >>> import numpy as np
    >>> from chunkflow.fft import ifftn
    >>> ifftn(np.array([[4, 0], [0, 0]]), device="cpu").real
    array([[1., 1.],
           [1., 1.]])
    """
    options = Options(out, budget, chunks=chunks, device=device, overwrite=overwrite)
    return run("ifftn", x, s, axes, norm, options, progress)


@composed(gives=gives("rfftn"), plans=plans("rfftn"))
def rfftn(
    x: Any,
    s: Any = None,
    axes: Any = None,
    norm: str | None = None,
    *,
    chunks: Chunks = None,
    out: Any = None,
    budget: BudgetLike = None,
    device: Any = None,
    progress: ProgressLike = False,
    overwrite: bool = False,
) -> Any:
    """The discrete Fourier transform of real numbers along several axes: the half of the last that says all.

    Parameters
    ----------
    x, s, axes, norm, chunks, out, budget, device, progress, overwrite
        See `chunkflow.fft`.

    Returns
    -------
    array
        `out`, opened where it was a path: complex, ``s[-1] // 2 + 1`` long along the last of the axes.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BudgetError
        As for `rfft`; also an axis named twice, or other than one length for each.

    Examples
    --------
    >>> import numpy as np
    >>> from chunkflow.fft import rfftn
    >>> rfftn(np.ones((2, 4)), device="cpu").real
    array([[8., 0., 0.],
           [0., 0., 0.]])
    """
    options = Options(out, budget, chunks=chunks, device=device, overwrite=overwrite)
    return run("rfftn", x, s, axes, norm, options, progress)


@composed(gives=gives("irfftn"), plans=plans("irfftn"))
def irfftn(
    x: Any,
    s: Any = None,
    axes: Any = None,
    norm: str | None = None,
    *,
    chunks: Chunks = None,
    out: Any = None,
    budget: BudgetLike = None,
    device: Any = None,
    progress: ProgressLike = False,
    overwrite: bool = False,
) -> Any:
    """The inverse of `rfftn`.

    Parameters
    ----------
    x, s, axes, norm, chunks, out, budget, device, progress, overwrite
        See `chunkflow.fft`.

    Returns
    -------
    array
        `out`, opened where it was a path: real.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BudgetError
        As for `fft`; also an axis named twice, or other than one length for each.

    Examples
    --------
    >>> import numpy as np
    >>> from chunkflow.fft import irfftn, rfftn
    >>> x = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    >>> irfftn(rfftn(x, device="cpu"), s=x.shape, axes=(0, 1), device="cpu").round(12)
    array([[1., 2., 3.],
           [4., 5., 6.]])
    """
    options = Options(out, budget, chunks=chunks, device=device, overwrite=overwrite)
    return run("irfftn", x, s, axes, norm, options, progress)
