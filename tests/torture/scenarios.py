"""Runs that write to files, what was there before, and what another program must find afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import zarr

import chunkflow as cf

OLD, NEW = np.arange(600, dtype="i4").reshape(20, 30), np.arange(3000, dtype="f8").reshape(50, 60) ** 0.5
BUDGET = "100kB"


class Scenario(NamedTuple):
    """A run in a directory. `outputs` are paths, which hold `NEW` afterwards; those in `replaced` hold `OLD` before."""

    name: str
    run: Callable[[Path], Any]
    outputs: tuple[str, ...]
    replaced: tuple[str, ...] = ()
    neighbours: tuple[str, ...] = ()


def _copied(*outs: str, **options: Any) -> Callable[[Path], Any]:
    def run(folder: Path) -> Any:
        paths = tuple(str(folder / out) for out in outs)
        if len(paths) == 1:
            return cf.map(np.positive, NEW, out=paths[0], budget=BUDGET, **options)
        return cf.map(lambda b: (b,) * len(paths), NEW, out=paths, budget=BUDGET, **options)

    return run


def _stored(folder: Path) -> Any:
    x = cf.open(NEW)
    return cf.store([x + 0, x * 1], [str(folder / "a.npy"), str(folder / "b.zarr")], overwrite=True, budget=BUDGET)


SCENARIOS = (
    Scenario("a new .npy", _copied("a.npy"), ("a.npy",)),
    Scenario("a .npy that is replaced", _copied("a.npy", overwrite=True), ("a.npy",), ("a.npy",)),
    Scenario("a new zarr array", _copied("a.zarr", chunks=(20, -1)), ("a.zarr",)),
    Scenario("a zarr array that is replaced", _copied("a.zarr", overwrite=True), ("a.zarr",), ("a.zarr",)),
    Scenario("a zarr array in a new group", _copied("g.zarr/s/a"), ("g.zarr/s/a",)),
    Scenario(
        "a zarr array beside another", _copied("g.zarr/a", overwrite=True), ("g.zarr/a",), ("g.zarr/a",), ("g.zarr/b",)
    ),
    Scenario("two outputs, one replaced", _copied("a.npy", "b.zarr", overwrite=True), ("a.npy", "b.zarr"), ("b.zarr",)),
    Scenario("two arrays of a new group", _copied("g.zarr/a", "g.zarr/b"), ("g.zarr/a", "g.zarr/b")),
    Scenario("two expressions, both replaced", _stored, ("a.npy", "b.zarr"), ("a.npy", "b.zarr")),
    Scenario("a new HDF5 file", _copied("n.h5:/g/a"), ("n.h5:/g/a",)),
    Scenario("a dataset beside others", _copied("u.h5:/g/a"), ("u.h5:/g/a",), (), ("u.h5:/b", "u.h5:/g/c")),
    Scenario(
        "a dataset that is replaced", _copied("u.h5:/g/a", overwrite=True), ("u.h5:/g/a",), ("u.h5:/g/a",), ("u.h5:/b",)
    ),
)


def put(folder: Path, output: str) -> None:
    """Put `OLD` where an output will be, by the library of its format."""
    path, _, name = str(folder / output).partition(":")
    if name:
        with h5py.File(path, "a") as file:
            file[name] = OLD
    elif path.endswith(".npy"):
        np.save(path, OLD)
    else:
        for above in Path(path).parents:
            if ".zarr" in str(above) and not (above / "zarr.json").exists():
                zarr.create_group(above)
        zarr.create_array(path, data=OLD, chunks=(10, 10))


def found(folder: Path, output: str) -> str:
    """What the format's own library finds: "old", "new", "nothing", or what is wrong."""
    path, _, name = str(folder / output).partition(":")
    if not os.path.lexists(path):
        return "nothing"
    try:
        if name:
            with h5py.File(path, "r") as file:
                if name not in file:
                    return "nothing"
                array = file[name][()]
        else:
            array = np.load(path) if path.endswith(".npy") else zarr.open_array(path, mode="r")[...]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    for word, expected in (("old", OLD), ("new", NEW)):
        if array.shape == expected.shape and array.dtype == expected.dtype and (array == expected).all():
            return word
    return f"an array of {array.dtype} {array.shape} with other values"
