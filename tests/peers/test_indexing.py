"""Elements picked by place, and what is asked of an array without its elements, held to NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.peer_arrays import EMPTY, NOTHING, SCALAR, A, I, M, V, X, Z
from support.peers import Case, case, hold, names

CASES: list[Case] = [
    *(case("take", X, i, axis) for i in (0, 1, -1, -3, np.int8(2), True) for axis in (0, -1)),
    *(case("take", X, i, axis=0) for i in (4, -5, 99)), *(case("take", X, 0, axis) for axis in (3, -4, 1.5, "x")),
    *(case("take", X, i, axis=0) for i in ([0, 2], [[0, 1], [1, 0]], [], [2, -1, 2], [4], [[True]])),
    *(case("take", X, i, axis=0).refused("places are integers") for i in (1.5, [0.0])),
    *(case("take", X, i) for i in (0, 5, [1, 2], [107, -108], 108)), *(case("take", X, i, 0) for i in (None,)),
    *(case("take", X, 0, 0, None, mode).by_place() for mode in ("raise", "wrap", "clip")),
    *(case("take", X, i, 1, mode=m) for i in ([-1, 10, 9, 3], 99, []) for m in ("raise", "wrap", "clip", "x")),
    *(case("compress", c, X, a) for c in ([1, 0, 1], [], [True], [0] * 9 + [1], [[1]]) for a in (None, 0, -1, 3)),
    *(case("take", x, 0, 0) for x in (EMPTY, NOTHING, V, I, Z, M)),
    case("take", SCALAR, 0, 0).refused("there is no axis"),
    *(case(fn, x) for fn in ("shape", "ndim", "size") for x in (X, SCALAR, EMPTY, NOTHING, A)),
    *(case("size", X, axis) for axis in (None, 0, -1, (0, 2), (), 3, -4, (0, 0), 1.5, "x")),
    *(case("result_type", *given) for given in ((X, I), (X, "f4"), (I, np.int8), (M, 1), (I, 2.5), (Z, X), (X,
      "nonsense"))),
]  # fmt: skip


@pytest.mark.parametrize("name", names(CASES))
def test_indexing(name: str) -> None:
    hold(case for case in CASES if case.name == name)


# -- x[...] ------------------------------------------------------------------------------------------------------------

GROUP = np.s_
INDICES: list[Any] = [
    *(0, -1, 3, -4, np.int64(2), (0, 1), (0, 1, 2), (-1, -1, -1), (..., 0), (0, ...), ..., (), None, (None, 0), (...,
      None)),
    *(GROUP[:], GROUP[1:], GROUP[:-1], GROUP[::2], GROUP[::-1], GROUP[3:1], GROUP[::-2], GROUP[10:20], GROUP[-2:],
      GROUP[1:3, ::3]),
    *(GROUP[:, 2:5, 1], GROUP[:, None, 0], GROUP[0, :, None], GROUP[::-1, ::-1, ::-1], GROUP[..., ::-2], GROUP[1:1],
      GROUP[None, ...]),
    *([0, 2], [True, False, True, True], (slice(None), [1, 1]), [], [[0, -1]], ([1, 2], [3, 4]), (0, GROUP[:], [2, 1])),
    *(GROUP[-100:100], GROUP[5:-100:-1], GROUP[np.int8(1) : np.int8(3)]),
]  # fmt: skip
NO_INDICES: list[Any] = [
    *([4], [0.5], [True], ([0, 1], [0, 1, 2]), (0, [9])),
    *(4, -5, (0, 9), (0, 0, 3), (0, 0, 0, 0), "x", 1.5, GROUP[::0], (..., ...), GROUP[1.5:], GROUP["x":]),
]  # fmt: skip


@pytest.mark.parametrize("index", [*INDICES, *NO_INDICES], ids=str)
def test_an_index(index: Any) -> None:
    hold([Case("getitem", (X, index), {})])
    if index is not None and not isinstance(index, tuple) and np.ndim(index) == 0:
        hold([Case("getitem", (V, index), {})])


@pytest.mark.parametrize("index", [M, X > 0, np.array([2, 0])], ids=str)
def test_an_index_that_is_an_expression(index: Any) -> None:
    hold([Case("getitem", (X, index), {})])


def test_an_index_that_is_one_bool_is_refused() -> None:
    hold([Case("getitem", (X, True), {}).refused("it adds an axis")])
