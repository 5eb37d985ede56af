"""Numbers at the ends of their dtypes, held to NumPy: no result goes by way of a dtype that cannot hold them."""

from __future__ import annotations

import numpy as np
import pytest
from support.peers import Case, case, hold, names

rng = np.random.default_rng(53)


def ends(dtype: str, shape: tuple[int, ...] = (6, 8)) -> np.ndarray:
    """Numbers at both ends of a dtype's range, near one another, and a few small ones."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        info = np.finfo(kind)
        some = np.array(
            [info.max, info.min, info.tiny, info.smallest_subnormal, -info.tiny, 1, 1 + info.eps, 0, -0.0], kind
        )
        return rng.choice(some, shape)
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    some = np.array([low, low + 1, low + 3, high, high - 1, high - 2, high // 2, high // 2 + 1, 1, 0], kind)
    return rng.choice(some, shape)


LONG = {dtype: ends(dtype) for dtype in ("i8", "u8", "i4", "u4", "i1", "u1")}
WIDE = {dtype: ends(dtype) for dtype in ("f8", "f4", "f2")}
ALL = {**LONG, **WIDE}
WHOLE = (
    "sum",
    "prod",
    "min",
    "max",
    "ptp",
    "argmin",
    "argmax",
    "any",
    "count_nonzero",
    "nansum",
    "nanmax",
    "nanargmin",
)
SAME = ("cumsum", "cumprod", "diff", "median")

CASES: list[Case] = [
    *(case(fn, x, axis=0) for fn in WHOLE for x in LONG.values()),
    *(case(fn, x, axis=0) for fn in ("min", "max", "argmin", "argmax", "any", "nanmax", "ptp") for x in WIDE.values()),
    *(case(fn, x, axis=1) for fn in SAME for x in LONG.values()),
    *(case(fn, x, axis=1) for fn in ("diff", "median") for x in WIDE.values()),
    *(case("quantile", x, q, axis=1, method=method).whole() for x in ALL.values() for q in (0, 0.3, 1)
      for method in ("linear", "lower", "nearest", "inverted_cdf")),
    *(case("max", x, axis=0, initial=3, where=x > 1) for x in ALL.values()),
    *(case("sum", x, axis=0, initial=1, where=x > 1) for x in LONG.values()),
    *(case(fn, x) for fn in ("negative", "absolute", "square", "sign", "sqrt", "isfinite", "invert")
      for x in LONG.values()),
    *(case(fn, x, x[::-1].copy()) for fn in ("add", "subtract", "multiply", "floor_divide", "remainder", "true_divide",
      "less", "equal",
                                             "maximum") for x in ALL.values()),
    *(case(fn, LONG["i8"], LONG["u8"]) for fn in ("add", "less", "equal", "maximum", "not_equal")),
    *(case("clip", x, x[0], x[1]) for x in ALL.values()), *(case("where", x > 1, x, x[::-1].copy())
      for x in ALL.values()),
    *(case("isin", x, x[0, :3].tolist()) for x in ALL.values()),
    *(case("digitize", x, [0, 1, 100]) for x in ALL.values()),
    *(case("histogram", x, 5, (0, 100)) for x in LONG.values()),
    *(case("histogram", x, [0, 1, np.iinfo(x.dtype).max]) for x in LONG.values()),
    *(case(fn, x, x.T.copy()) for fn in ("matmul", "dot") for x in LONG.values()),
    *(case(fn, x, x) for fn in ("vecdot", "inner") for x in LONG.values()),
    *(case("einsum", "ij,ij->i", x, x) for x in LONG.values()),
    *(case("round", x, n) for x in LONG.values() for n in (0, -1, 2)),
    *(case("full_like", x, x[0, 0]) for x in ALL.values()), *(case("pad", x, 1, constant_values=x[0, 0].item())
      for x in ALL.values()),
    *(case("nan_to_num", x) for x in ALL.values()), *(case("concatenate", [x, x]) for x in ALL.values()),
    *(case("array_equal", x, x.copy()) for x in ALL.values()), *(case("isclose", x, x[0]) for x in ALL.values()),
    *(case("astype", x, dtype) for x in LONG.values() for dtype in ("i8", "u8", "f8", "f4", "i1")),
    *(case("tensordot", x, x, 2) for x in LONG.values()), *(case("outer", x[0], x[1]) for x in LONG.values()),
    *(case("linalg.norm", x, np.inf, 1) for x in LONG.values()),
    *(case("average", x, axis=0, weights=np.ones(x.shape, x.dtype)) for x in LONG.values()),
    *(case(fn, x, axis=0) for fn in ("mean", "var", "std") for x in LONG.values()),
]  # fmt: skip


@pytest.mark.parametrize("name", names(CASES))
def test_ends_of_dtypes(name: str) -> None:
    hold(case for case in CASES if case.name == name)
