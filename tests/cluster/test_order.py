"""Tasks write into an output that is there: its memory order is its own, whatever the order of the sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from support.devices import CHECKING, CUDA, Place

import chunkflow as cf
import chunkflow.dask
from chunkflow.testing.arrays import filled

Order = Literal["C", "F"]


def memmap(order: Order) -> Callable[[Path], Any]:
    def made(folder: Path) -> Any:
        mode: Literal["w+"] = "w+"
        if order == "C":
            return np.lib.format.open_memmap(folder / "out.npy", mode, "f4", (8, 9, 4))
        return np.lib.format.open_memmap(folder / "out.npy", mode, "f4", (8, 9, 4), fortran_order=True)

    return made


OUTPUTS: dict[str, Callable[[Path], Any]] = {
    "npy": lambda folder: folder / "out.npy",
    "memmap": memmap("C"),
    "memmap in Fortran order": memmap("F"),
}


@pytest.mark.parametrize("partition", ["1MB", "1kB"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("place", [*(p for p in CHECKING if p.staged), *CUDA], ids=str)
def test_results_lie_as_the_output_does(
    tmp_path: Path, place: Place, output: str, order: Order, partition: str
) -> None:
    array, out = filled((8, 9, 4), "f4"), OUTPUTS[output](tmp_path)
    np.save(tmp_path / "source.npy", array.copy(order))
    expression = cf.map(np.negative, cf.open(tmp_path / "source.npy"))
    chunkflow.dask.store([expression], [out], partition=partition, scheduler="sync", device=place.device())
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), -array)
