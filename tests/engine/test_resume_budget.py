"""A run that is gone on with in another budget: its blocks are kept where the new one has room for its plan."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chunkflow as cf

X = np.random.default_rng(0).random((200, 50, 50))


class Stops:
    """Doubles blocks until it has had so many."""

    def __init__(self, most: float) -> None:
        self.most, self.calls = most, 0

    def __call__(self, block: Any) -> Any:
        self.calls += 1
        if self.calls > self.most:
            raise RuntimeError("stopped")
        return block * 2


RUNS: dict[str, Callable[..., Any]] = {
    "one pass": lambda fn, x, out, **how: cf.map(fn, x, out=out, name="a", **how),
    "several": lambda fn, x, out, **how: cf.store(
        cf.sort(cf.map(fn, cf.open(x), dtype="f8"), axis=0) - 1, out, name="b", **how
    ),
}
RIGHT: dict[str, Any] = {"one pass": 2 * X, "several": np.sort(2 * X, axis=0) - 1}


@pytest.mark.parametrize(
    ("name", "out"), [("one pass", "y.zarr"), ("one pass", "y.h5:/y"), ("several", "y.npy"), ("several", "y.zarr")]
)
def test_a_larger_budget_goes_on(name: str, out: str, tmp_path: Path) -> None:
    """It was another call: who gives more memory after a crash had to begin again."""
    np.save(tmp_path / "x.npy", X)
    first, how = Stops(12), {"resume": True, "device": "cpu"}

    def run(fn: Any, budget: str) -> Any:
        return RUNS[name](fn, tmp_path / "x.npy", f"{tmp_path}/{out}", budget=budget, **how)

    with pytest.raises(RuntimeError, match="stopped") as stopped:
        run(first, "700kB")
    kept = re.search(r"(\d+) of \d+ blocks.* are kept", "".join(stopped.value.__notes__))
    assert kept is not None
    assert int(kept[1]) > 0
    with pytest.raises(cf.errors.ResumeError, match=r"differs in .*budget="):
        run(Stops(np.inf), "400kB")
    whole, rest = Stops(np.inf), Stops(np.inf)
    found = run(rest, "2MB")
    np.testing.assert_array_equal(found[...], RIGHT[name])
    RUNS[name](whole, tmp_path / "x.npy", tmp_path / "z.zarr", budget="700kB", **how)
    assert rest.calls <= whole.calls - int(kept[1]) + 3  # trial calls
