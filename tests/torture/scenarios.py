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
import chunkflow.dask
from chunkflow.cluster import tasks
from chunkflow.engine import resume

OLD, NEW = np.arange(600, dtype="i4").reshape(20, 30), np.arange(3000, dtype="f8").reshape(50, 60) ** 0.5
BEGUN = NEW[:20]
"""What is there of an array that grows."""

BUDGET = "100kB"


class Scenario(NamedTuple):
    """A run in a directory. `outputs` are paths, which hold `NEW` afterwards; those in `replaced` hold `OLD` before.

    Those in `grown` hold `BEGUN` before; `neighbours` hold `OLD`, before and afterwards, and `sources` hold `NEW`.
    """

    name: str
    run: Callable[[Path], Any]
    outputs: tuple[str, ...]
    replaced: tuple[str, ...] = ()
    neighbours: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    prepared: Callable[[Path], Any] | None = None
    resumes: bool = False
    """Whether the same run goes on with what one that ended early has left."""

    sync: bool = False
    """Whether what is new is on the disk when the run returns."""

    grown: tuple[str, ...] = ()

    @property
    def before(self) -> dict[str, str]:
        """What `found` says of each output before the run."""
        return {name: "old" if name in (*self.replaced, *self.grown) else "nothing" for name in self.outputs}

    @property
    def after(self) -> dict[str, str]:
        """What `found` says of each output after the run."""
        return dict.fromkeys(self.outputs, "new")

    @property
    def is_in_place(self) -> bool:
        """Whether a file that was there is changed, which is finished when it is opened next, if it is cut short."""
        return any(".h5:" in path for path in self.neighbours)

    @property
    def is_durable(self) -> bool:
        """Whether a power cut takes nothing of what the run called done."""
        return self.sync or bool(self.replaced) or self.is_in_place

    @property
    def uses_hdf5(self) -> bool:
        """Whether HDF5's library opens files."""
        return any(":" in path for path in (*self.outputs, *self.sources))


def _copied(*outs: str, **options: Any) -> Callable[[Path], Any]:
    def run(folder: Path) -> Any:
        paths = tuple(str(folder / out) for out in outs)
        if len(paths) == 1:
            return cf.map(np.positive, NEW, out=paths[0], budget=BUDGET, **options)
        return cf.map(lambda b: (b,) * len(paths), NEW, out=paths, budget=BUDGET, **options)

    return run


def _from(source: str, out: str, **options: Any) -> Callable[[Path], Any]:
    """A run that copies a file."""

    def run(folder: Path) -> Any:
        return cf.copy(str(folder / source), str(folder / out), budget=BUDGET, **options)

    return run


def _rechunked(source: str, out: str, **options: Any) -> Callable[[Path], Any]:
    def run(folder: Path) -> Any:
        return cf.rechunk(str(folder / source), (7, 11), str(folder / out), budget="80kB", **options)

    return run


def _appended(out: str) -> Callable[[Path], Any]:
    def run(folder: Path) -> Any:
        end = cf.ExistingArray(str(folder / out), append=0)
        return cf.map(np.positive, NEW[len(BEGUN) :], out=end, budget="10kB")

    return run


def _sorted(out: str) -> Callable[[Path], Any]:
    """A run that sorts a line by pieces, which lie in files beside the output until they are merged."""

    def run(folder: Path) -> Any:
        line = np.random.default_rng(0).permutation(NEW.reshape(-1))
        return cf.sort(line, out=str(folder / out), budget="64kB")

    return run


def _stored(*outs: str) -> Callable[[Path], Any]:
    """A run that stores expressions."""

    def run(folder: Path) -> Any:
        x = cf.open(NEW)
        values = [x + 0, x * 1][: len(outs)]
        return cf.store(values, [str(folder / out) for out in outs], overwrite=True, budget=BUDGET)

    return run


def _passes(*outs: str, **options: Any) -> Callable[[Path], Any]:
    """A run that stores expressions which take two passes: the second one needs the greatest element."""

    def run(folder: Path) -> Any:
        x = cf.open(NEW)
        return cf.store([x + 0, x * (x.max() > 0)], [str(folder / out) for out in outs], budget=BUDGET, **options)

    return run


def _by_dask(out: str) -> Callable[[Path], Any]:
    def run(folder: Path) -> Any:
        x = cf.open(NEW) + 0
        try:
            return chunkflow.dask.store(x, str(folder / out), partition="10kB", device="cpu", scheduler="sync")
        finally:
            tasks._written.clear()  # a worker keeps the latest task's outputs open

    return run


def _folded(out: str, **options: Any) -> Callable[[Path], Any]:
    """A run that stores a reduction of three equal arrays."""

    def run(folder: Path) -> Any:
        return cf.max(np.stack([NEW] * 3), axis=0, out=str(folder / out), budget=BUDGET, **options)

    return run


def _median(out: str, **options: Any) -> Callable[[Path], Any]:
    def run(folder: Path) -> Any:
        return cf.median(np.stack([NEW] * 3), axis=0, out=str(folder / out), budget=BUDGET, **options)

    return run


def _kept(run: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """A run that keeps what blocks are combined to before each of them."""

    def often(folder: Path) -> Any:
        resume.EVERY, resume.SHARE = 0.0, 0
        return run(folder)

    return often


def _of_version_2(folder: Path) -> None:
    zarr.create_group(folder / "g.zarr", zarr_format=2)


def _consolidated(folder: Path) -> None:
    zarr.consolidate_metadata(folder / "g.zarr")


def _directory(folder: Path) -> None:
    (folder / "d.zarr").mkdir()


LONG = f"{'x' * 251}.npy"

SCENARIOS = (
    Scenario("a new .npy", _copied("a.npy"), ("a.npy",)),
    Scenario("a .npy that is replaced", _copied("a.npy", overwrite=True), ("a.npy",), ("a.npy",)),
    Scenario("a new .npy on the disk", _copied("a.npy", sync=True), ("a.npy",), sync=True),
    Scenario("a .npy with a long name", _copied(LONG, overwrite=True), (LONG,), (LONG,)),
    Scenario("a .npy from zarr", _from("s.zarr", "a.npy"), ("a.npy",), sources=("s.zarr",)),
    Scenario("a .npy from HDF5", _from("s.h5:/x", "a.npy"), ("a.npy",), sources=("s.h5:/x",)),
    Scenario("a new zarr array", _copied("a.zarr", chunks=(20, -1)), ("a.zarr",)),
    Scenario("a zarr array that is replaced", _copied("a.zarr", overwrite=True), ("a.zarr",), ("a.zarr",)),
    Scenario("a new zarr array on the disk", _copied("a.zarr", sync=True), ("a.zarr",), sync=True),
    Scenario("a zarr array from .npy", _from("s.npy", "a.zarr"), ("a.zarr",), sources=("s.npy",)),
    Scenario("a zarr array in a new group", _copied("g.zarr/s/a"), ("g.zarr/s/a",)),
    Scenario("a zarr array in a group", _copied("g.zarr/a"), ("g.zarr/a",), (), ("g.zarr/b",)),
    Scenario(
        "a zarr array beside another", _copied("g.zarr/a", overwrite=True), ("g.zarr/a",), ("g.zarr/a",), ("g.zarr/b",)
    ),
    Scenario("a zarr array in a group of format 2", _copied("g.zarr/a"), ("g.zarr/a",), prepared=_of_version_2),
    Scenario(
        "a zarr array in a consolidated group",
        _copied("g.zarr/s/a", overwrite=True),
        ("g.zarr/s/a",),
        ("g.zarr/s/a",),
        ("g.zarr/b",),
        prepared=_consolidated,
    ),
    Scenario("a zarr array in a directory that is no group", _copied("d.zarr/a"), ("d.zarr/a",), prepared=_directory),
    Scenario("a new zarr array in two passes", _rechunked("s.zarr", "a.zarr"), ("a.zarr",), sources=("s.zarr",)),
    Scenario(
        "a zarr array that is replaced in two passes",
        _rechunked("s.zarr", "a.zarr", overwrite=True),
        ("a.zarr",),
        ("a.zarr",),
        sources=("s.zarr",),
    ),
    Scenario("two outputs, one replaced", _copied("a.npy", "b.zarr", overwrite=True), ("a.npy", "b.zarr"), ("b.zarr",)),
    Scenario("two new outputs", _copied("a.npy", "b.npy"), ("a.npy", "b.npy")),
    Scenario("two arrays of a new group", _copied("g.zarr/a", "g.zarr/b"), ("g.zarr/a", "g.zarr/b")),
    Scenario("two expressions, both replaced", _stored("a.npy", "b.zarr"), ("a.npy", "b.zarr"), ("a.npy", "b.zarr")),
    Scenario("an expression", _stored("a.zarr"), ("a.zarr",)),
    Scenario("a reduction", _folded("a.npy", overwrite=True), ("a.npy",), ("a.npy",)),
    Scenario("a median", _median("a.npy", overwrite=True), ("a.npy",), ("a.npy",)),
    Scenario("a new .npy by dask", _by_dask("a.npy"), ("a.npy",)),
    Scenario("a new zarr array by dask", _by_dask("a.zarr"), ("a.zarr",)),
    Scenario("a resumed .npy", _copied("a.npy", resume=True), ("a.npy",), resumes=True),
    Scenario(
        "a resumed .npy that is replaced",
        _copied("a.npy", resume=True, overwrite=True),
        ("a.npy",),
        ("a.npy",),
        resumes=True,
    ),
    Scenario("a resumed zarr array", _copied("g.zarr/a", resume=True, chunks=(20, -1)), ("g.zarr/a",), resumes=True),
    Scenario("two resumed outputs", _copied("a.npy", "b.zarr", resume=True), ("a.npy", "b.zarr"), resumes=True),
    Scenario("a resumed dataset of a new file", _copied("n.h5:/g/a", resume=True), ("n.h5:/g/a",), resumes=True),
    Scenario(
        "a resumed dataset beside others",
        _copied("u.h5:/g/a", resume=True, chunks=(20, 20)),
        ("u.h5:/g/a",),
        (),
        ("u.h5:/b", "u.h5:/g/c"),
        resumes=True,
    ),
    Scenario(
        "a resumed dataset that is replaced, and a file",
        _copied("u.h5:/g/a", "b.npy", resume=True, overwrite=True),
        ("u.h5:/g/a", "b.npy"),
        ("u.h5:/g/a", "b.npy"),
        ("u.h5:/b",),
        resumes=True,
    ),
    Scenario("a resumed median", _median("g.zarr/a", resume=True), ("g.zarr/a",), resumes=True),
    Scenario("a resumed reduction", _kept(_folded("a.npy", resume=True)), ("a.npy",), resumes=True),
    Scenario("a .npy that grows", _appended("a.npy"), ("a.npy",), grown=("a.npy",)),
    Scenario("a zarr array that grows", _appended("a.zarr"), ("a.zarr",), grown=("a.zarr",)),
    Scenario("a long line, sorted", _sorted("a.npy"), ("a.npy",)),
    Scenario("a new HDF5 file", _copied("n.h5:/g/a"), ("n.h5:/g/a",)),
    Scenario("a new netCDF file", _copied("n.nc:/a"), ("n.nc:/a",)),
    Scenario("two datasets of a new file", _copied("n.h5:/a", "n.h5:/b"), ("n.h5:/a", "n.h5:/b")),
    Scenario("a dataset beside others", _copied("u.h5:/g/a"), ("u.h5:/g/a",), (), ("u.h5:/b", "u.h5:/g/c")),
    Scenario(
        "a dataset with chunks", _copied("u.h5:/g/a", chunks=(20, 20)), ("u.h5:/g/a",), (), ("u.h5:/b", "u.h5:/g/c")
    ),
    Scenario(
        "a dataset with checksums", _copied("u.h5:/g/a", checksum=True), ("u.h5:/g/a",), (), ("u.h5:/b", "u.h5:/g/c")
    ),
    Scenario(
        "a dataset that is replaced", _copied("u.h5:/g/a", overwrite=True), ("u.h5:/g/a",), ("u.h5:/g/a",), ("u.h5:/b",)
    ),
    Scenario(
        "a dataset and a file, replaced",
        _copied("u.h5:/a", "b.npy", overwrite=True),
        ("u.h5:/a", "b.npy"),
        ("u.h5:/a", "b.npy"),
        ("u.h5:/b",),
    ),
    Scenario("two datasets beside another", _copied("u.h5:/a", "u.h5:/c"), ("u.h5:/a", "u.h5:/c"), (), ("u.h5:/b",)),
    Scenario(
        "outputs of two passes, one replaced",
        _passes("a.npy", "g.zarr/b", overwrite=True),
        ("a.npy", "g.zarr/b"),
        ("a.npy",),
    ),
    Scenario(
        "resumed outputs of two passes", _passes("a.zarr", "b.npy", resume=True), ("a.zarr", "b.npy"), resumes=True
    ),
    Scenario("a dataset and a file of two passes", _passes("u.h5:/a", "b.npy"), ("u.h5:/a", "b.npy"), (), ("u.h5:/b",)),
)


def prepare(folder: Path, scenario: Scenario) -> int:
    """Put there what a scenario finds."""
    for output in (*scenario.replaced, *scenario.neighbours):
        put(folder, output, OLD)
    for output in scenario.grown:
        put(folder, output, BEGUN)
    for source in scenario.sources:
        put(folder, source, NEW)
    if scenario.prepared is not None:
        scenario.prepared(folder)
    return 0


def put(folder: Path, output: str, array: np.ndarray) -> None:
    """Store an array by the library of its format."""
    path, _, name = str(folder / output).partition(":")
    if name:
        with h5py.File(path, "a") as file:
            file[name] = array
    elif path.endswith(".npy"):
        np.save(path, array)
    else:
        for above in Path(path).parents:
            if ".zarr" in str(above) and not (above / "zarr.json").exists():
                zarr.create_group(above)
        zarr.create_array(path, data=array, chunks=(10, 10))


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
    for word, expected in (("old", OLD), ("old", BEGUN), ("new", NEW), ("new", NEW.reshape(-1))):
        if array.shape == expected.shape and array.dtype == expected.dtype and (array == expected).all():
            return word
    return f"an array of {array.dtype} {array.shape} with other values"
