"""Runs that are killed and gone on with: ``python -m engine.resume_calls KIND FOLDER`` makes one call, slowly."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fsspec
import h5py
import numpy as np
import zarr
from fsspec.implementations.local import LocalFileSystem

import chunkflow as cf
from chunkflow.engine import resume
from chunkflow.engine.block_runner import BlockRunner
from chunkflow.stores.zarr import remote_claim

CPU: dict[str, Any] = {"device": "cpu", "resume": True}
PAUSE = 0.004


def array() -> np.ndarray:
    return np.random.default_rng(0).random((960, 10, 8)).astype("f4")


def counted(block: np.ndarray, folder: str) -> np.ndarray:
    """The block itself, after a pause; each call of a run adds a letter to a file. One may be interrupted."""
    with open(Path(folder) / "calls", "a") as file:
        file.write("x")
        file.flush()
        if file.tell() == int(next(Path(folder).glob("interrupt.*"), Path("none.0")).suffix[1:]):
            os.kill(os.getpid(), signal.SIGINT)
    time.sleep(PAUSE)
    return block


def slow(folder: Path) -> Any:
    """The array, as an expression whose blocks take a while."""
    return cf.map(counted, cf.open(folder / "x.npy"), folder=str(folder), dtype="f4", workspace=0)


@contextmanager
def watched(folder: Path) -> Iterator[None]:
    """Blocks of our own kernels are counted, and take a while, as those of `counted`."""
    compute = BlockRunner._compute

    def slowed(*args: Any) -> Any:
        counted(np.empty(0), str(folder))
        return compute(*args)

    with patch.object(BlockRunner, "_compute", slowed):
        yield


def several(call: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """A call of several passes of kernels of our own."""

    def watching(folder: Path) -> Any:
        with watched(folder):
            return call(folder)

    return watching


class Objects(LocalFileSystem):  # type: ignore[misc]
    """Files as an object store has them: each is there when all of it has come."""

    protocol = "objects"

    def pipe_file(self, path: str, value: bytes, **_: Any) -> None:
        place = Path(self._strip_protocol(path))
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(delete=False) as file:  # not there, where it would be an object
            file.write(value)
        os.replace(file.name, place)


fsspec.register_implementation("objects", Objects, clobber=True)


def rows(folder: Path) -> Any:
    """The array, as one of two dimensions in chunks of whole rows."""
    path = folder / "rows.zarr"
    if not path.exists():
        cf.copy(array().reshape(960, 80), path, chunks=(16, 80), device="cpu")
    return path


def stored(path: Path) -> Any:
    """The elements of an output; of an HDF5 file or a folder those of all arrays, by name."""
    if path.name == "u":
        return {each.name: {"": stored(each), "hidden": sorted(each.rglob(".*"))} for each in path.glob("*.zarr")}
    if path.suffix == ".h5":
        found: dict[str, Any] = {}
        with h5py.File(path, "r") as file:
            file.visititems(lambda name, x: found.update({name: x[...]}) if isinstance(x, h5py.Dataset) else None)
        return found
    return np.load(path) if path.suffix == ".npy" else np.asarray(zarr.open_array(path, mode="r")[...])


KINDS: dict[str, Callable[[Path], Any]] = {
    "map to npy": lambda folder: cf.map(
        counted, folder / "x.npy", folder=str(folder), out=folder / "o.npy", chunks=(16, -1, -1), **CPU
    ),
    "map to zarr": lambda folder: cf.map(
        counted, folder / "x.npy", folder=str(folder), out=folder / "o.zarr", chunks=(20, -1, -1), **CPU
    ),
    "map to hdf5": lambda folder: cf.map(
        counted, folder / "x.npy", folder=str(folder), out=f"{folder}/o.h5:/run/u", chunks=(20, -1, -1), **CPU
    ),
    "sum to hdf5": lambda folder: cf.store(
        [(x := slow(folder)).sum(axis=0), x * 2], [f"{folder}/o.h5:/s", f"{folder}/o.h5:/o"], budget="48kB", **CPU
    ),
    "median to hdf5": several(
        lambda folder: cf.median(folder / "x.npy", axis=0, out=f"{folder}/o.h5", chunks=(32, -1, -1), **CPU)
    ),
    "map to a URL": lambda folder: cf.map(
        counted, folder / "x.npy", folder=str(folder), out=f"objects://{folder}/u/o.zarr", chunks=(20, -1, -1), **CPU
    ),
    "sums to a URL": lambda folder: cf.store(
        [(x := slow(folder)).sum(axis=0), x - x.mean()],
        [f"objects://{folder}/u/s.zarr", f"objects://{folder}/u/o.zarr"],
        budget="300kB",
        **CPU,
    ),
    "overlapping blocks": lambda folder: cf.map_overlap(
        lambda b: counted(b, str(folder)) + np.roll(b, 1, 0),
        folder / "x.npy",
        depth=1,
        boundary="nearest",
        out=folder / "o.npy",
        chunks=(24, -1, -1),
        **CPU,
    ),
    "sum along an axis": lambda folder: cf.store(slow(folder).sum(axis=0), folder / "o.npy", budget="24kB", **CPU),
    "sum of all": lambda folder: cf.store(slow(folder).mean(), folder / "o.npy", budget="24kB", **CPU),
    "cumulative sum": lambda folder: cf.store(cf.cumsum(slow(folder), axis=0), folder / "o.npy", budget="24kB", **CPU),
    "several outputs": lambda folder: cf.store(
        [(x := slow(folder)) * 2, x.sum(axis=0)], [folder / "o.npy", folder / "s.npy"], budget="48kB", **CPU
    ),
    "expression of two passes": lambda folder: cf.store(
        (x := slow(folder)) - x.mean(), folder / "o.npy", budget="24kB", **CPU
    ),
    "outputs of several passes": lambda folder: cf.store(
        [(x := slow(folder)).mean(axis=0), x / x.mean(axis=0).max(), x.max()],
        [folder / "m.zarr", folder / "o.npy", folder / "g.npy"],
        budget="48kB",
        **CPU,
    ),
    "array between passes": lambda folder: cf.store(
        (y := cf.cumsum(slow(folder), axis=0)) / y.max(), folder / "o.npy", budget="24kB", **CPU
    ),
    "median in an expression": several(
        lambda folder: cf.store(
            [np.median(x := cf.open(folder / "x.npy")), x - np.median(x, axis=0)],
            [folder / "m.npy", folder / "o.npy"],
            budget="60kB",
            **CPU,
        )
    ),
    "tasks of dask": lambda folder: import_module("chunkflow.dask").store(  # whose import takes longer
        [(x := slow(folder)) * 2, x.mean(axis=0)],
        [folder / "o.npy", folder / "m.zarr"],
        partition="32kB",
        scheduler="sync",
        **CPU,
    ),
    "rechunk": several(lambda folder: cf.rechunk(rows(folder), (960, 4), folder / "o.zarr", budget="70kB", **CPU)),
    "fft to npy": several(
        lambda folder: cf.fft.fftn(folder / "x.npy", axes=(2, 0), out=folder / "o.npy", budget="150kB", **CPU)
    ),
    "fft to zarr": several(lambda folder: cf.fft.fftn(rows(folder), out=folder / "o.zarr", budget="150kB", **CPU)),
    "iterated stencil": lambda folder: cf.map_overlap(
        lambda b: (counted(b, str(folder)) + np.roll(b, 1, 0)) / 2,
        folder / "x.npy",
        depth=(1, 0, 0),
        boundary="periodic",
        iterations=5,
        steps_per_pass=1,
        out=folder / "o.npy",
        chunks=(64, -1, -1),
        **CPU,
    ),
    "median": several(lambda folder: cf.median(folder / "x.npy", out=folder / "o.npy", chunks=(32, -1, -1), **CPU)),
    "quantiles along an axis": several(
        lambda folder: cf.quantile(
            folder / "x.npy", [0.1, 0.5], axis=0, out=folder / "o.npy", chunks=(32, -1, -1), **CPU
        )
    ),
    "histogram by a rule": several(
        lambda folder: cf.histogram(folder / "x.npy", "auto", out=folder / "o.npy", chunks=(32, -1, -1), **CPU)
    ),
    "distinct values": several(
        lambda folder: cf.unique(
            (array() * 1000).astype("i4"),
            return_inverse=True,
            return_counts=True,
            out=(folder / "o.npy", folder / "i.npy", folder / "n.npy"),
            chunks=(32, -1, -1),
            **CPU,
        )
    ),
    "distinct values to URLs": several(
        lambda folder: cf.unique(
            (array() * 1000).astype("i4"),
            return_counts=True,
            out=(f"objects://{folder}/u/o.zarr", f"objects://{folder}/u/n.zarr"),
            chunks=(32, -1, -1),
            **CPU,
        )
    ),
}


def prepared() -> None:
    """Let runs note what is done after each block."""
    resume.EVERY, resume.SHARE = 0.0, 0
    remote_claim.NOTE, remote_claim.SHARE = 0.0, 0


def main() -> None:
    prepared()
    KINDS[sys.argv[1]](Path(sys.argv[2]))


if __name__ == "__main__":
    main()
