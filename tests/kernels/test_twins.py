"""Functions as other array modules get them: NumPy's values, for NaN, infinities and zeros of both signs too."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from support.foreign_arrays import Foreign

from chunkflow.kernels.fusion.codegen import power
from chunkflow.kernels.twins import suited

ODD = np.array([0.0, -0.0, 1.0, -1.5, 2.0, -3.0, np.inf, -np.inf, np.nan, 1e30, -1e-30, 7.25])
FIRST, SECOND = (a.ravel() for a in np.meshgrid(ODD, ODD))
WHOLE = np.arange(-6, 6)
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
    (np.clip, (WHOLE.astype("i1"), -300, 300)),
    (np.clip, (WHOLE, -(2**70), None)),
    (np.clip, (SIDES, 0, 2)),
    (np.clip, (WHOLE, WHOLE[::-1].copy(), 4)),
    (np.nextafter, (FIRST, SECOND)),
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


@pytest.mark.parametrize(("fn", "args"), CASES, ids=lambda part: getattr(part, "__name__", None))
def test_they_are_numpys(fn: Any, args: tuple[Any, ...]) -> None:
    given = [Foreign(a) if isinstance(a, np.ndarray) else a for a in args]
    twin = suited(fn, given)
    assert suited(fn, args) is fn
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        expected, found = fn(*args), twin(*given)
    several = isinstance(expected, tuple)
    for one, other in zip(found if several else [found], expected if several else [expected], strict=True):
        assert one.array.dtype == other.dtype
        np.testing.assert_allclose(one.array, other, rtol=1e-15 if fn is np.float_power else 0)
        if other.dtype.kind == "f":
            here = ~np.isnan(other)
            np.testing.assert_array_equal(np.signbit(one.array[here]), np.signbit(other[here]))


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
