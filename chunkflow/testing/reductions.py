"""Contract suite that every reduction passes.

A reduction's test subclasses the suite, names the function and what NumPy gives for it, and inherits every test:

    class TestSumOfSquares(ReductionContract):
        def reduce(self, x, **options):
            return sum_of_squares(x, **options)

        def expected(self, x, **options):
            return np.sum(x * x, **options)
"""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import chunkflow
from chunkflow.devices.cpu.device import NumpyDevice
from chunkflow.errors import ArgumentError, ArgumentTypeError, BudgetError

_modest = settings(
    max_examples=max(5, settings().max_examples // 4),
    deadline=None,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)


@st.composite
def _cuts(draw: st.DrawFn) -> tuple[tuple[int, ...], dict[str, Any]]:
    """A shape, and arguments of a reduction of such an array."""
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, (0, 200, 20, 9)[ndim])) for _ in range(ndim))
    axes = draw(st.lists(st.integers(-ndim, ndim - 1), unique_by=lambda a: a % ndim, min_size=1, max_size=ndim))
    chunks = draw(st.none() | st.tuples(*(st.sampled_from([-1, max(1, n // 3), n]) for n in shape)))
    axis = draw(st.sampled_from([None, axes[0], tuple(axes)]))
    return shape, {"axis": axis, "keepdims": draw(st.booleans()), "chunks": chunks}


class ReductionContract:
    """What every reduction does. Subclasses override `reduce` and `expected`.

    Attributes
    ----------
    dtypes : tuple of str
        Dtypes that it takes.
    scale : float
        Absolute error that is allowed, in units of 64 roundings of the result's dtype; 0 for a result that is exact.
    single_axis : bool
        Whether `axis` must be an int or None.
    refused : tuple of str
        Dtypes that it refuses with an `ArgumentTypeError`, before data is read.

    Most tests take the last of `dtypes`. A subclass may override `device` and `array` too.
    """

    dtypes: ClassVar[tuple[str, ...]] = ("?", "i2", "u4", "f4", "f8", "c8", ">f4")
    scale: ClassVar[float] = 10.0
    single_axis: ClassVar[bool] = False
    refused: ClassVar[tuple[str, ...]] = ()

    def reduce(self, x: Any, **options: Any) -> Any:
        """The reduction; options are `axis`, `keepdims`, and how it runs."""
        raise NotImplementedError

    def expected(self, x: np.ndarray, **options: Any) -> Any:
        """NumPy's result, given `axis` and `keepdims`."""
        raise NotImplementedError

    def device(self) -> Any:
        """The device on which it runs."""
        return "cpu"

    def array(self, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """Random values that it takes; sums of them stay in the dtype's range."""
        rng, kind = np.random.default_rng(len(shape)), np.dtype(dtype).kind
        values: Any = rng.integers(0 if kind in "bu" else -9, 9, shape)
        if kind in "fc":
            values = values + rng.standard_normal(shape)
        if kind == "c":
            values = values + 1j * rng.standard_normal(shape)
        return np.array(np.asarray(values).astype(dtype))

    def run(self, x: Any, *, budget: int = 1 << 20, **options: Any) -> Any:
        """The reduction within a budget, or within the smallest one that is enough."""
        while True:
            try:
                return self.reduce(x, budget=budget, device=self.device(), **options)
            except BudgetError as error:
                smallest, before = error.smallest or 0, budget
                assert smallest > before, "the error names a budget that is enough"
                budget = smallest

    def check(self, x: np.ndarray, got: Any, **options: Any) -> None:
        """Compare a result with NumPy's: type, dtype, shape and values."""
        self.compare(got, self.numpy(x, **options))

    def numpy(self, x: np.ndarray, **options: Any) -> Any:
        """NumPy's result, without its warnings."""
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return self.expected(x.astype(x.dtype.newbyteorder("=")), **options)

    def compare(self, got: Any, expected: Any) -> None:
        """Compare a result with the one that is right."""
        assert type(got) is type(expected)
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        if expected.dtype.kind == "c" and not np.isfinite(expected).all():  # one part may be finite
            self.compare(got.real, expected.real)
            self.compare(got.imag, expected.imag)
        elif expected.dtype.kind in "fc" and self.scale:
            close = 64 * float(np.finfo(expected.dtype).eps)
            np.testing.assert_allclose(got, expected, rtol=close, atol=close * self.scale)
        else:
            np.testing.assert_array_equal(got, expected)

    @given(cut=_cuts(), budget=st.sampled_from([200, 2000, 1 << 20]), data=st.data())
    @_modest
    def test_random_runs_equal_numpy(self, cut: Any, budget: int, data: st.DataObject) -> None:
        shape, options = cut
        x = self.array(shape, data.draw(st.sampled_from(self.dtypes)))
        if self.single_axis and isinstance(options["axis"], tuple):
            options["axis"] = options["axis"][0]
        got = self.run(x, budget=budget, **options)
        self.check(x, got, axis=options["axis"], keepdims=options["keepdims"])

    @pytest.mark.parametrize("axis", [None, 0, -1])
    def test_memory_orders(self, axis: int | None) -> None:
        x = self.array((20, 21, 8), self.dtypes[-1])
        for laid in (np.asfortranarray(x), x.transpose(1, 2, 0), x[::2, :, ::-1]):
            self.check(laid, self.run(laid, axis=axis, budget=9000), axis=axis)

    def test_the_same_call_gives_the_same_bits(self) -> None:
        x = self.array((40, 30), self.dtypes[-1])
        first = self.run(x, axis=0, chunks=(7, 30))
        np.testing.assert_array_equal(self.run(x, axis=0, chunks=(7, 30)), first)

    @pytest.mark.parametrize("lanes", [2, 3])
    def test_the_parts_of_several_lanes_are_merged(self, lanes: int) -> None:
        """However few cores there are, and on whatever device it runs otherwise."""
        x = self.array((40, 30), self.dtypes[-1])
        for axis in (0, None):
            found = self.reduce(x, axis=axis, chunks=(4, 30), device=NumpyDevice(lanes=lanes), budget=1 << 24)
            self.check(x, found, axis=axis)

    def test_out_takes_the_result(self) -> None:
        x = self.array((12, 10), self.dtypes[-1])
        found = self.run(x, axis=0)
        out = np.zeros_like(found)
        assert self.run(x, axis=0, out=out) is out
        np.testing.assert_array_equal(out, found)

    def test_of_an_expression_it_is_one(self) -> None:
        x = self.array((12, 10), self.dtypes[-1])
        lazy = self.reduce(chunkflow.open(x), axis=0)
        assert isinstance(lazy, chunkflow.Array)
        self.check(x, lazy.compute(device=self.device()), axis=0)

    @pytest.mark.parametrize("axis", [0, 1, None])
    @pytest.mark.parametrize("shape", [(3, 0), (0, 3), (0, 0)])
    def test_of_no_elements_it_is_what_numpy_says(self, shape: tuple[int, ...], axis: int | None) -> None:
        """The same result, or an `ArgumentError` where NumPy raises."""
        x = self.array(shape, self.dtypes[-1])
        for keepdims in (False, True):
            options: dict[str, Any] = {"axis": axis, "keepdims": keepdims}
            try:
                expected = self.numpy(x, **options)
            except ValueError:
                with pytest.raises(ArgumentError):
                    self.run(x, **options)
            else:
                self.compare(self.run(x, **options), expected)

    def test_nan_and_infinities_are_what_numpy_says(self) -> None:
        """In some lines and not in others, alone and together, and in several blocks."""
        for dtype in self.dtypes:
            if np.dtype(dtype).kind not in "fc":
                continue
            x = self.array((9, 12), dtype)
            for row, values in enumerate(((np.nan,), (np.inf,), (-np.inf,), (np.inf, np.inf), (np.inf, -np.inf))):
                x[row, 1 : 1 + 5 * len(values) : 5] = values
            x[5], x[6], x[7, 2:4] = np.inf, -np.inf, (np.inf, np.nan)
            for axis in (0, 1, None):
                for chunks in ((2, 5), None):
                    self.check(x, self.run(x, axis=axis, chunks=chunks), axis=axis)
            for chunks in ((9, 5), (9, 1), None):
                self.check(x[5:7], self.run(x[5:7], axis=1, chunks=chunks), axis=1)

    def test_a_dtype_that_it_does_not_take_is_refused(self) -> None:
        for dtype in self.refused:
            with pytest.raises(ArgumentTypeError):
                self.reduce(np.ones((3, 4), dtype), axis=0, device=self.device())

    def test_an_unknown_argument_is_refused(self) -> None:
        with pytest.raises(ArgumentTypeError, match="unheard_of"):
            self.reduce(self.array((3, 4), self.dtypes[-1]), axis=0, device=self.device(), unheard_of=1)

    def test_labels_stay(self) -> None:
        """Names, coordinates and attributes of xarray's arrays, and the axis by its name."""
        xarray = pytest.importorskip("xarray")
        x = self.array((6, 5), self.dtypes[-1])
        labelled = xarray.DataArray(
            x, dims=("y", "x"), coords={"y": np.arange(6), "x": np.arange(5) * 10}, name="height", attrs={"unit": "m"}
        )
        for options in ({"axis": 0}, {"dim": "y"}):
            found = self.run(labelled, **options)
            assert isinstance(found, xarray.DataArray)
            assert (found.dims, found.name) == (("x",), "height")
            assert found.coords["x"].values.tolist() == [0, 10, 20, 30, 40]
            self.check(x, found.values, axis=0)
        assert self.run(labelled, axis=0, keepdims=True).dims == ("y", "x")

    @pytest.mark.parametrize("axis", [2, -3])
    def test_an_axis_out_of_bounds_is_refused(self, axis: int) -> None:
        with pytest.raises(ArgumentError):
            self.reduce(self.array((3, 4), self.dtypes[-1]), axis=axis, device=self.device())
