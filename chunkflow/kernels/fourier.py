"""Fourier transforms of a block as one-dimensional steps, and convolution by Fourier transforms.

NumPy's functions are called, which dispatch to CuPy's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chunkflow.core.grid import Region, Shape
from chunkflow.errors import ArgumentError, ArgumentTypeError, AxisError
from chunkflow.kernels.protocol import calls, is_trial

NORMS = (None, "backward", "ortho", "forward")
"""NumPy's normalizations."""


@dataclass(frozen=True)
class LineTransform:
    """A one-dimensional transform of every line along an axis.

    Attributes
    ----------
    name : {'fft', 'ifft', 'rfft', 'irfft'}
        NumPy's function.
    axis : int
        Axis that is transformed.
    points : int
        Length of the transform: lines are cut or padded with zeros. For ``irfft`` the length of the result.
    norm : str or None
        Normalization.
    """

    name: str
    axis: int
    points: int
    norm: str | None = None

    @property
    def length(self) -> int:
        """Elements of a line of the result.

        >>> LineTransform("rfft", 0, 10).length
        6
        """
        return self.points // 2 + 1 if self.name == "rfft" else self.points

    def __call__(self, block: Any) -> Any:
        """The transform of a block that has the axis in full."""
        half = block.dtype.char == "e"  # NumPy would scale it in half precision: other values in another order of axes
        found = getattr(np.fft, self.name)(block.astype("f4") if half else block, self.points, self.axis, self.norm)
        return found.astype("f2") if half and self.name == "irfft" else found


@calls("FFT")
def transformed(block: Any, steps: Sequence[LineTransform]) -> Any:
    """A block after several steps.

    >>> transformed(np.ones((2, 4)), [LineTransform("rfft", 1, 4), LineTransform("fft", 0, 2)]).real
    array([[8., 0., 0.],
           [0., 0., 0.]])
    """
    for step in steps:
        block = step(block)
    return block


def result_of(shape: Shape, dtype: np.dtype, steps: Sequence[LineTransform]) -> tuple[Shape, np.dtype]:
    """Shape and dtype of the result of some steps.

    >>> result_of((3, 8), np.dtype("f4"), [LineTransform("rfft", 1, 8)])
    ((3, 5), dtype('complex64'))
    """
    sides, line = list(shape), np.zeros(2, dtype)
    for step in steps:
        sides[step.axis] = step.length
        line = LineTransform(step.name, 0, 2, step.norm)(line)
    return tuple(sides), line.dtype


# -- Arguments of NumPy's functions ------------------------------------------------------------


def one_step(name: str, shape: Shape, dtype: np.dtype, n: Any, axis: Any, norm: Any) -> tuple[LineTransform, ...]:
    """The step of ``numpy.fft.<name>(x, n, axis, norm)``. Refused is what NumPy refuses, or would for some block."""
    along = _axis(axis, len(shape), "axis")
    _check(name, dtype, norm)
    own = 2 * (shape[along] - 1) if name == "irfft" else shape[along]
    points = own if n is None else _index(n, "n")
    return (_step(name, along, points, norm, shape[along]),)


def all_steps(name: str, shape: Shape, dtype: np.dtype, s: Any, axes: Any, norm: Any) -> tuple[LineTransform, ...]:
    """The steps of ``numpy.fft.<name>(x, s, axes, norm)``, in NumPy's order; `name` ends in ``n``.

    The real transform is the first step of ``rfftn`` and the last one of ``irfftn``.

    >>> [(step.name, step.axis) for step in all_steps("irfftn", (4, 5, 6), np.dtype("c8"), None, None, None)]
    [('ifft', 0), ('ifft', 1), ('irfft', 2)]
    """
    kind = name.removesuffix("n")
    _check(kind, dtype, norm)
    given = None if s is None else _listed(s, "s")
    if given is not None and None in given:  # NumPy took it, and warned of it
        raise ArgumentTypeError(f"s={s!r} must be of ints, of which -1 stands for as many as an axis has")
    lengths = None if given is None else [_index(n, "s") for n in given]
    if axes is not None:
        found = [_axis(axis, len(shape), "axes") for axis in _listed(axes, "axes")]
    else:
        number = len(shape) if lengths is None else len(lengths)
        if number > len(shape):
            raise ArgumentError(f"s={s!r} has {number} lengths and the array {len(shape)} axes: give one for each")
        found = list(range(len(shape) - number, len(shape)))
    if not found:
        raise ArgumentError(f"there is no axis to transform: axes={axes!r} of an array with {len(shape)} dimensions")
    if len(set(found)) != len(found):
        raise ArgumentError(f"axes={axes!r} names an axis twice: transform it in two calls")
    if lengths is None:
        lengths = [shape[axis] for axis in found]
        if kind == "irfft":
            lengths[-1] = 2 * (shape[found[-1]] - 1)
    elif len(lengths) != len(found):
        raise ArgumentError(f"s={s!r} has {len(lengths)} lengths for {len(found)} axes: give one for each")
    pairs = [(axis, shape[axis] if n == -1 else n) for axis, n in zip(found, lengths, strict=True)]
    if kind in ("fft", "ifft"):
        return tuple(_step(kind, axis, n, norm, shape[axis]) for axis, n in reversed(pairs))
    plain = [_step(kind.replace("r", ""), axis, n, norm, shape[axis]) for axis, n in pairs[:-1]]
    axis, n = pairs[-1]
    real = _step(kind, axis, n, norm, shape[axis])
    return (real, *reversed(plain)) if kind == "rfft" else (*plain, real)


def _step(name: str, axis: int, points: int, norm: str | None, extent: int) -> LineTransform:
    if points < 1:
        raise ArgumentError(
            f"a transform of {points} points along axis {axis}, which has {extent} elements: at least 1 is needed; "
            "say how many with n= or s="
        )
    return LineTransform(name, axis, points, norm)


def _check(name: str, dtype: np.dtype, norm: Any) -> None:
    if not (norm is None or isinstance(norm, str)) or norm not in NORMS:
        raise ArgumentError(f"norm={norm!r} is unknown: use one of {', '.join(map(repr, NORMS))}")
    if name == "rfft" and dtype.kind == "c":
        raise ArgumentTypeError(f"{name} transforms real numbers, and the array's dtype is {dtype}: use fft or fftn")


def _axis(axis: Any, ndim: int, name: str) -> int:
    found = _index(axis, name)
    if not -ndim <= found < ndim:
        raise AxisError(f"{name}={found} is out of bounds for {ndim} dimensions")
    return found % ndim


def _index(value: Any, name: str) -> int:
    try:
        if not isinstance(value, bool | np.bool_):
            return operator.index(value)
    except TypeError:
        pass
    raise ArgumentTypeError(f"{name} must be an int, not {value!r}")


def _listed(values: Any, name: str) -> list[Any]:
    if isinstance(values, str) or not hasattr(values, "__iter__"):
        raise ArgumentTypeError(f"{name} must be a sequence of ints, not {values!r}")
    return list(values)


# -- Convolution ---------------------------------------------------------------------------------------------


def fast_length(least: int) -> int:
    """Smallest length with no prime factor beyond 7 that is at least `least`.

    >>> [fast_length(n) for n in (1, 11, 17, 97, 1000, 1021)]
    [1, 12, 18, 98, 1000, 1024]
    """
    best = 1 << max(least - 1, 0).bit_length()
    sevens = 1
    while sevens < best:
        fives = sevens
        while fives < best:
            threes = fives
            while threes < best:
                # The smallest power of two that makes it long enough.
                best = min(best, threes << (-(-least // threes) - 1).bit_length())
                threes *= 3
            fives *= 5
        sevens *= 7
    return best


@calls("FFT")
def convolved(block: Any, kernel: np.ndarray, dtype: np.dtype) -> Any:
    """Convolution of a block with a kernel of as many dimensions, where the kernel lies within the block.

    There a cyclic convolution of at least the block's length equals the plain one: overlap-save, after T. G. Stockham
    (1966), "High-speed convolution and correlation", AFIPS 28, 229-233.

    A transform spreads NaN and infinities over the whole block. So elements that are not finite are left out of it, and
    come back in the results that they reach: as in a plain convolution of real numbers, as NaN of complex ones.

    >>> convolved(np.arange(6.0), np.array([1.0, -1.0]), np.dtype("f8")).round(12)
    array([1., 1., 1., 1., 1.])
    >>> convolved(np.array([0, 1, np.inf, 3, 4, 5]), np.array([1.0, -1.0]), np.dtype("f8")).round(12)
    array([  1.,  inf, -inf,   1.,   1.])
    """
    if kernel.size == 1 or not block.size:
        return block.astype(dtype, copy=False) * np.asarray(kernel, like=block)

    def weights() -> Any:
        return np.asarray(kernel, like=block)

    with np.errstate(all="ignore"):  # the sum only asks whether there is such an element; it may overflow
        finite = block.dtype.kind not in "fc" or bool(np.isfinite(block.sum(dtype=dtype)))
    if finite and not (is_trial() and block.dtype.kind in "fc"):
        return _convolved(lambda: block.astype(dtype, copy=False), weights, kernel.shape)
    inner = [n - k + 1 for n, k in zip(block.shape, kernel.shape, strict=True)]
    reached = np.zeros_like(block, dtype="u1", shape=tuple(inner))
    for bit, elements, taps in _SPREAD_COMPLEX if dtype.kind == "c" else _SPREAD:
        if elements(block).any() and taps(kernel).any():
            _mark(reached, bit, block, elements, kernel, taps)
    if is_trial():
        _mark(reached, _NONE, block, np.isfinite, kernel, np.isfinite)
    finite_part = lambda: np.where(np.isfinite(block), block, 0).astype(dtype, copy=False)  # noqa: E731
    found = _convolved(finite_part, weights, kernel.shape)
    found[reached & _INFINITE > 0] = np.inf
    found[reached & _BELOW > 0] = -np.inf
    found[(reached & _NAN > 0) | (reached & (_INFINITE | _BELOW) == _INFINITE | _BELOW)] = np.nan
    return found


_NONE, _INFINITE, _BELOW, _NAN = np.uint8(0), np.uint8(1), np.uint8(2), np.uint8(4)
"""Bits that say what the elements that reach a result make of it: infinite, minus infinite, NaN. The first two together
make NaN."""

Chosen = Callable[[Any], Any]
"""Which of an array's elements are meant."""

_SPREAD: tuple[tuple[np.uint8, Chosen, Chosen], ...] = (
    (_INFINITE, lambda x: x == np.inf, lambda w: w > 0),
    (_INFINITE, lambda x: x == -np.inf, lambda w: w < 0),
    (_BELOW, lambda x: x == np.inf, lambda w: w < 0),
    (_BELOW, lambda x: x == -np.inf, lambda w: w > 0),
    (_NAN, np.isinf, lambda w: w == 0),
    (_NAN, np.isnan, np.isfinite),
)
"""What some elements, by some weights, make of results."""

_SPREAD_COMPLEX: tuple[tuple[np.uint8, Chosen, Chosen], ...] = ((_NAN, lambda x: ~np.isfinite(x), np.isfinite),)


def _mark(reached: Any, bit: np.uint8, block: Any, elements: Chosen, kernel: np.ndarray, taps: Chosen) -> None:
    """Set a bit of the results that one of some elements reaches by one of some weights."""
    marks = lambda: elements(block).astype("f8")  # noqa: E731
    found = _convolved(marks, lambda: np.asarray(taps(kernel).astype("f8"), like=block), kernel.shape)
    reached |= (found > 0.5).view("u1") * bit


def _convolved(make: Callable[[], Any], make_weights: Callable[[], Any], kernel: Shape) -> Any:
    """Convolution of finite numbers. Both arrays are made when they are needed, and dropped once transformed."""
    *others, last = [axis for axis, k in enumerate(kernel) if k > 1]
    block = make()
    sides, is_real = [fast_length(n) for n in block.shape], block.dtype.kind != "c"
    inner: Region = tuple([slice(k - 1, n) for k, n in zip(kernel, block.shape, strict=True)])
    forward, back = (np.fft.rfft, np.fft.irfft) if is_real else (np.fft.fft, np.fft.ifft)
    spectrum = forward(block, sides[last], last)
    del block
    for axis in others:
        spectrum = np.fft.fft(spectrum, sides[axis], axis)
    response = forward(make_weights(), sides[last], last)
    for axis in others:
        response = np.fft.fft(response, sides[axis], axis)
    spectrum *= response
    del response
    for axis in others:
        spectrum = np.fft.ifft(spectrum, sides[axis], axis)
    return back(spectrum, sides[last], last)[inner]
