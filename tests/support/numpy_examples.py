"""Calls of NumPy's functions, of arrays and of lazy ones alike."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from chunkflow.api.lazy.numpy_dispatch import name_of

rng = np.random.default_rng(5)
X = rng.integers(-9, 9, (6, 4, 5)) / 4.0
Y = rng.integers(1, 9, (6, 4, 5)) / 4.0
N = np.where(X > 1.5, np.nan, X)
M = X[:, :, 0]
Z = X + 1j * Y
I = rng.integers(0, 7, (6, 4))  # noqa: E741


def _pairs(line: Any) -> Any:
    return np.stack([line[:2], line[2:4]])


FOLDER = tempfile.TemporaryDirectory()


def _saved(x: Any) -> np.ndarray:
    """What is in a file that an array was saved to."""
    np.save(f"{FOLDER.name}/x", x)
    found: np.ndarray = np.load(f"{FOLDER.name}/x.npy")
    return found


# What each function is tried on: given an array, or a lazy one, for x, y, n (with NaN), m (two axes), z, i.
EXAMPLES: dict[Any, list[Callable[..., Any]]] = {
    np.angle: [lambda z, **_: np.angle(z)],
    np.around: [lambda x, **_: np.around(x, 1)],
    np.round: [lambda x, **_: np.round(x, decimals=1)],
    np.clip: [lambda x, **_: np.clip(x, -1, 1), lambda x, y, **_: np.clip(x, None, y)],
    np.fix: [lambda x, **_: np.fix(x)],
    np.i0: [lambda x, **_: np.i0(x)],
    np.imag: [lambda z, **_: np.imag(z)],
    np.real: [lambda z, **_: np.real(z)],
    np.iscomplex: [lambda z, **_: np.iscomplex(z)],
    np.isreal: [lambda z, **_: np.isreal(z)],
    np.isclose: [lambda x, y, **_: np.isclose(x, y, atol=0.5)],
    np.isneginf: [lambda x, **_: np.isneginf(x)],
    np.isposinf: [lambda x, **_: np.isposinf(x)],
    np.nan_to_num: [lambda n, **_: np.nan_to_num(n, nan=3.0)],
    np.sinc: [lambda x, **_: np.sinc(x)],
    np.where: [lambda x, y, **_: np.where(x > y, x, 0)],
    np.select: [lambda x, y, **_: np.select([x > y, x > 0], [x, y], default=7.0)],
    np.interp: [lambda x, **_: np.interp(x, [-1, 0, 1], [3, 4, 9])],
    np.digitize: [lambda x, **_: np.digitize(x, [-1, 0, 1])],
    np.isin: [lambda i, **_: np.isin(i, [1, 3])],
    np.astype: [lambda x, **_: np.astype(x, np.int16)],
    np.zeros_like: [lambda x, **_: np.zeros_like(x, shape=(2, 3)), lambda x, **_: np.zeros_like(x, dtype="i4")],
    np.ones_like: [lambda x, **_: np.ones_like(x)],
    np.empty_like: [lambda x, **_: np.empty_like(x) * 0],
    np.full_like: [lambda x, **_: np.full_like(x, 3)],
    np.copy: [lambda x, **_: np.copy(x)],
    np.shape: [lambda x, **_: np.shape(x)],
    np.ndim: [lambda x, **_: np.ndim(x)],
    np.size: [lambda x, **_: np.size(x), lambda x, **_: np.size(x, 1)],
    np.iscomplexobj: [lambda z, **_: np.iscomplexobj(z)],
    np.isrealobj: [lambda z, **_: np.isrealobj(z)],
    np.result_type: [lambda x, **_: np.result_type(x, np.complex64)],
    np.sum: [
        lambda x, **_: np.sum(x, axis=(0, 2)),
        lambda x, y, **_: np.sum(x, axis=1, where=y > 1),
        lambda x, **_: np.sum(x, initial=2.0),
    ],
    np.prod: [lambda y, **_: np.prod(y, axis=1), lambda y, x, **_: np.prod(y, axis=0, where=x > 0)],
    np.mean: [lambda x, **_: np.mean(x, axis=1, keepdims=True), lambda x, y, **_: np.mean(x, where=y > 1)],
    np.min: [lambda x, **_: np.min(x, axis=0), lambda x, y, **_: np.min(x, axis=0, initial=9.0, where=y > 1)],
    np.max: [lambda x, **_: np.max(x), lambda x, **_: np.max(x, axis=2, initial=0.0)],
    np.amin: [lambda x, **_: np.amin(x, 0)],
    np.amax: [lambda x, **_: np.amax(x, 0)],
    np.any: [lambda x, **_: np.any(x > 2, axis=0)],
    np.all: [lambda x, y, **_: np.all(x > -3, axis=0, where=y > 1)],
    np.var: [lambda x, **_: np.var(x, axis=0, ddof=1)],
    np.std: [
        lambda x, **_: np.std(x),
        lambda z, y, **_: np.std(z, 0, mean=np.mean(z, 0, keepdims=True), where=y > 1, ddof=1),
    ],
    np.average: [lambda x, y, **_: np.average(x, axis=0, weights=y), lambda x, **_: np.average(x)],
    np.ptp: [lambda x, **_: np.ptp(x, axis=1)],
    np.argmin: [lambda x, **_: np.argmin(x)],
    np.argmax: [lambda x, **_: np.argmax(x, axis=1)],
    np.count_nonzero: [lambda x, **_: np.count_nonzero(x, axis=0)],
    np.linalg.norm: [
        *(lambda x, ord=ord, **_: np.linalg.norm(x, ord, (0, 2), keepdims=ord == 2) for ord in (2, -2, "nuc")),
        lambda x, **_: np.linalg.norm(x),
        lambda m, **_: np.linalg.norm(m, axis=1),
    ],
    np.nansum: [lambda n, **_: np.nansum(n, axis=0)],
    np.nanprod: [lambda n, **_: np.nanprod(n, axis=1)],
    np.nanmean: [lambda n, **_: np.nanmean(n)],
    np.nanvar: [lambda n, **_: np.nanvar(n)],
    np.nanstd: [lambda n, **_: np.nanstd(n)],
    np.nanmin: [lambda n, **_: np.nanmin(n)],
    np.nanmax: [lambda n, **_: np.nanmax(n)],
    np.nanargmin: [lambda n, **_: np.nanargmin(n)],
    np.nanargmax: [lambda n, **_: np.nanargmax(n)],
    np.nancumsum: [lambda n, **_: np.nancumsum(n, axis=0)],
    np.nancumprod: [lambda n, **_: np.nancumprod(n, axis=1)],
    np.allclose: [lambda x, y, **_: np.allclose(x, y)],
    np.array_equal: [lambda x, y, **_: np.array_equal(x, x + 0 * y)],
    np.quantile: [
        lambda x, **_: np.quantile(x, [0.2, 0.5], axis=0),
        lambda x, **_: np.quantile(x, 0.3, method="lower"),
    ],
    np.percentile: [lambda x, **_: np.percentile(x, 20, axis=(0, 1), keepdims=True)],
    np.median: [lambda x, **_: np.median(x, axis=2)],
    np.nanquantile: [
        lambda n, **_: np.nanquantile(n, [0.2, 0.5], axis=0),
        lambda n, **_: np.nanquantile(n, [[0.2, 0.5], [0.9, 0]], axis=1, keepdims=True),
    ],
    np.nanpercentile: [lambda n, **_: np.nanpercentile(n, 20)],
    np.nanmedian: [lambda n, **_: np.nanmedian(n, axis=1)],
    np.histogram: [lambda x, **_: np.histogram(x, 5, (-2, 2)), lambda x, y, **_: np.histogram(x, [0, 1, 3], weights=y)],
    np.histogram_bin_edges: [
        lambda x, **_: np.histogram_bin_edges(x, 5),
        lambda x, **_: np.histogram_bin_edges(x, "fd") * np.sum(x),
    ],
    np.cumsum: [lambda x, **_: np.cumsum(x, axis=1), lambda x, **_: np.cumsum(x)],
    np.cumprod: [lambda y, **_: np.cumprod(y, axis=0)],
    np.cumulative_sum: [lambda x, **_: np.cumulative_sum(x, axis=0)],
    np.cumulative_prod: [lambda y, **_: np.cumulative_prod(y, axis=0)],
    np.diff: [lambda x, **_: np.diff(x, axis=0), lambda x, **_: np.diff(x * 2, 2)],
    np.convolve: [
        lambda m, mode=mode, **_: np.convolve(m[:, 0] + 1, [1.0, 2, 4], mode) for mode in ("full", "same", "valid")
    ],
    np.correlate: [
        lambda z, mode=mode, **_: np.correlate(z[:, 0, 0], [1.0, 2j], mode) for mode in ("full", "same", "valid")
    ],
    np.gradient: [
        lambda x, **_: np.gradient(x),
        lambda m, **_: np.gradient(m, np.array([0.0, 1, 3, 4, 8, 9]), axis=0, edge_order=2),
    ],
    np.trapezoid: [lambda x, **_: np.trapezoid(x, axis=1), lambda x, y, **_: np.trapezoid(x, y, axis=0)],
    np.dot: [lambda m, **_: np.dot(m, m.T)],
    np.inner: [lambda m, **_: np.inner(m, m + 1)],
    np.outer: [lambda m, **_: np.outer(m[0], m[1] * 2), lambda m, **_: np.outer(m[:2], m[1:3])],
    np.lexsort: [
        lambda x, y, **_: np.lexsort((np.round(x), np.round(y)), axis=1),
        lambda m, **_: np.lexsort(np.round(m)),
        lambda n, x, **_: np.lexsort((x, np.round(n)), axis=0),
    ],
    np.sort_complex: [lambda m, **_: np.sort_complex(m), lambda m, **_: np.sort_complex(m > 0)],
    np.tensordot: [lambda x, y, **_: np.tensordot(x, y, axes=([0, 1], [0, 1]))],
    np.einsum: [
        lambda m, **_: np.einsum("ij,kj->ik", m, m + 1),
        lambda m, **_: np.einsum("ii", m[:4]),
        lambda x, **_: np.einsum("...ii->...i", x[:, :, :4]),
        lambda x, m, **_: np.einsum("iaa,ia->i", x[:, :, :4], m),
        lambda x, **_: np.einsum("i...i", x[:5]),
        lambda m, **_: np.einsum(m, [0, 1], m + 1, [2, 1], [0, 2]),
        lambda x, m, **_: np.einsum(x, [Ellipsis, 0], x[0], [1, 0]),
    ],
    np.linalg.matmul: [lambda m, **_: np.linalg.matmul(m, m.T)],
    np.linalg.vecdot: [lambda m, **_: np.linalg.vecdot(m, m)],
    np.linalg.outer: [lambda m, **_: np.linalg.outer(m[0], m[1])],
    np.linalg.tensordot: [lambda x, **_: np.linalg.tensordot(x, x, axes=3)],
    np.linalg.matrix_transpose: [lambda x, **_: np.linalg.matrix_transpose(x)],
    np.cov: [lambda m, **_: np.cov(m)],
    np.linalg.lstsq: [lambda m, **_: np.linalg.lstsq(np.vander(np.arange(len(m)) + 1.0, 2), m)[0]],
    np.corrcoef: [lambda m, **_: np.corrcoef(m, rowvar=False)],
    np.transpose: [lambda x, **_: np.transpose(x, (1, 2, 0))],
    np.matrix_transpose: [lambda x, **_: np.matrix_transpose(x)],
    np.moveaxis: [lambda x, **_: np.moveaxis(x, [0, 1], [-1, 0])],
    np.swapaxes: [lambda x, **_: np.swapaxes(x, 0, 2)],
    np.reshape: [
        lambda x, **_: np.reshape(x, (4, -1, 6), order="F"),
        lambda x, **_: np.reshape(x + 1, (4, -1)),
        lambda m, **_: np.reshape(m, -1),
    ],
    np.ravel: [lambda x, **_: np.ravel(x)],
    np.squeeze: [lambda x, **_: np.squeeze(x[:1, :, :1]), lambda x, **_: np.squeeze(x[:1], 0)],
    np.expand_dims: [lambda x, **_: np.expand_dims(x, (0, -1))],
    np.broadcast_to: [lambda m, **_: np.broadcast_to(m, (3, 6, 4))],
    np.broadcast_arrays: [lambda x, **_: np.broadcast_arrays(x, x[0, 0])],
    np.atleast_1d: [lambda x, **_: np.atleast_1d(x.sum())],
    np.atleast_2d: [lambda m, **_: np.atleast_2d(m[0])],
    np.atleast_3d: [lambda x, m, **_: np.atleast_3d(x.sum(), m[0], m, x)],
    np.flip: [lambda x, **_: np.flip(x), lambda x, **_: np.flip(x * 2, 1)],
    np.fliplr: [lambda x, **_: np.fliplr(x)],
    np.flipud: [lambda x, **_: np.flipud(x)],
    np.rot90: [lambda x, k=k, **_: np.rot90(x, k, (0, 2)) for k in range(-1, 4)],
    np.roll: [
        lambda x, **_: np.roll(x, (1, 2)),
        lambda x, **_: np.roll(x, 2, axis=1),
        lambda x, **_: np.roll(x, (1, 2), axis=(0, 1)),
    ],
    np.repeat: [
        lambda x, **_: np.repeat(x, 2, axis=1),
        lambda m, **_: np.repeat(m, 3),
        lambda x, **_: np.repeat(x * 2, [2, 0, 1, 3], axis=1),
        lambda m, **_: np.repeat(m[0], [[2]][0]),
    ],
    np.tile: [lambda m, **_: np.tile(m, (2, 1, 3))],
    np.concatenate: [lambda x, y, **_: np.concatenate([x, y + 1], axis=1)],
    np.append: [lambda x, y, **_: np.append(x, y, axis=0), lambda m, **_: np.append(m, [1.0, 2.0])],
    np.stack: [lambda x, y, **_: np.stack([x, y], axis=-1)],
    np.hstack: [lambda m, **_: np.hstack([m, m])],
    np.vstack: [lambda m, **_: np.vstack([m[0], m])],
    np.dstack: [lambda m, **_: np.dstack([m, m]), lambda m, **_: np.dstack([m[0], m[1]])],
    np.column_stack: [lambda m, **_: np.column_stack([m[:, 0], m])],
    np.unstack: [lambda m, **_: np.unstack(m, axis=1)],
    np.pad: [
        lambda x, **_: np.pad(x, 1),
        lambda m, **_: np.pad(m, ((1, 2), (0, 1)), mode="edge"),
        lambda m, **_: np.pad(m, {-1: (3, 2)}, "linear_ramp", end_values=(-1, 8)),
        lambda i, **_: np.pad(i, (2, 1), "linear_ramp"),
        *(
            lambda i, mode=mode, length=length, **_: np.pad(i, (2, 3), mode, stat_length=length)
            for mode, length in (("maximum", None), ("minimum", 2), ("mean", (1, 3)), ("median", ((9, 1), (2, 2))))
        ),
        *(
            lambda m, mode=mode, widths=widths, **_: np.pad(m, widths, mode, reflect_type="odd")
            for mode in ("reflect", "symmetric")
            for widths in ((1, 2), ((30, 17), (9, 3)))
        ),
        lambda m, **_: np.pad(m, 2, "empty")[2:-2, 2:-2],
    ],
    np.split: [lambda x, **_: np.split(x, 3)],
    np.array_split: [lambda x, **_: np.array_split(x, 4, axis=2)],
    np.hsplit: [lambda x, **_: np.hsplit(x, 2)],
    np.vsplit: [lambda x, **_: np.vsplit(x, [1, 4])],
    np.dsplit: [lambda x, **_: np.dsplit(x, [2])],
    np.fft.fft: [lambda x, **_: np.fft.fft(x, axis=0), lambda z, **_: np.fft.fft(z + 1, 3)],
    np.fft.ifft: [lambda z, **_: np.fft.ifft(z, axis=1, norm="ortho")],
    np.fft.rfft: [lambda x, **_: np.fft.rfft(x * 2, axis=1)],
    np.fft.irfft: [lambda z, **_: np.fft.irfft(z, 7)],
    np.fft.fftn: [lambda x, **_: np.abs(np.fft.fftn(x - x.mean())) ** 2],
    np.fft.ifftn: [lambda z, **_: np.fft.ifftn(z, axes=(0, 2))],
    np.fft.rfftn: [lambda x, **_: np.fft.rfftn(x, s=(4, 6), axes=(0, 1))],
    np.fft.irfftn: [lambda z, **_: np.fft.irfftn(z)],
    np.lib.stride_tricks.sliding_window_view: [
        lambda x, **_: np.lib.stride_tricks.sliding_window_view(x, 3, axis=0).mean(axis=-1),
        lambda x, **_: np.lib.stride_tricks.sliding_window_view(x, (2, 3), axis=(0, 2)),
    ],
    np.take: [
        lambda x, **_: np.take(x, -1, axis=1),
        lambda x, **_: np.take(x, [[2, 0], [-1, 2]], axis=1),
        lambda x, i, **_: np.take(x * 2, i % 2, axis=1),
    ],
    np.compress: [lambda x, **_: np.compress([True, False, True], x, axis=1)],
    np.extract: [lambda x, **_: np.extract(np.arange(X.size) % 3 == 0, x), lambda x, **_: np.extract(x > 1, x + 1)],
    np.take_along_axis: [
        lambda x, **_: np.take_along_axis(x, np.argmax(x, axis=1, keepdims=True), axis=1),
        lambda x, **_: np.take_along_axis(x, np.argsort(Y, axis=0), axis=0),
    ],
    np.sort: [lambda n, **_: np.sort(n, axis=0), lambda x, **_: np.sort(x, None)],
    np.argsort: [lambda n, **_: np.argsort(n, 1, stable=True)],
    np.partition: [
        lambda n, **_: np.partition(n, 2, axis=1)[:, 2],
        lambda x, **_: np.partition(x, (3, -1), None)[[3, -1]],
    ],
    np.argpartition: [lambda n, **_: np.argpartition(n, [0, 1, 2, 3, 4, 5], axis=0) * 0],
    np.histogram2d: [
        lambda m, **_: np.histogram2d(m[:, 0], m[:, 1], 3, [(-2, 1), (0, 2)])[0],
        lambda m, **_: np.histogram2d(m[:, 0], m[:, 1], [2, [-2.0, 0, 1]])[0],
    ],
    np.histogramdd: [
        lambda m, **_: np.histogramdd(m, [[-2.0, 0, 1], 2, 1, 1], density=True)[0],
        lambda m, **_: np.histogramdd([m[0], m[1], m[2]], 2, weights=m[3])[0],
    ],
    np.unravel_index: [
        lambda i, **_: np.unravel_index(i, (20, 1, 13)),
        lambda i, **_: np.unravel_index(i, (20, 13), order="F"),
    ],
    np.ravel_multi_index: [
        lambda i, **_: np.ravel_multi_index((i, 3, i[:1]), (300, 5, 400), order="F"),
        lambda i, **_: np.ravel_multi_index((i * 9, i - 5), (7, 8), mode=("wrap", "clip")),
        lambda i, **_: np.ravel_multi_index(i[:2], (300, 400)),
    ],
    np.tril: [lambda x, **_: np.tril(x, -1), lambda m, **_: np.tril(m[0])],
    np.triu: [lambda x, **_: np.triu(x, 1), lambda m, **_: np.triu(m > 0)],
    np.block: [lambda m, **_: np.block([[m, m[:, :1]], [m[:2], m[:2, :1]]]), lambda m, **_: np.block([m[0], 3, m[1]])],
    np.delete: [
        lambda x, **_: np.delete(x, [1, 3], axis=0),
        lambda x, **_: np.delete(x, slice(None, None, 2), axis=1),
        lambda m, **_: np.delete(m, -1),
    ],
    np.insert: [
        lambda x, **_: np.insert(x, 2, 7, axis=0),
        lambda m, **_: np.insert(m, [1, 1, 3], m[:3] * 2, axis=0),
        lambda m, **_: np.insert(m, 1, [[1, 2, 3, 4], [5, 6, 7, 8]], axis=0),
        lambda m, **_: np.insert(m, slice(1, 3), 9),
    ],
    np.ediff1d: [lambda m, **_: np.ediff1d(m, to_end=[8, 9], to_begin=m[0])],
    np.polyval: [lambda x, **_: np.polyval([2.0, -1, 3], x)],
    np.vander: [lambda m, **_: np.vander(m[0]), lambda i, **_: np.vander(i[0], 3, increasing=True)],
    np.meshgrid: [
        lambda m, **_: np.meshgrid(m[0], m[:, 0]),
        lambda m, **_: np.meshgrid(m[0], m[:, 0], m[1], sparse=True, indexing="ij"),
    ],
    np.kron: [lambda m, **_: np.kron(m, np.arange(3.0)), lambda m, **_: np.kron(m[:2], m[2:4])],
    np.cross: [lambda x, y, **_: np.cross(x[:, :3], y[:, 1:], axis=1), lambda m, **_: np.cross(m[:3], [1, 2, 3], 0)],
    np.linalg.cross: [lambda x, y, **_: np.linalg.cross(x[..., :3], y[..., 2:])],
    np.apply_over_axes: [lambda x, **_: np.apply_over_axes(np.sum, x, [0, 2])],
    np.fft.fft2: [lambda x, **_: np.fft.fft2(x)],
    np.fft.ifft2: [lambda z, **_: np.fft.ifft2(z, axes=(0, 1))],
    np.fft.rfft2: [lambda x, **_: np.fft.rfft2(x, s=(3, 4))],
    np.fft.irfft2: [lambda z, **_: np.fft.irfft2(z)],
    np.fft.hfft: [lambda z, norm=norm, **_: np.fft.hfft(z, norm=norm) for norm in (None, "ortho", "forward")],
    np.fft.ihfft: [lambda x, norm=norm, **_: np.fft.ihfft(x, norm=norm) for norm in (None, "ortho", "forward")],
    np.fft.fftshift: [lambda x, **_: np.fft.fftshift(x), lambda x, **_: np.fft.fftshift(x, 2)],
    np.fft.ifftshift: [lambda x, **_: np.fft.ifftshift(x, axes=(0, 2))],
    np.diagonal: [
        lambda x, **_: np.diagonal(x),
        lambda x, **_: np.diagonal(x + 1, -2, 2, 0),
        lambda m, **_: np.diagonal(m, 9),
    ],
    np.trace: [lambda x, **_: np.trace(x, 1, 0, 2), lambda i, **_: np.trace(i * 2, dtype="f4")],
    np.diag: [lambda m, **_: np.diag(m, -1), lambda m, **_: np.diag(m[0], 2), lambda m, **_: np.diag(m[0] > 0, -1)],
    np.diagflat: [lambda m, **_: np.diagflat(m[:2], 1)],
    np.unwrap: [
        lambda x, **_: np.unwrap(x * 4, axis=0),
        lambda i, **_: np.unwrap(i, discont=2, period=5),
        lambda i, **_: np.unwrap(i, period=6, axis=0),
    ],
    np.piecewise: [
        lambda x, **_: np.piecewise(x, [x < 0, x > 1], [-1, np.square, 7]),
        lambda m, **_: np.piecewise(m[0], m[0] > 1, [3]),
        lambda x, **_: np.piecewise(x, [x < 0, np.ones(x.shape), x > 1], [1.5, 2, 3, 4]),
        lambda m, **_: np.piecewise(m, [m[:, 0] > 1], [3, -1]),
        lambda x, y, **_: np.piecewise(x, [x > y], [np.multiply, np.subtract], 3),
    ],
    np.array_equiv: [lambda m, **_: np.array_equiv(m, m[:1]), lambda m, **_: np.array_equiv(m[:1] * m[:1], m[0] ** 2)],
    np.vdot: [lambda z, x, **_: np.vdot(z, x), lambda m, **_: np.vdot(m, m)],
    np.polyfit: [
        lambda m, **_: np.polyfit(np.arange(6.0), m, 2),
        lambda m, **_: np.polyfit(np.arange(6.0), m[:, 0], 1, w=np.arange(1.0, 7)),
    ],
    np.apply_along_axis: [
        lambda x, **_: np.apply_along_axis(np.sort, 1, x),
        lambda x, **_: np.apply_along_axis(np.sum, 0, x),
        lambda x, **_: np.apply_along_axis(_pairs, 1, x),
    ],
    np.resize: [lambda m, **_: np.resize(m, (7, 9)), lambda m, **_: np.resize(m, 5), lambda m, **_: np.resize(m, 0)],
    np.packbits: [
        lambda x, **_: np.packbits(x > 0),
        lambda i, **_: np.packbits(i, axis=0, bitorder="little"),
        lambda i, **_: np.packbits(i.reshape(-1)[:16]),
    ],
    np.unpackbits: [
        lambda i, **_: np.unpackbits(np.astype(i, np.uint8) * 30),
        lambda i, **_: np.unpackbits(np.astype(i, np.uint8) * 30, axis=1, count=11, bitorder="little"),
        lambda i, **_: np.unpackbits(np.astype(i, np.uint8), axis=0, count=-3),
        lambda i, **_: np.unpackbits(np.astype(i, np.uint8), axis=0, count=60),
    ],
    np.unique: [
        lambda x, **_: np.unique(x),
        lambda i, **_: np.unique(i * 2, True, True, True),
        lambda n, **_: np.unique(n, return_counts=True),
    ],
    np.unique_values: [lambda i, **_: np.sort(np.unique_values(i))],
    np.unique_counts: [lambda i, **_: np.unique_counts(i)],
    np.unique_inverse: [lambda i, **_: np.unique_inverse(i)],
    np.union1d: [lambda i, **_: np.union1d(i, [20, 1])],
    np.intersect1d: [
        lambda i, x, **_: np.intersect1d(i, x),
        lambda i, **_: np.intersect1d(i % 5, [4, 9, 3, 4, 2], return_indices=True),
    ],
    np.setdiff1d: [lambda i, x, **_: np.setdiff1d(i, x)],
    np.setxor1d: [lambda i, x, **_: np.setxor1d(i, x)],
    np.trim_zeros: [
        lambda m, **_: np.trim_zeros(np.where(m[:, 0] > 1, m[:, 0], 0)),
        lambda i, **_: np.trim_zeros(np.where(i > 4, i, 0), "b"),
        lambda m, **_: np.trim_zeros(m[0] * 0),
    ],
    np.real_if_close: [lambda z, **_: np.real_if_close(z), lambda x, **_: np.real_if_close(x + 1e-15j)],
    np.save: [lambda m, **_: _saved(m)],
    np.bincount: [lambda i, **_: np.bincount(i[:, 0]), lambda i, m, **_: np.bincount(i[:, 0], m[:, 0], 9)],
    np.rollaxis: [lambda x, **_: np.rollaxis(x, 2), lambda x, **_: np.rollaxis(x, 0, 3)],
    np.common_type: [lambda x, z, **_: np.common_type(x, z)],
    np.min_scalar_type: [lambda x, **_: np.min_scalar_type(x)],
    np.diag_indices_from: [lambda m, **_: np.diag_indices_from(m[:4])],
    np.tril_indices_from: [lambda m, **_: np.tril_indices_from(m, 1)],
    np.triu_indices_from: [lambda m, **_: np.triu_indices_from(m)],
    np.linalg.diagonal: [lambda x, **_: np.linalg.diagonal(x, offset=1)],
    np.linalg.trace: [lambda x, **_: np.linalg.trace(x, offset=-1)],
    np.linalg.vector_norm: [
        lambda x, **_: np.linalg.vector_norm(x),
        lambda x, **_: np.linalg.vector_norm(x, axis=(0, 2), ord=3, keepdims=True),
        lambda z, **_: np.linalg.vector_norm(z, axis=1, ord=0),
    ],
    np.linalg.matrix_norm: [
        lambda x, **_: np.linalg.matrix_norm(x),
        lambda x, **_: np.linalg.matrix_norm(x, ord="nuc", keepdims=True),
    ],
    np.linalg.matrix_rank: [
        lambda x, **_: np.linalg.matrix_rank(x),
        lambda m, **_: np.linalg.matrix_rank(m[0]),
        lambda x, **_: np.linalg.matrix_rank(x, tol=2.0),
    ],
    np.linalg.cond: [lambda x, **_: np.linalg.cond(x), lambda x, **_: np.linalg.cond(x[:, :4, :4] + 9 * np.eye(4), 1)],
    np.linalg.multi_dot: [
        lambda m, **_: np.linalg.multi_dot([m, m.T, m]),
        lambda m, **_: np.linalg.multi_dot([m[0], m.T, m, m[1]]),
    ],
    np.linalg.svdvals: [lambda x, **_: np.linalg.svdvals(x)],
    np.linalg.solve: [
        lambda x, y, **_: np.linalg.solve(x[:, :4, :4] + 9 * np.eye(4), y[:, :4]),
        lambda m, **_: np.linalg.solve(m[:4] + 9 * np.eye(4), m[0]),
    ],
    np.linalg.cholesky: [lambda x, **_: np.linalg.cholesky(x @ np.matrix_transpose(x) + np.eye(4))],
    np.linalg.det: [lambda x, **_: np.linalg.det(x[:, :4, :4]), lambda i, **_: np.linalg.det(i[:4])],
    np.linalg.inv: [lambda x, **_: np.linalg.inv(x[:, :4, :4] + 9 * np.eye(4))],
    np.linalg.pinv: [lambda x, **_: np.linalg.pinv(x)],
    np.linalg.slogdet: [lambda x, **_: np.linalg.slogdet(x[:, :4, :4])],
    np.linalg.eigh: [lambda x, **_: np.linalg.eigh(x[:, :4, :4])[0]],
    np.linalg.eigvalsh: [lambda z, **_: np.linalg.eigvalsh(z[:, :4, :4], "U")],
    np.linalg.qr: [lambda x, **_: np.linalg.qr(x), lambda x, **_: np.linalg.qr(x, "r")],
    np.linalg.svd: [
        lambda x, **_: np.linalg.svd(x, compute_uv=False),
        lambda x, **_: [abs(part) for part in np.linalg.svd(x, full_matrices=False)],
    ],
    np.linalg.matrix_power: [lambda x, **_: np.linalg.matrix_power(x[:, :4, :4], 3)],
    np.nonzero: [lambda x, **_: np.nonzero(x > 1), lambda i, **_: np.nonzero(i)],
    np.flatnonzero: [lambda x, **_: np.flatnonzero(x > 1)],
    np.argwhere: [lambda x, **_: np.argwhere(x > 1)],
    np.choose: [lambda x, y, **_: np.choose(x > 0, [x, y * 2]), lambda i, **_: np.choose(i, [3, i], mode="wrap")],
    np.searchsorted: [lambda x, **_: np.searchsorted(np.sort(Y.ravel()), x, side="right")],
}


def rows(functions: Iterable[Any], step: int = 1) -> list[Any]:
    """Functions by name as the rows of a test, of which CI tries every `step`-th one.

    NumPy 2.5 says of one that another should take its place.
    """
    old = pytest.mark.filterwarnings("ignore:.*numpy.trunc:DeprecationWarning")
    return [
        pytest.param(fn, marks=[old] * (fn is np.fix) + [pytest.mark.thorough] * (number % step > 0))
        for number, fn in enumerate(sorted(functions, key=name_of))
    ]


def arrays(make: Callable[[np.ndarray], Any]) -> dict[str, Any]:
    return {"x": make(X), "y": make(Y), "n": make(N), "m": make(M), "z": make(Z), "i": make(I)}


def flat(value: Any) -> list[Any]:
    return [leaf for entry in value for leaf in flat(entry)] if isinstance(value, list | tuple) else [value]
