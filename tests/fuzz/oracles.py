"""What scripts of the fuzzer use: comparison, and in NumPy what it has no function for."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr

import chunkflow as cf

__all__ = [
    "ArrayLike", "StillRefusedError", "argtopk", "around", "as_dask", "convolved", "difference", "edges", "einsum",
    "extremes", "gathered", "in_labels", "in_memory", "least_and_most", "named", "neighbours", "norm", "overlapped",
    "same", "tight", "topk",
]  # fmt: skip

ROUNDING = {2: 1e-2, 4: 2e-6, 8: 1e-13}
"""Errors of sums, products and transforms beside the largest number, by the bytes of a real number."""


class StillRefusedError(Exception):
    """The smallest budget that a refusal named does not do."""


def same(got: Any, wanted: Any, signed: bool = True, scale: float | None = None, real: int = 8) -> None:
    """Compare shape, dtype and values, to the bit where no scale of rounding is given.

    Rounding is that of real numbers of so many bytes.
    """
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape, f"shape {got.shape}, NumPy's {wanted.shape}"
    assert got.dtype.newbyteorder("=") == wanted.dtype.newbyteorder("="), f"dtype {got.dtype}, NumPy's {wanted.dtype}"
    if scale is None or wanted.dtype.kind in "biu":
        np.testing.assert_array_equal(got, wanted)
        if signed and wanted.dtype.kind in "fc":
            for one, other in ((got.real, wanted.real), (got.imag, wanted.imag)):
                differ = (np.signbit(one) != np.signbit(other)) & ~np.isnan(other)
                assert not differ.any(), f"{differ.sum()} signs of zeros differ"
        return
    np.testing.assert_allclose(got, wanted, rtol=ROUNDING[real], atol=ROUNDING[real] * scale)


def tight(call: Callable[[int], Any], factor: float = 1.0) -> Any:
    """What a call gives with the smallest budget that it names, or a multiple of it."""
    try:
        return call(1)
    except cf.BudgetError as refused:
        if refused.smallest is None:
            raise StillRefusedError(f"no smallest budget is named: {refused}") from refused
        smallest = refused.smallest
    try:
        return call(int(smallest * factor))
    except cf.BudgetError as refused:
        raise StillRefusedError(f"{smallest} was named as the smallest budget: {refused}") from refused


class ArrayLike:
    """An array that has slicing, and no more."""

    def __init__(self, array: np.ndarray) -> None:
        self._array, self.shape, self.dtype = array, array.shape, array.dtype

    def __getitem__(self, region: Any) -> Any:
        return self._array[region]


def gathered(stream: Any, like: np.ndarray) -> np.ndarray:
    """The array whose blocks a loop gets."""
    found = np.zeros_like(like, like.dtype.newbyteorder("="))
    for chunk in stream:
        found[chunk.region] = on_host(chunk.data)
    return found


def on_host(array: Any) -> np.ndarray:
    """An array of NumPy's, of one of any device."""
    return np.asarray(array.get() if hasattr(array, "get") else array)


def as_dask(*given: Any) -> list[Any]:
    """Arrays as dask's, all but the last argument, which has the sides of their blocks. A single one keeps its own."""
    *arrays, sides = given
    made = [a if isinstance(a, da.Array) else da.from_array(in_memory(a), chunks=sides) for a in arrays]
    return made if len(made) == 1 else [a.rechunk(sides) for a in made]


def named(x: Any) -> Any:
    """An array with names of its dimensions."""
    if isinstance(x, xr.DataArray):
        return x
    plain = x if isinstance(x, da.Array) else in_memory(x)
    return xr.DataArray(plain, dims=[f"d{axis}" for axis in range(plain.ndim)])


def in_memory(x: Any) -> np.ndarray:
    """The array of a source."""
    return np.asarray(cf.copy(x, device="cpu"))


# -- Stencils ------------------------------------------------------------------------------------------------

MODES = {"nearest": "edge", "reflect": "symmetric", "mirror": "reflect", "periodic": "wrap"}


def neighbours(block: Any, reach: int = 1) -> Any:
    """Each element with twice the one before and three times the one behind, along all axes; edges wrap around."""
    found = block
    for axis in range(block.ndim):
        found = found + 2 * np.roll(block, reach, axis) + 3 * np.roll(block, -reach, axis)
    return found


def edges(block: Any) -> Any:
    """The same, without anything beyond the edges."""
    found = block
    for axis in range(block.ndim):
        ahead = np.concatenate([np.take(block, [0], axis), np.take(block, range(block.shape[axis] - 1), axis)], axis)
        found = found + 2 * ahead
    return found


def overlapped(
    fn: Callable[[Any], Any], x: np.ndarray, depth: Any, boundary: Any = "none", iterations: int = 1
) -> np.ndarray:
    """A stencil of a whole array."""
    for _ in range(iterations):
        if boundary == "none":
            x = fn(x)
            continue
        widths = [depth] * x.ndim if isinstance(depth, int) else [depth.get(axis, 0) for axis in range(x.ndim)]
        how = {"mode": MODES[boundary]} if boundary in MODES else {"mode": "constant", "constant_values": boundary}
        padded: Any = np.pad(x, [(n, n) for n in widths], **how)
        x = fn(padded)[tuple(slice(n, n + size) for n, size in zip(widths, x.shape, strict=True))]
    return x


def around(fn: Callable[[Any, Any], Any], x: np.ndarray, y: np.ndarray, depth: Any, boundary: Any) -> np.ndarray:
    """A stencil of two arrays, with depths and boundaries by axis."""
    inner = tuple(
        slice(before, before + n) if kind != "none" else slice(None)
        for n, (before, _), kind in zip(x.shape, depth, boundary, strict=True)
    )
    padded: list[Any] = [x, y]
    for axis, (width, kind) in enumerate(zip(depth, boundary, strict=True)):
        how = {"mode": MODES[kind]} if kind in MODES else {"mode": "constant", "constant_values": kind}
        widths = [width if a == axis else (0, 0) for a in range(x.ndim)]
        padded = [p if kind == "none" else np.pad(p, widths, **how) for p in padded]
    return fn(*padded)[inner]


# -- What NumPy has no function for --------------------------------------------------------------------------


def topk(x: np.ndarray, k: int, axis: int = -1) -> np.ndarray:
    """The `k` largest elements, largest first, or the smallest."""
    found = np.sort(x, axis)
    found = np.flip(found, axis) if k > 0 else found
    return np.take(found, range(min(abs(k), x.shape[axis])), axis)


def argtopk(x: np.ndarray, k: int, axis: int = -1) -> np.ndarray:
    """Places of the `k` largest elements, largest first, or of the smallest; of equal ones the first come first."""
    found = np.argsort(np.flip(x, axis) if k > 0 else x, axis, stable=True)
    found = x.shape[axis] - 1 - np.flip(found, axis) if k > 0 else found
    return np.take(found, range(min(abs(k), x.shape[axis])), axis)


def norm(x: np.ndarray, *args: Any, **kwargs: Any) -> np.ndarray:
    """As `numpy.linalg.norm`."""
    return np.asarray(np.linalg.norm(x, *args, **kwargs))


def least_and_most(block: Any, axis: Any, keepdims: bool) -> Any:
    """Partial results of a block, for a reduction."""
    return {"least": block.min(axis=axis, keepdims=keepdims), "most": block.max(axis=axis, keepdims=keepdims)}


def extremes(partials: Any, axis: Any, keepdims: bool) -> Any:
    """One partial result from several."""
    return {
        "least": partials["least"].min(axis=axis, keepdims=keepdims),
        "most": partials["most"].max(axis=axis, keepdims=keepdims),
    }


def difference(partials: Any, axis: Any, keepdims: bool) -> Any:
    """The result from partial results."""
    found = extremes(partials, axis, keepdims)
    return found["most"] - found["least"]


def in_labels(
    values: np.ndarray, labels: np.ndarray, statistic: str, index: Any = None, background: int | None = None
) -> np.ndarray:
    """A statistic of each label, one after the other."""
    made = {
        "count": lambda v: v.size,
        "sum": lambda v: np.sum(v, dtype="f8" if v.dtype.kind == "f" else None),
        "min": np.min,
        "max": np.max,
        "mean": lambda v: np.mean(v, dtype="f8"),
        "var": lambda v: np.var(v, dtype="f8"),
    }[statistic]
    wanted = np.unique(labels) if index is None else index
    return np.array([made(values[labels == label]) for label in wanted if label != background])


def einsum(subscripts: str, *operands: Any) -> Any:
    """Sums of one operand alone come before the product: of integers NumPy's own overflow, before they are cast."""
    if not all(isinstance(x, np.ndarray) for x in operands):
        return np.einsum(subscripts, *operands)
    dtype = np.result_type(*operands)
    return np.einsum(subscripts, *(x.astype(dtype) for x in operands), optimize=True)


def convolved(x: np.ndarray, kernel: np.ndarray, mode: str) -> np.ndarray:
    """A convolution, element by element of the kernel."""
    whole = np.zeros([n + k - 1 for n, k in zip(x.shape, kernel.shape, strict=True)], np.result_type(x, kernel, "f4"))
    for place in itertools.product(*map(range, kernel.shape)):
        whole[tuple(slice(p, p + n) for p, n in zip(place, x.shape, strict=True))] += x * kernel[place]
    if mode == "full":
        return whole
    if mode == "same":
        starts = [((k - 1) // 2, n) for n, k in zip(x.shape, kernel.shape, strict=True)]
    else:
        starts = [(k - 1, n - k + 1) for n, k in zip(x.shape, kernel.shape, strict=True)]
    return whole[tuple(slice(first, first + n) for first, n in starts)]
