"""Functions as other array modules get them: NumPy's values, for NaN, infinities and zeros of both signs too."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from support.foreign_arrays import Foreign

from chunkflow.kernels.fusion.codegen import power
from chunkflow.kernels.twins import suited

OLD = np.lib.NumpyVersion(np.__version__) < "2.1.0"
"""NumPy whose clip refuses limits that the dtype has not."""
ODD = np.array([0.0, -0.0, 1.0, -1.5, 2.0, -3.0, np.inf, -np.inf, np.nan, 1e30, -1e-30, 7.25])
FIRST, SECOND = (a.ravel() for a in np.meshgrid(ODD, ODD))
HALF = np.arange(1 << 16, dtype="u2").view("f2")
HALF = HALF[HALF != 0]
WHOLE = np.arange(-6, 6)
ENDS = np.meshgrid(
    [-(2**63), 1 - 2**63, -(2**33), -7, -1, 1, 2, 3, 31, 32, 63, 64, 2**32, 2**63 - 1], [-64, -3, -1, 1, 3, 5, 63, 64]
)
PLANE = np.array([complex(a, b) for a in ODD[:9] for b in ODD[:9]])
SIDES = np.array([1 + 2j, -1j, -2, 3 - 1.5j, 0])

CASES: list[tuple[Any, tuple[Any, ...]]] = [
    (np.angle, (ODD,)),
    (np.angle, (ODD, True)),
    (np.angle, (np.array([1 + 2j, -1j, -2]),)),
    (np.angle, (WHOLE,)),
    (np.sinc, (ODD,)),
    (np.sinc, (ODD.astype("f4"),)),
    (np.clip, (ODD, -1, np.nan)),
    (np.clip, (FIRST, -1.0, SECOND)),
    (np.clip, (ODD, None, 2)),
    (np.clip, (WHOLE, -2, 3)),
    (np.remainder, (FIRST, SECOND)),
    (np.remainder, (FIRST.astype("f4"), SECOND.astype("f4"))),
    (np.remainder, (ODD, 3)),
    (np.remainder, (WHOLE, 5)),
    (np.floor_divide, (FIRST, SECOND)),
    (np.floor_divide, (FIRST.astype("f4"), SECOND.astype("f4"))),
    (np.floor_divide, (-7.5, ODD)),
    (np.floor_divide, (WHOLE, 5)),
    (np.divmod, (FIRST, SECOND)),
    (np.divmod, (WHOLE, 4)),
    *(() if OLD else [(np.clip, (WHOLE.astype("i1"), -300, 300)), (np.clip, (WHOLE, -(2**70), None))]),
    (np.clip, (SIDES, 0, 2)),
    (np.clip, (WHOLE, WHOLE[::-1].copy(), 4)),
    (np.nextafter, (FIRST, SECOND)),
    (np.nextafter, (ODD.astype("f4"), 0)),
    (np.nextafter, (WHOLE.astype("i1"), WHOLE[::-1].astype("i1"))),
    *[(np.nextafter, (HALF, np.float16(to))) for to in (np.inf, -np.inf, 0.0, 1.0)],
    *[(np.nextafter, (np.full(HALF.shape, start, "f2"), HALF)) for start in (np.inf, -np.inf, 0.0, -0.0)],
    *[(fn, (a, b)) for fn in (np.fmod, np.left_shift, np.right_shift) for a, b in (ENDS, ENDS[::-1])],
    *[(fn, (ENDS[0], n)) for fn in (np.left_shift, np.right_shift) for n in (3, np.int64(70), True)],
    *[(fn, ENDS) for fn in (np.logical_and, np.logical_or, np.logical_xor)],
    *[(fn, (WHOLE, WHOLE.astype("u8") + 7)) for fn in (np.logical_and, np.logical_xor, np.power)],
    (np.ldexp, (ODD, ENDS[0][0, :12])),
    (np.ldexp, (ODD.astype("f4"), np.arange(12, dtype="u4") + (2**32 - 12))),
    (np.ldexp, (ODD, np.arange(-6, 6, dtype="i1"))),
    (np.logaddexp2, (FIRST, SECOND)),
    (np.logaddexp2, (np.float32(-100), np.zeros(3, "f4"))),
    (np.logaddexp2, (HALF[::64], np.float16(2))),
    *[(fn, (PLANE,)) for fn in (np.reciprocal, np.sign, np.log2, np.log1p, np.exp2, np.expm1)],
    *[(fn, (PLANE.astype("c8"),)) for fn in (np.reciprocal, np.sign, np.log2, np.log1p, np.exp2, np.expm1)],
    *[(fn, (PLANE[:, None], PLANE)) for fn in (np.divide, np.less, np.less_equal, np.greater, np.greater_equal)],
    *[(fn, (PLANE, 2)) for fn in (np.divide, np.less, np.greater)],
    *[(fn, (ODD.astype("f4"), 2 - 1j)) for fn in (np.divide, np.less_equal)],
    (np.divide, (np.complex64(2 - 1j), PLANE.astype("c8"))),
    (np.logical_and, (SIDES, SIDES - 1)),
    (np.logical_xor, (SIDES, 0)),
    (np.logical_xor, (SIDES, 1 + 2j)),
    (np.logical_and, (0j, SIDES)),
    (np.logical_not, (SIDES,)),
    (np.spacing, (ODD,)),
    (np.spacing, (np.clip(ODD, -9, 9).astype("f2"),)),
    (np.spacing, (WHOLE.astype("i1"),)),
    (np.float_power, (SIDES.astype("c8"), SIDES.astype("c8"))),
    (np.float_power, (ODD.astype("f4"), 3)),
    (np.i0, (WHOLE,)),
    (np.round, (ODD, 2)),
    (np.round, ((np.arange(-3000, 3000) / 1000).astype("f2"), 2)),
    (np.around, (ODD.astype("f4") * 123, -1)),
    (np.round, (ODD, 400)),
    (np.round, (WHOLE, -1)),
    (np.round, (SIDES * 1.25, 1)),
    (np.i0, (WHOLE > 0,)),
    (np.add, (ODD, 2**70)),
    (np.less, (WHOLE, 2**70)),
    (np.greater_equal, (-(2**70), WHOLE.astype("u8"))),
    (np.power, (WHOLE, abs(WHOLE))),
    (np.power, (WHOLE, -1.0)),
    (np.digitize, (ODD, np.array([0, 1, 100]))),
    (np.isin, (WHOLE, np.array([3, 1, 100]))),
    (np.interp, (ODD, np.array([-1, 0, 1]), np.array([3, 4, 9]))),
    (np.isin, (WHOLE, ["x"])),
    (np.interp, (WHOLE > 0, np.array([-1.0, 0, 1]), np.array([3, 4, 9j]))),
]

ROUNDED = (np.float_power, np.log1p, np.expm1, np.exp2, np.log2, np.logaddexp2)
"""In which another order of steps gives another last digit."""


@pytest.mark.parametrize(("fn", "args"), CASES, ids=lambda part: getattr(part, "__name__", None))
def test_they_are_numpys(fn: Any, args: tuple[Any, ...]) -> None:
    given = [Foreign(a) if isinstance(a, np.ndarray) else a for a in args]
    twin = suited(fn, given)
    assert suited(fn, args) is fn
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        expected, found = fn(*args), twin(*given)
    for one, other in pairs(found, expected):
        # Which zero clip gives of two that are equal is the processor's.
        same(one.array, other, 4 * np.finfo(other.dtype).eps if fn in ROUNDED else 0, signs=fn is not np.clip)


@pytest.mark.gpu
@pytest.mark.parametrize(("fn", "args"), CASES, ids=lambda part: getattr(part, "__name__", None))
def test_they_are_numpys_on_a_gpu(fn: Any, args: tuple[Any, ...]) -> None:
    import cupy

    given = [cupy.asarray(a) if isinstance(a, np.ndarray) else a for a in args]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        expected, found = fn(*args), suited(fn, given)(*given)
    for one, other in pairs(found, expected):
        exact = other.dtype.kind not in "fc" or fn in (np.nextafter, np.spacing)
        same(one.get(), other, 0 if exact else 8 * np.finfo(other.dtype).eps, signs=fn is not np.clip)


def pairs(found: Any, expected: Any) -> list[tuple[Any, Any]]:
    return list(zip(found, expected, strict=True)) if isinstance(expected, tuple) else [(found, expected)]


def same(found: np.ndarray, expected: np.ndarray, rtol: float, *, signs: bool = True) -> None:
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=rtol)
    if signs and expected.dtype.kind == "f":
        here = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(found[here]), np.signbit(expected[here]))


@pytest.mark.parametrize(
    "kwargs",
    [{"order": "F"}, {"subok": False}, {"signature": "dd->d"}, {"sig": ("f4", "f4", "f4"), "casting": "unsafe"}],
    ids=str,
)
def test_options_of_layout_and_loop_are_numpys(kwargs: dict[str, Any]) -> None:
    expected = np.add(ODD, WHOLE, **kwargs)
    found = suited(np.add, [Foreign(ODD), Foreign(WHOLE)])(Foreign(ODD), Foreign(WHOLE), **kwargs)
    assert found.array.dtype == expected.dtype
    np.testing.assert_array_equal(found.array, expected)


def test_limits_by_name_with_a_dtype_are_numpys() -> None:
    kwargs: dict[str, Any] = {"dtype": "f4", "casting": "unsafe"}
    expected = np.clip(ODD, 0, 1, **kwargs)
    found = suited(np.clip, [Foreign(ODD)])(Foreign(ODD), 0, max=1, **kwargs)
    assert found.array.dtype == expected.dtype
    np.testing.assert_array_equal(found.array, expected)


@pytest.mark.parametrize("fn", [np.power, power])
def test_integers_to_negative_powers_are_refused(fn: Any) -> None:
    with pytest.raises(ValueError, match="negative integer powers"):
        suited(fn, [Foreign(WHOLE)])(Foreign(WHOLE), Foreign(WHOLE))
