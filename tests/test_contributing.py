"""What CONTRIBUTING.md shows works as it stands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from support.devices import Place, everywhere

from chunkflow.api.operation import Request, operation
from chunkflow.core.nest import nest
from chunkflow.engine.options import Options
from chunkflow.kernels.declare import Declared

TEXT = Path(__file__).resolve().parents[1] / "CONTRIBUTING.md"


@everywhere
def test_the_operation_that_is_shown(place: Place) -> None:
    found = re.search(r"```python\n(.*?)```", TEXT.read_text(), re.S)
    assert found
    names = {
        "dataclass": dataclass, "Declared": Declared, "nest": nest, "Options": Options, "Request": Request,
        "operation": operation, "np": np,
    }  # fmt: skip
    exec(found[1], names)
    x = np.random.default_rng(0).random((60, 50, 7))
    for axis in range(3):
        got = names["sum_of_squares"](x, axis, device=place.device(), budget=place.budget(60_000))  # type: ignore[operator]
        np.testing.assert_allclose(place.host(got), (x**2).sum(axis=axis))
