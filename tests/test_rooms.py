"""The house rules: which room may import which, and what importing chunkflow must not load."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "chunkflow"

# Lowest first: a room imports only from rooms before it in this list. The rooms that a star stands for are
# one another's equals and do not import each other. A package's own name stands for its __init__.py.
FLOORS = (
    "errors units interrupts compiled grid halo spec packed trace memory cost",
    "ops.blockwise ops.kernels ops.keys ops.map ops.overlap ops.tiled ops.gemm ops.product ops.chain ops.fused "
    "ops.part ops.chained ops.quantile ops.digits ops.* ops",
    "batches cuts step plan coding problem turns search planner chunking host",
    "stores.base stores.layout stores.checks stores.paths stores.cached",
    "stores.array stores.file stores.filesink stores.large "
    "stores.zarrnode stores.zarrfiles stores.zarrcodecs stores.zarrfilters "
    "stores.zarrchain stores.zarrchunks stores.zarrshards stores.zstdframe stores.zarrencoded "
    "stores.retries stores.zarrdirect stores.zarrremote stores.zarr stores.zarrpath stores.zarrurl stores.hdf5chunks "
    "stores.hdf5facts stores.hdf5 "
    "stores.generic stores.xarray stores.* stores",
    "devices.moving devices.copying devices.base devices.line devices.measured devices.rates devices.pinned "
    "devices.traced devices.unshuffle devices.rims devices.nvcomp devices.numpy devices.cupy",
    "devices.clock devices",
    "staging lanes stations kernel threads crews splitting encoded decoding ring direct flight engine budget calibrate "
    "profile progress",
    "rehearsal analysis declare prepare launch given graph fusing places passes partition labels stream run adapters "
    "api ufuncs",
    "pacing iterating overlap",
    "reducing reductions extremes nanreductions selecting counting quantiles binning histograms groups scans "
    "covariance linalg",
    "rearranging rearrange joining rechunking",
    "spectral fourier transforming convolution fft",
    "elementwise slicing reshaping filling equivalents vocabulary compute",
    "dask.asking dask.tasks dask.layers dask.graph dask.storing dask.blocks dask",
    "collection lazy opening",
    "tuning cli __main__ xarray datasets testing.arrays testing.bench testing.pools testing.* testing",
)
ROOMS = [room for floor in FLOORS for room in floor.split()]

# Beyond the order: the referee wraps any device, so it knows none.
MAY_NOT_IMPORT = {"devices.clock": ("devices.numpy", "devices.cupy")}
# Doors to the outside use the package as its users do. Nothing inside imports them.
DOORS = ("cli", "datasets", "testing", "xarray")
# These look their modules up by name, when one is asked for.
LAZY = ("", "stores", "devices", "collection")
# Heavy packages, and the only rooms that may import each.
ONLY_IN = {
    "cupy": "devices.cupy",
    "cupyx": "devices.cupy",
    "zarr": "stores.zarr*",
    "h5py": "stores.hdf5*",
    "tqdm": "progress",
    "dask": "*dask*",
    "torch": "datasets",
    "xarray": "*xarray",
}

MAX_LINES = 400
SOURCES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    """Name below ``chunkflow``; empty for the package's own ``__init__.py``."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


FILES = {room_of(path): path for path in SOURCES}


def rank(room: str) -> int | None:
    """Place in `ROOMS`, an exact name before a star; None for a room that is not listed."""
    if room in ROOMS:
        return ROOMS.index(room)
    return next((i for i, pattern in enumerate(ROOMS) if fnmatchcase(room, pattern)), None)


def imports(tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    """Each import statement with the full name of each module that it loads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: relative import"
            assert node.module is not None
            for alias in node.names:
                member = f"{node.module}.{alias.name}"
                yield node, member if member.removeprefix("chunkflow.") in FILES else node.module


def room_imports(tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    """The same for our own modules only, each as the name of its room."""
    for node, name in imports(tree):
        if name.split(".")[0] == "chunkflow":
            yield node, name.removeprefix("chunkflow").removeprefix(".")


def parse(room: str) -> ast.Module:
    return ast.parse(FILES[room].read_text(), FILES[room])


@pytest.mark.parametrize("room", FILES)
def test_each_file_is_a_listed_room(room: str) -> None:
    assert room == "" or rank(room) is not None, f"{FILES[room]} has no place in ROOMS"


@pytest.mark.parametrize("room", FILES)
def test_imports_only_from_rooms_before_it(room: str) -> None:
    place = len(ROOMS) if room == "" else rank(room)
    assert place is not None
    for node, target in room_imports(parse(room)):
        where = f"{room or '__init__'}, line {node.lineno}: imports chunkflow.{target}"
        door = "cli" if room == "__main__" else room.split(".")[0]
        if target == "":
            assert door in DOORS, f"{where}, the package as a whole"
            continue
        other = rank(target)
        assert other is not None, f"{where}, which has no place in ROOMS"
        assert other < place, f"{where}, which does not come before it in ROOMS"
        assert target not in MAY_NOT_IMPORT.get(room, ()), where
        assert target.split(".")[0] not in DOORS or target.split(".")[0] == door, f"{where}, a door to the outside"


@pytest.mark.parametrize("room", [room for room in FILES if room not in LAZY])
def test_rooms_are_imported_at_module_top(room: str) -> None:
    tree = parse(room)
    top: set[ast.stmt] = set(tree.body)
    for node in tree.body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            top.update(node.body)
    late = [node.lineno for node, _ in room_imports(tree) if node not in top]
    assert not late, f"{room}: imports below the top of the module, lines {late}"


@pytest.mark.parametrize("room", FILES)
def test_heavy_packages_stay_in_their_room(room: str) -> None:
    for node, name in imports(parse(room)):
        only = ONLY_IN.get(name.split(".")[0], "*")
        assert fnmatchcase(room, only), f"{room}, line {node.lineno}: only {only} may import {name}"


@pytest.mark.parametrize("room", FILES)
def test_no_room_is_two_rooms(room: str) -> None:
    lines = len(FILES[room].read_text().splitlines())
    assert lines <= MAX_LINES, f"{FILES[room]} has {lines} lines"


SCRIPTS = [path for name in ("examples", "benchmarks") for path in sorted((ROOT / name).rglob("*.py"))]


@pytest.mark.parametrize("path", [*SOURCES, *SCRIPTS], ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_unpickled(path: Path) -> None:
    tree = ast.parse(path.read_text(), path)
    for node, name in imports(tree):
        assert name.split(".")[0] not in ("pickle", "cloudpickle", "dill", "marshal"), f"line {node.lineno}"
    keywords = [node for node in ast.walk(tree) if isinstance(node, ast.keyword)]
    for keyword in keywords:
        if keyword.arg == "allow_pickle":
            assert ast.unparse(keyword.value) == "False", f"line {keyword.value.lineno}"


def loaded_by(code: str, packages: list[str]) -> list[str]:
    """Those of `packages` that a fresh process has loaded after running `code` on the CPU."""
    script = f"{code}\nimport sys\nprint(*(name for name in {packages!r} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "CHUNKFLOW_DEVICE": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_import_is_light() -> None:
    seconds = {}
    for package in ("numpy", "chunkflow"):
        start = time.perf_counter()
        heavy = ["cupy", "dask", "distributed", "zarr", "tqdm", "h5py", "xarray", "torch", "jax"]
        assert loaded_by(f"import {package}", heavy) == []
        seconds[package] = time.perf_counter() - start
    print({package: f"{s:.2f} s" for package, s in seconds.items()})  # to be read: no clock decides a test


@pytest.mark.parametrize("stored", ["in memory", "npy"])
def test_planning_loads_no_store_or_device_that_it_does_not_need(stored: str, tmp_path: Path) -> None:
    array = "np.ones((64, 64), 'f4')"
    if stored == "npy":
        np.save(tmp_path / "x.npy", np.ones((64, 64), "f4"))
        array = repr(str(tmp_path / "x.npy"))
    code = f"import numpy as np, chunkflow\nchunkflow.explain(np.sqrt, {array}, dtype=np.dtype('f4'), workspace=4)"
    assert loaded_by(code, ["cupy", "dask", "zarr", "h5py"]) == []
