"""Random numbers as expressions, each computed from its place (a counter) and a key.

The bits are those of SplitMix64: G. L. Steele, D. Lea, C. H. Flood (2014), "Fast splittable pseudorandom number
generators", OOPSLA. It passes BigCrush. It is not for secrets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from chunkflow.api.lazy.array import Array
from chunkflow.api.lazy.creation import places
from chunkflow.api.lazy.fill import sides_of
from chunkflow.core.units import as_dtype
from chunkflow.errors import ArgumentError, ArgumentTypeError, refused_by
from chunkflow.graph.elementwise import mapped

Size = int | Sequence[int]


def default_rng(seed: Any = None) -> RandomGenerator:
    """A generator of random arrays, as `numpy.random.default_rng`.

    Parameters
    ----------
    seed : int or sequence of int, optional
        Equal seeds give equal numbers. By default the system gives one.

    Returns
    -------
    RandomGenerator

    Raises
    ------
    ArgumentTypeError, ArgumentError
        It is neither an int nor several, or negative.

    Examples
    --------
    >>> import chunkflow as cf
    >>> x = cf.random.default_rng(1).random((1000, 1000))
    >>> bool(abs(x.mean().compute(device="cpu") - 0.5) < 0.001)
    True
    """
    return RandomGenerator(seed)


class RandomGenerator:
    """Makes random arrays, with the methods of `numpy.random.Generator`; `default_rng` makes one.

    Arrays are expressions: nothing is computed, or kept, before a result is asked for. Each call gives other numbers,
    which are the same for any blocks, budget, device and number of workers: uniform numbers and integers to the bit,
    others as exactly as the device computes logarithms and cosines. They are not NumPy's.

    Examples
    --------
    >>> import chunkflow as cf
    >>> rng = cf.random.default_rng(7)
    >>> x = rng.integers(10, size=(100, 100))
    >>> bool((x[3, :5].compute(device="cpu") == x.compute(device="cpu")[3, :5]).all())
    True
    """

    def __init__(self, seed: Any) -> None:
        try:
            self._entropy = np.random.SeedSequence(seed).entropy
        except TypeError:
            raise ArgumentTypeError(f"seed={seed!r} must be an int or several, or None") from None
        except ValueError:
            raise ArgumentError(f"seed={seed!r} must not be negative") from None
        self._calls = 0

    def __repr__(self) -> str:
        return f"<chunkflow.random.RandomGenerator: seed {self._entropy}, {self._calls} arrays made>"

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(np.random.Generator, name):
            known = ", ".join(key for key in vars(type(self)) if not key.startswith("_"))
            raise AttributeError(
                f"a generator of expressions has no {name}: it has {known}. Of an array in memory "
                f"chunkflow.open(numpy.random.default_rng(seed).{name}(...)) is one"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def random(self, size: Size | None = None, dtype: Any = np.float64) -> Array:
        """Uniform numbers from 0 to below 1.

        Parameters
        ----------
        size : int or sequence of int, optional
            Shape of the array; by default that of the other arguments, which is one of no axes for numbers.
        dtype : {float64, float32}
            They are multiples of 2**-53, or of 2**-24.

        Returns
        -------
        Array

        Examples
        --------
        >>> import chunkflow as cf
        >>> rng = cf.random.default_rng(0)
        >>> x = rng.random((1000, 1000))
        >>> abs(float(x.mean().compute(device="cpu")) - 0.5) < 0.01
        True
        """
        return self._drawn(_uniform, size, 1, dtype=_float(dtype))

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Size | None = None) -> Array:
        """Uniform numbers from `low` to below `high`, in double precision.

        Raises
        ------
        ArgumentError
            `high` is below `low`, or they are not a finite distance apart.

        Examples
        --------
        >>> import chunkflow as cf
        >>> rng = cf.random.default_rng(0)
        >>> x = rng.uniform(-1, 3, size=1000)
        >>> float(x.min().compute(device="cpu")) >= -1, float(x.max().compute(device="cpu")) < 3
        (True, True)
        """
        return low + _distance(low, high) * self.random(_fitting(size, low, high))  # type: ignore[no-any-return]

    def integers(
        self, low: int, high: int | None = None, size: Size | None = None, dtype: Any = np.int64, endpoint: bool = False
    ) -> Array:
        """Uniform integers from `low` to below `high`, or with `endpoint` up to it; with one bound from 0 to it.

        Numbers differ in probability by less than their number / 2**64.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            There is no integer between them, or the dtype does not hold one.

        Examples
        --------
        >>> import chunkflow as cf
        >>> rng = cf.random.default_rng(0)
        >>> dice = rng.integers(1, 6, size=1000, endpoint=True)
        >>> cf.unique(dice, device="cpu")
        array([1, 2, 3, 4, 5, 6])
        """
        wanted = as_dtype(dtype).newbyteorder("=")
        if wanted.kind not in "iu":
            raise ArgumentTypeError(f"dtype={dtype!r} must be of integers")
        first, last = (0, low) if high is None else (low, high)
        for name, value in (("low", first), ("high", last)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise ArgumentTypeError(f"{name}={value!r} must be an int")
        first, number = int(first), int(last) - int(first) + endpoint
        limits = np.iinfo(wanted)
        if number < 1 or first < limits.min or first + number - 1 > limits.max:
            raise ArgumentError(
                f"low={first} and high={last} leave {max(number, 0)} integers, of which {wanted} must hold each: it "
                f"has those from {limits.min} to {limits.max}"
            )
        return self._drawn(_integers, size, 1, first=first, number=number, dtype=wanted)

    def standard_normal(self, size: Size | None = None, dtype: Any = np.float64) -> Array:
        """Numbers of the normal distribution with mean 0 and variance 1, by the transform of Box and Muller (1958).

        Examples
        --------
        >>> import chunkflow as cf
        >>> rng = cf.random.default_rng(0)
        >>> x = rng.standard_normal((1000, 1000), dtype="f4")
        >>> abs(float(x.std().compute(device="cpu")) - 1) < 0.01
        True
        """
        return self._drawn(_normal, size, 2, dtype=_float(dtype))

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Size | None = None) -> Array:
        """Numbers of a normal distribution with mean `loc` and standard deviation `scale`, in double precision.

        Examples
        --------
        >>> import chunkflow as cf
        >>> rng = cf.random.default_rng(0)
        >>> x = rng.normal(10, 2, size=(1000, 1000))
        >>> abs(float(x.mean().compute(device="cpu")) - 10) < 0.02
        True
        """
        return loc + _positive("scale", scale) * self.standard_normal(_fitting(size, loc, scale))  # type: ignore[no-any-return]

    def standard_exponential(self, size: Size | None = None, dtype: Any = np.float64) -> Array:
        """Numbers of the exponential distribution with mean 1, as the logarithms of uniform ones.

        Examples
        --------
        >>> import chunkflow as cf
        >>> rng = cf.random.default_rng(0)
        >>> x = rng.standard_exponential((1000, 1000))
        >>> abs(float(x.mean().compute(device="cpu")) - 1) < 0.01
        True
        """
        return self._drawn(_exponential, size, 1, dtype=_float(dtype))

    def exponential(self, scale: Any = 1.0, size: Size | None = None) -> Array:
        """Numbers of an exponential distribution with mean `scale`, in double precision.

        Examples
        --------
        >>> import chunkflow as cf
        >>> rng = cf.random.default_rng(0)
        >>> x = rng.exponential(3, size=(1000, 1000))
        >>> abs(float(x.mean().compute(device="cpu")) - 3) < 0.03
        True
        """
        return _positive("scale", scale) * self.standard_exponential(_fitting(size, scale))  # type: ignore[no-any-return]

    def _drawn(self, fn: Any, size: Size | None, keys: int, **kwargs: Any) -> Array:
        """An array of what `fn` makes of places in the flat array and some keys, which are other ones in each call."""
        sides = sides_of(() if size is None else size)
        state = np.random.SeedSequence(self._entropy, spawn_key=(self._calls,)).generate_state(keys, np.uint64)
        self._calls += 1
        if not sides:
            return self._drawn_at(fn, (1,), state, kwargs)[0]
        return self._drawn_at(fn, sides, state, kwargs)

    def _drawn_at(self, fn: Any, sides: tuple[int, ...], state: np.ndarray, kwargs: dict[str, Any]) -> Array:
        flat: Any = 0
        for axis, along in enumerate(places(sides)):
            flat = flat + along * math.prod(sides[axis + 1 :]) if axis else along * math.prod(sides[1:])
        return mapped(fn, flat, **{f"key{i}": key for i, key in enumerate(state)}, **kwargs)  # type: ignore[no-any-return]


def _float(dtype: Any) -> np.dtype:
    wanted: np.dtype = as_dtype(dtype).newbyteorder("=")
    if wanted not in (np.float64, np.float32):
        raise ArgumentTypeError(f"dtype={dtype!r} must be float64 or float32: cast the numbers with astype")
    return wanted


def _fitting(size: Size | None, *values: Any) -> tuple[int, ...]:
    """The shape of an array of numbers with parameters, which need not have as many axes."""
    with refused_by("parameters", values):
        shape = np.broadcast_shapes(*map(np.shape, values))
    sides = shape if size is None else sides_of(size)
    with refused_by(f"size={size!r}, and arguments of shape {shape}"):
        np.broadcast_to(np.broadcast_to(np.uint8(0), shape), sides)
    return sides


def _distance(low: Any, high: Any) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):
        found = np.subtract(high, low)
    if not np.all((found >= 0) & np.isfinite(found)):
        raise ArgumentError(f"high={high!r} must not be below low={low!r}, and a finite distance from it")
    return found


def _positive(name: str, value: Any) -> Any:
    if not np.all(np.asarray(value) >= 0):
        raise ArgumentError(f"{name}={value!r} must not be negative")
    return value


_GAMMA, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
"""The constants of SplitMix64."""


def _bits(places: Any, key: np.uint64) -> Any:
    """64 random bits for each place."""
    z = places.astype(np.uint64)
    z += np.uint64(1)
    z *= _GAMMA
    z += key
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        z ^= z >> np.uint64(shift)
        z *= factor
    z ^= z >> np.uint64(31)
    return z


def _uniform(places: Any, key0: np.uint64, dtype: np.dtype) -> Any:
    digits = np.finfo(dtype).nmant + 1
    found = (_bits(places, key0) >> np.uint64(64 - digits)).astype(dtype)
    found *= dtype.type(2.0**-digits)
    return found


def _integers(places: Any, key0: np.uint64, first: int, number: int, dtype: np.dtype) -> Any:
    bits = _bits(places, key0)
    if number < 1 << 64:
        bits = _upper(bits, number)
    return (bits + np.uint64(first % (1 << 64))).astype(dtype)


def _upper(bits: Any, number: int) -> Any:
    """The upper 64 bits of the product, by products of 32 bits: integers below `number`, evenly."""
    half, low = np.uint64(32), np.uint64((1 << 32) - 1)
    a, b = bits >> half, bits & low
    above, below = np.uint64(number >> 32), np.uint64(number & 0xFFFFFFFF)
    crossed = a * below
    middle = (b * below >> half) + (crossed & low)
    if not above:
        return (crossed >> half) + (middle >> half)
    middle += b * above
    return a * above + (crossed >> half) + (middle >> half)


def _exponential(places: Any, key0: np.uint64, dtype: np.dtype) -> Any:
    return -np.log1p(-_uniform(places, key0, dtype))


def _normal(places: Any, key0: np.uint64, key1: np.uint64, dtype: np.dtype) -> Any:
    length = np.sqrt(_exponential(places, key0, dtype) * dtype.type(2))
    return length * np.cos(_uniform(places, key1, dtype) * dtype.type(2 * math.pi))
