"""Gram matrices, covariances and correlations, from one reading of an array."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from chunkflow.api.operation import ArraySpec, Declared, Options, Request, RunOptions, check_eager, check_int, family
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.kernels.linalg.gemm import Precision, allows_tf32, working
from chunkflow.kernels.linalg.gram import Gram, Moments, gram_nest, moments_nest
from chunkflow.stores.checks import elements_of
from chunkflow.system.users_line import users_line

product_operation = family(
    """A product of arrays.

    Parameters
    ----------
    precision : {"highest", "tf32"}
        Of products of single precision. "tf32" is to let a GPU round the factors to 10 bits for its tensor cores; so
        far it is checked and has no effect on any device.
    out : array, str or path, optional
        As for `chunkflow.map`; it may not be one of the operands.

    Returns
    -------
    array
        `out`, opened where it was a path; a scalar for two vectors.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Shapes that do not match; a scalar; an output of the wrong shape or dtype.
    """
)


@product_operation
def gram(x: Any, *, precision: Precision = "highest", **options: Unpack[RunOptions]) -> Request:
    """Gram matrix ``x.conj().T @ x`` of a tall matrix, which is read once.

    Half of the product is computed, the other half mirrored. The whole result stays on the device; where it does
    not fit the budget, ``einsum("ki,kj->ij", x, x)`` gives it tile by tile.

    Parameters
    ----------
    x : array_like, str or path
        Of two dimensions.

    Examples
    --------
    >>> x = np.random.default_rng(0).random((1000, 4))
    >>> np.allclose(cf.gram(x, budget="100kB", device="cpu"), x.T @ x)
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

    return Request(declare, (x,), Options(**options, workspace=0))


@product_operation
def cov(
    m: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
    **options: Unpack[RunOptions],
) -> Request:
    """Covariance matrix, as ``numpy.cov``, from one reading of the data.

    Computed in double precision. Each block's moments are taken about the block's own mean and merged about the
    common one (T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing
    sample variances", 1979), so data far from zero are as accurate as with a reading for the means before. The
    matrix stays on the device.

    Parameters
    ----------
    m : array_like, str or path
        Of one or two dimensions: variables and their samples.
    y : array_like, str or path, optional
        Further variables, with as many samples.
    rowvar : bool
        Whether rows are variables, columns samples; else the other way round.
    bias : bool
        Divide by the number of samples, not by one less.
    ddof : int, optional
        Divide by the number of samples less `ddof`, whatever `bias` says.
    fweights : array_like of int, optional
        How often each sample is counted. Weights are held in host memory.
    aweights : array_like, optional
        How much each sample counts, beside the others.

    Returns
    -------
    array
        `out`, opened where it was a path; without dimensions for a single variable.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        More than two dimensions; weights that are negative, or not one for each sample.

    Examples
    --------
    >>> x = np.random.default_rng(0).random((3, 1000)) + 1e6
    >>> np.allclose(cf.cov(x, budget="100kB", device="cpu"), np.cov(x), rtol=1e-9)
    True
    """
    if ddof is None:
        ddof = 0 if bias else 1
    often, much = _weights("fweights", fweights), _weights("aweights", aweights)
    if often is not None and (often != np.rint(often)).any():
        raise ArgumentTypeError("cov: fweights must be whole numbers: samples are counted so many times")
    return _moments("cov", m, y, rowvar, ddof, options, often=often, much=much, normalized=False)


@product_operation
def corrcoef(x: Any, y: Any = None, rowvar: bool = True, **options: Unpack[RunOptions]) -> Request:
    """Correlation coefficients, as ``numpy.corrcoef``, from one reading of the data.

    Parameters
    ----------
    x, y, rowvar
        As `m`, `y` and `rowvar` for `cov`.

    Returns
    -------
    array
        As `cov`.

    Examples
    --------
    >>> x = np.arange(10.0)
    >>> cf.corrcoef(np.stack([x, 5 - x]), device="cpu").round(12)
    array([[ 1., -1.],
           [-1.,  1.]])
    """
    return _moments("corrcoef", x, y, rowvar, 1, options, normalized=True)


def _moments(
    name: str,
    m: Any,
    y: Any,
    rowvar: bool,
    ddof: int,
    options: RunOptions,
    *,
    often: np.ndarray | None = None,
    much: np.ndarray | None = None,
    normalized: bool,
) -> Request:
    check_int(f"{name}: ddof", ddof)
    weights = often if much is None else much if often is None else often * much

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        arrays = specs if weights is None else specs[:-1]
        shapes = [spec.shape for spec in arrays]
        for shape in shapes:
            if len(shape) not in (1, 2):
                raise ArgumentError(f"{name}: the array has {len(shape)} dimensions; it must have one or two")
        samples = tuple([len(shape) - 1 if rowvar else 0 for shape in shapes])
        counts = [shape[along] for shape, along in zip(shapes, samples, strict=True)]
        if len(set(counts)) > 1:
            raise ArgumentError(f"{name}: m has {counts[0]} samples and y has {counts[1]}: they must be as many")
        freedom: float = counts[0] - ddof
        if weights is not None:
            if weights.shape != (counts[0],):
                raise ArgumentError(
                    f"{name}: there are {counts[0]} samples and {weights.size} weights: give one for each"
                )
            freedom = _freedom(weights, much, ddof)
        if freedom <= 0:
            what = f"{counts[0]} samples" if weights is None else f"weights of {weights.sum()}"
            warnings.warn(
                f"{name}: degrees of freedom <= 0 ({what}, ddof={ddof})", RuntimeWarning, stacklevel=users_line()
            )
        variables = sum(1 if len(s) == 1 else s[1 - along] for s, along in zip(shapes, samples, strict=True))
        single = variables == 1
        wide = np.result_type(np.float64, *[spec.dtype for spec in arrays])
        given = None if weights is None else max(freedom, 0.0)
        kernel = Moments(samples, wide, int(ddof), normalized, single, given)
        axes = () if single else (None, None)
        if len(specs) == 1:
            nest = gram_nest(shapes[0], samples[0], wide, 2 if wide.kind == "c" else 1)
        else:
            nest = moments_nest(shapes, samples, weights is not None, wide)
        return Declared(nest, kernel, axes, tiles=False)

    arrays = [m, *([] if y is None else [y]), *([] if weights is None else [weights])]
    return Request(declare, arrays, Options(**options, workspace=0))


def _weights(name: str, given: Any) -> np.ndarray | None:
    if given is None:
        return None
    check_eager("cov", **{name: given})
    weights = elements_of(given)
    if weights.dtype.kind not in "buif":
        raise ArgumentTypeError(f"cov: {name} have dtype {weights.dtype}; they must be real numbers")
    if weights.ndim != 1:
        raise ArgumentError(f"cov: {name} have shape {weights.shape}; they must have one dimension")
    if (weights < 0).any():
        raise ArgumentError(f"cov: {name} has a negative weight, {weights.min()}")
    return weights


def _freedom(weights: np.ndarray, much: np.ndarray | None, ddof: int) -> float:
    """What to divide by, as NumPy has it."""
    total = float(weights.sum(dtype=np.float64))
    if not total:
        raise ArgumentError("cov: the weights sum to zero")
    if not ddof:
        return total
    return total - ddof if much is None else total - ddof * float((weights * much).sum(dtype=np.float64)) / total
