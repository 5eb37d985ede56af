"""Gram matrices, covariances and correlations, from one reading of an array."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from chunkflow.budget import BudgetLike
from chunkflow.declare import Declared
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.ops.gemm import Precision, allows_tf32, working
from chunkflow.ops.moments import Gram, Moments, gram_nest
from chunkflow.prepare import Options
from chunkflow.progress import ProgressLike
from chunkflow.run import Request, operation
from chunkflow.spec import ArraySpec


@operation
def gram(
    x: Any,
    *,
    precision: Precision = "highest",
    out: Any = None,
    budget: BudgetLike = None,
    device: Any = None,
    progress: ProgressLike = False,
    overwrite: bool = False,
) -> Any:
    """Gram matrix ``x.conj().T @ x`` of a tall matrix, which is read once.

    Half of the product is computed, the other half mirrored. The whole result stays on the device; where it does
    not fit the budget, ``einsum("ki,kj->ij", x, x)`` gives it tile by tile.

    Parameters
    ----------
    x : array_like, str or path
        Of two dimensions.
    precision, out, budget, device, progress, overwrite
        As for `chunkflow.linalg.matmul`.

    Returns
    -------
    array
        As `chunkflow.linalg.matmul`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BudgetError, ReadError, WriteError
        As `chunkflow.linalg.matmul`.

    Examples
    --------
    >>> import numpy as np
    >>> from chunkflow.covariance import gram
    >>> x = np.random.default_rng(0).random((1000, 4))
    >>> np.allclose(gram(x, budget="100kB", device="cpu"), x.T @ x)
    True
    """
    tf32 = allows_tf32(precision)

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        (spec,) = specs
        if len(spec.shape) != 2:
            raise ArgumentError(f"gram: x has {len(spec.shape)} dimensions; it must be a matrix")
        work = working(spec.dtype)
        nest = gram_nest(spec.shape, 0, work, (work != spec.dtype) + (work.kind == "c"))
        return Declared(nest, Gram(spec.dtype, tf32), (None, None), tiles=False)

    options = Options(out=out, budget=budget, device=device, overwrite=overwrite, workspace=0)
    return Request(declare, (x,), options, progress)


@operation
def cov(
    m: Any,
    y: None = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: None = None,
    aweights: None = None,
    *,
    out: Any = None,
    budget: BudgetLike = None,
    device: Any = None,
    progress: ProgressLike = False,
    overwrite: bool = False,
) -> Any:
    """Covariance matrix, as ``numpy.cov``, from one reading of the data.

    Computed in double precision. Each block's moments are taken about the block's own mean and merged about the
    common one (T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing
    sample variances", 1979), so data far from zero are as accurate as with a reading for the means before. The
    matrix stays on the device.

    Parameters
    ----------
    m : array_like, str or path
        Of one or two dimensions: variables and their samples.
    y, fweights, aweights : None
        Further variables, and weights, are refused.
    rowvar : bool
        Whether rows are variables, columns samples; else the other way round.
    bias : bool
        Divide by the number of samples, not by one less.
    ddof : int, optional
        Divide by the number of samples less `ddof`, whatever `bias` says.
    out, budget, device, progress, overwrite
        As for `chunkflow.linalg.matmul`.

    Returns
    -------
    array
        As `chunkflow.linalg.matmul`; without dimensions for a single variable.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BudgetError, ReadError, WriteError
        As `chunkflow.linalg.matmul`; more than two dimensions.

    Examples
    --------
    >>> import numpy as np
    >>> from chunkflow.covariance import cov
    >>> x = np.random.default_rng(0).random((3, 1000)) + 1e6
    >>> np.allclose(cov(x, budget="100kB", device="cpu"), np.cov(x), rtol=1e-9)
    True
    """
    _refuse("cov", y=y, fweights=fweights, aweights=aweights)
    if ddof is None:
        ddof = 0 if bias else 1
    options = Options(out=out, budget=budget, device=device, overwrite=overwrite, workspace=0)
    return _moments("cov", m, rowvar, ddof, options, progress, normalized=False)


@operation
def corrcoef(
    x: Any,
    y: None = None,
    rowvar: bool = True,
    *,
    out: Any = None,
    budget: BudgetLike = None,
    device: Any = None,
    progress: ProgressLike = False,
    overwrite: bool = False,
) -> Any:
    """Correlation coefficients, as ``numpy.corrcoef``, from one reading of the data.

    Parameters
    ----------
    x, y, rowvar
        As `m`, `y` and `rowvar` for `cov`.
    out, budget, device, progress, overwrite
        As for `chunkflow.linalg.matmul`.

    Returns
    -------
    array
        As `cov`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BudgetError, ReadError, WriteError
        As `cov`.

    Examples
    --------
    >>> import numpy as np
    >>> from chunkflow.covariance import corrcoef
    >>> x = np.arange(10.0)
    >>> corrcoef(np.stack([x, 5 - x]), device="cpu").round(12)
    array([[ 1., -1.],
           [-1.,  1.]])
    """
    _refuse("corrcoef", y=y)
    options = Options(out=out, budget=budget, device=device, overwrite=overwrite, workspace=0)
    return _moments("corrcoef", x, rowvar, 1, options, progress, normalized=True)


def _moments(
    name: str, m: Any, rowvar: bool, ddof: int, options: Options, progress: ProgressLike, *, normalized: bool
) -> Request:
    """Request of a covariance or correlation."""
    if isinstance(ddof, bool) or not isinstance(ddof, int | np.integer):
        raise ArgumentTypeError(f"{name}: ddof must be an int, not {ddof!r}")

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        (spec,) = specs
        ndim = len(spec.shape)
        if ndim not in (1, 2):
            raise ArgumentError(f"{name}: the array has {ndim} dimensions; it must have one or two")
        samples = ndim - 1 if rowvar else 0
        count = spec.shape[samples]
        if count <= ddof:
            warnings.warn(
                f"{name}: degrees of freedom <= 0 ({count} samples, ddof={ddof})", RuntimeWarning, stacklevel=2
            )
        single = ndim == 1 or spec.shape[1 - samples] == 1
        wide = np.result_type(spec.dtype, np.float64)
        kernel = Moments(samples, wide, int(ddof), normalized, single)
        axes = () if single else (None, None)
        nest = gram_nest(spec.shape, samples, wide, 2 if wide.kind == "c" else 1)
        return Declared(nest, kernel, axes, tiles=False)

    return Request(declare, (m,), options, progress)


def _refuse(name: str, **given: Any) -> None:
    for argument, value in given.items():
        if value is not None:
            raise ArgumentError(
                f"{name}: {argument}= is not supported: store further variables in the same array; weights have no "
                "counterpart here"
            )
