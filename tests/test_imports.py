"""The house rules: which wing may import which, and what importing chunkflow must not load."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import numpy as np
import pytest

import chunkflow

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "chunkflow"

# Lowest first: a wing imports only from wings on floors below its own.
FLOORS = (
    ("errors",),
    ("system",),
    ("core",),
    ("kernels", "planner", "stores"),
    ("devices",),
    ("engine",),
    ("graph",),
    ("cluster",),
    ("api",),
)
FLOOR = {wing: number for number, floor in enumerate(FLOORS) for wing in floor}
WINGS = [wing for wing in FLOOR if wing != "errors"]
# Beyond the order: devices run kernels and read no store; the race detector wraps any device, so it knows none.
MAY_NOT_IMPORT = {
    "devices": ("planner", "stores"),
    "devices.race_detector": ("devices.cpu", "devices.cuda"),
}
# What users import. Nothing inside imports a door. Some doors use the package as its users do.
DOORS = ("array_api", "cli", "dask", "datasets", "errors", "fft", "random", "testing", "xarray")
USE_THE_PACKAGE = ("cli", "datasets", "testing", "xarray")
# These look modules up by name, when one is asked for.
LAZY = ("stores.registry", "devices.registry", "api.lazy.dask_protocol")
# Heavy packages, and the places that may import each.
ONLY_IN = {
    "cupy": ("devices.cuda.device",),
    "cupyx": ("devices.cuda.device",),
    "zarr": ("stores.zarr.*", "stores.kvstore.fsspec"),
    "h5py": ("stores.hdf5.*",),
    "tqdm": ("engine.observe.progress",),
    "dask": ("dask.*", "cluster.*", "stores.foreign.dask"),
    "torch": ("datasets",),
    "xarray": ("xarray", "stores.foreign.xarray"),
}
MOST_NAMES = 19

# Installing writes the version; a fresh checkout has no such file.
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "_version.py")
SCRIPTS = [path for name in ("examples", "benchmarks") for path in sorted((ROOT / name).rglob("*.py"))]


def name_of(path: Path) -> str:
    """Name below ``chunkflow``; empty for the package's own ``__init__.py``."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {name_of(path): path for path in SOURCES}


def wing_of(module: str) -> str:
    return module.partition(".")[0]


def room_of(module: str) -> str:
    """A wing's folder, or a file beside the folders: what is read as one thing."""
    return ".".join(module.split(".")[:2])


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
                yield node, member if member.removeprefix("chunkflow.") in MODULES else node.module


@cache
def own_imports(module: str) -> list[tuple[ast.stmt, str]]:
    """The same for our own modules only, by their names below ``chunkflow``."""
    found = [(node, name) for node, name in imports(parse(module)) if wing_of(name) == "chunkflow"]
    return [(node, name.removeprefix("chunkflow").removeprefix(".")) for node, name in found]


def parse(module: str) -> ast.Module:
    return parsed(MODULES[module])


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), path)


def circles(arrows: Iterable[tuple[str, str]]) -> None:
    """Raise `graphlib.CycleError` where arrows run in a circle."""
    graph: dict[str, set[str]] = {}
    for start, end in arrows:
        if start != end:
            graph.setdefault(start, set()).add(end)
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_one_way(module: str) -> None:
    wing = wing_of(module)
    for node, target in own_imports(module):
        where, other = f"{module or '__init__'}, line {node.lineno}: imports chunkflow.{target}", wing_of(target)
        if wing in ("", "__main__"):
            continue
        if target == "":
            assert wing in USE_THE_PACKAGE, f"{where}, the package as a whole"
        elif other != wing:
            assert other in FLOOR, f"{where}, a door"
            assert wing in DOORS or FLOOR[other] < FLOOR[wing], f"{where}, which is not below it"
    for start, forbidden in MAY_NOT_IMPORT.items():
        if f"{module}.".startswith(f"{start}."):
            for _, target in own_imports(module):
                assert not f"{target}.".startswith(tuple(f"{name}." for name in forbidden)), f"{module}: {target}"


def test_nothing_runs_in_a_circle() -> None:
    arrows = [(module, target) for module in MODULES for _, target in own_imports(module)]
    circles(arrows)
    # A wing's face (its __init__) only names what is in the wing's rooms.
    circles((room_of(a), room_of(b)) for a, b in arrows if "." in b or b in DOORS)
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in SCRIPTS}
    circles(
        (name, target) for name, path in names.items() for _, target in imports(ast.parse(path.read_text()))
        if target in names
    )  # fmt: skip


def test_circles_are_seen() -> None:
    with pytest.raises(ValueError, match="nodes are in a cycle"):
        circles([("a", "b"), ("b", "c"), ("c", "a")])


@pytest.mark.parametrize("module", [name for name in MODULES if name not in LAZY])
def test_modules_are_imported_at_the_top(module: str) -> None:
    tree = parse(module)
    top: set[ast.stmt] = set(tree.body)
    for node in tree.body:
        if (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)) or isinstance(node, ast.Try):
            top.update(node.body)
    late = [node.lineno for node, _ in own_imports(module) if node not in top]
    assert not late, f"{module}: imports below the top of the module, lines {late}"


@pytest.mark.parametrize("module", MODULES)
def test_heavy_packages_stay_in_their_place(module: str) -> None:
    for node, name in imports(parse(module)):
        places = ONLY_IN.get(wing_of(name), ("*",))
        allowed = any(fnmatchcase(module, place) or fnmatchcase(f"{module}.", place) for place in places)
        assert allowed, f"{module}, line {node.lineno}: only {places} may import {name}"


def test_each_wing_says_what_lives_there_and_what_it_does_not_know() -> None:
    for wing in WINGS:
        charter = ast.get_docstring(parse(wing))
        assert charter, wing
        assert "know" in charter, f"{wing}: {charter}"
    for package in {path.parent for path in SOURCES}:
        assert ast.get_docstring(ast.parse((package / "__init__.py").read_text())), package


def test_one_name_is_one_class() -> None:
    named = Counter(
        node.name for module in MODULES for node in ast.walk(parse(module)) if isinstance(node, ast.ClassDef)
    )
    assert [name for name, number in named.items() if number > 1] == []


def test_few_names_at_the_top() -> None:
    entries = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    entries = {name for name in entries if not name.startswith("_")}
    assert entries == {*WINGS, *DOORS}
    assert len(entries) <= MOST_NAMES


def test_users_see_the_public_names_only() -> None:
    assert dir(chunkflow) == sorted(chunkflow.__all__)
    assert all(hasattr(chunkflow, name) for name in chunkflow.__all__)


@pytest.mark.parametrize("path", [*SOURCES, *SCRIPTS], ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_unpickled(path: Path) -> None:
    tree = parsed(path)
    for node, name in imports(tree):
        assert wing_of(name) not in ("pickle", "cloudpickle", "dill", "marshal"), f"line {node.lineno}"
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


@pytest.mark.parametrize("name", chunkflow.__all__)
def test_every_name_is_there_even_if_its_module_is_loaded_later(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = getattr(chunkflow, name)
    assert name in dir(chunkflow)
    if any(name in names for names in chunkflow._LATER.values()):
        monkeypatch.delitem(vars(chunkflow), name)  # as at first
        assert getattr(chunkflow, name) is found
        assert vars(chunkflow)[name] is found, "the next time it is found at once"


def test_a_name_that_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match="'chunkflow' has no attribute 'rechunked'"):
        _ = chunkflow.rechunked


def test_import_is_light() -> None:
    seconds = {}
    for package in ("numpy", "chunkflow"):
        start = time.perf_counter()
        heavy = ["cupy", "dask", "distributed", "zarr", "numcodecs", "tqdm", "h5py", "xarray", "torch", "jax"]
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
