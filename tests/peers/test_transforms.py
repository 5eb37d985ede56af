"""Fourier transforms, held to NumPy: lengths, axes, normalization, odd and even sizes, dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.peer_arrays import BIG_ENDIAN, DTYPES, EMPTY, NAN, NOTHING, SCALAR, I, M, V, X, Z, of
from support.peers import Case, case, hold, names

ONE = ("fft.fft", "fft.ifft", "fft.rfft", "fft.irfft")
SEVERAL = ("fft.fftn", "fft.ifftn", "fft.rfftn", "fft.irfftn")
NO_AXIS = "there is no axis to transform"
NORMS: tuple[Any, ...] = (None, "backward", "ortho", "forward", "x", 1)
LENGTHS: tuple[Any, ...] = (None, 1, 2, 5, 8, 9, 16, 0, -1, 1.5, "x")


def given(fn: str) -> np.ndarray:
    """What the transform is of: real numbers where it must be."""
    return X if ".r" in fn else Z


def rounding(dtype: str) -> float:
    """NumPy scales half precision in half precision, chunkflow in single."""
    return 8192.0 if np.dtype(dtype) == np.float16 else 64.0


CASES: list[Case] = [
    *(case(fn, given(fn), n, 1) for fn in ONE for n in LENGTHS),
    *(case(fn, given(fn), None, axis) for fn in ONE for axis in (0, 1, -1, 2, 3, -4, 1.5, "x", None)),
    *(case(fn, given(fn), None, 1, norm) for fn in ONE for norm in NORMS), *(case(fn, given(fn), norm="ortho")
      for fn in ONE),
    *(case(fn, of(dtype, (3, 8))).within(rounding(dtype)) for fn in ONE for dtype in DTYPES),
    *(case(fn, of(dtype, (3, 8))).whole().within(rounding(dtype)) for fn in SEVERAL for dtype in DTYPES),
    *(case(fn, x) for fn in ONE for x in (V, I, M, NAN, BIG_ENDIAN, SCALAR, EMPTY, NOTHING, X, Z)),
    *(case(fn, x) for fn in SEVERAL for x in (V, EMPTY, NOTHING)), *(case(fn, x).whole() for fn in SEVERAL for x in (I,
      M, NAN, BIG_ENDIAN)),
    *(case(fn, SCALAR).refused(NO_AXIS, (".r" not in fn and ".i" not in fn) or fn == "fft.ifftn") for fn in SEVERAL),
    *(case(fn, given(fn), None, ()).refused(NO_AXIS, fn in ("fft.fftn", "fft.ifftn")) for fn in SEVERAL),
    *(case(fn, given(fn), s, axes).whole() for fn in SEVERAL for s, axes in (
        (None, None), (None, (0, 1)), (None, (1, 0)), (None, (-1,)), (None, [0, 2]), ((4, 6), (0, 1)), ((2, 3), (2,
        0)), ((5, 4, 2), None),
        ((3,), (0, 1)), ((3, 4), (1,)), (None, (0, 3)), ((-1, 3), (0, 1)), ((0, 3), (0, 1)),
        (None, (0, 1.5)))),
    *(case(fn, given(fn), None, None, norm).whole() for fn in SEVERAL for norm in NORMS), *(case(fn, given(fn),
      axes=(0, 1), norm="ortho") for fn in SEVERAL),
]  # fmt: skip


@pytest.mark.parametrize("name", names(CASES))
def test_transforms(name: str) -> None:
    hold(case for case in CASES if case.name == name)
