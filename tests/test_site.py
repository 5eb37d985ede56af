"""The documentation site: each public name is on it, with an example, and the scripts of its gallery run.

`tests/test_docs.py` runs the code of its pages. `sphinx-build -W` finds links and names that lead nowhere.
"""

from __future__ import annotations

import importlib
import inspect
import re
import runpy
from pathlib import Path

import pytest

import chunkflow as cf
from chunkflow.cli.command import parser

DOCS = Path(__file__).resolve().parents[1] / "docs"
GALLERY = sorted((DOCS / "gallery").glob("plot_*.py"))
LISTED = re.compile(r"^\.\. currentmodule:: ([\w.]+)\n(.*?)^```", re.S | re.M)
LIBRARIES = {
    "chunkflow.dask": "dask", "chunkflow.datasets": "torch", "chunkflow.xarray": "xarray",
    "chunkflow.testing": "hypothesis",
}  # fmt: skip
DOORS = ["chunkflow", "chunkflow.fft", "chunkflow.random", "chunkflow.errors", *LIBRARIES]
NAMES = {"chunkflow.xarray": ["Accessor", "ChunkManager"], "chunkflow.datasets": ["Blocks"]}


def public(door: str) -> dict[str, object]:
    """Public names of a door that are no modules, and what they are."""
    if door in LIBRARIES:
        pytest.importorskip(LIBRARIES[door])
    module = importlib.import_module(door)
    if door == "chunkflow.errors":
        names = [n for n, o in vars(module).items() if isinstance(o, type) and o.__module__ == door and n[0] != "_"]
    else:
        names = NAMES.get(door) or module.__all__
    return {name: found for name in names if not inspect.ismodule(found := getattr(module, name))}


def listed(door: str) -> list[str]:
    """Names of a door that the pages of the reference have."""
    found = []
    for page in sorted((DOCS / "reference").glob("*.md")):
        for module, text in LISTED.findall(page.read_text()):
            found += re.findall(r"^   (\w+)$", text, re.M) if module == door else []
    return found


@pytest.mark.parametrize("door", DOORS)
def test_each_public_name_is_in_the_reference(door: str) -> None:
    names = listed(door)
    errors = set(listed("chunkflow.errors")) if door == "chunkflow" else set()
    assert set(names) == set(public(door)) - errors
    assert not [name for name in set(names) - {"explain"} if names.count(name) > 1]  # `explain` belongs to two pages


@pytest.mark.parametrize("door", [door for door in DOORS if door != "chunkflow.errors"])
def test_each_public_name_has_an_example(door: str) -> None:
    """Suites that a store or device has to pass have theirs in CONTRIBUTING.md, errors on their page."""
    found = {name: each for name, each in public(door).items() if not name.endswith(("Contract", "Reader", "Writer"))}
    assert not [name for name, each in found.items() if ">>> " not in (inspect.getdoc(each) or "")]


@pytest.mark.parametrize("kind", [cf.Array, cf.MaskedArray, cf.TimeArray, cf.random.RandomGenerator, cf.Budget])
def test_each_public_method_has_a_docstring(kind: type) -> None:
    """Those of NumPy's names say which of NumPy's functions they are."""
    names = [name for name, found in inspect.getmembers(kind) if name[0] != "_" and callable(found)]
    assert len(names) > 2
    assert not [name for name in names if not inspect.getdoc(getattr(kind, name))]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (cf.Array, "compute to_zarr to_npy map map_overlap item to_dask persist"),
        (cf.MaskedArray, "filled compressed count"),
        (cf.random.RandomGenerator, "random uniform integers standard_normal normal standard_exponential exponential"),
    ],
)
def test_methods_that_are_not_of_numpys_arrays_have_examples(kind: type, names: str) -> None:
    assert not [name for name in names.split() if ">>> " not in (inspect.getdoc(getattr(kind, name)) or "")]


def test_each_command_is_on_its_page() -> None:
    page = (DOCS / "cli.md").read_text()
    commands = next(action.choices for action in parser()._actions if isinstance(action.choices, dict))
    assert commands
    assert not [name for name in commands if f"chunkflow {name}" not in page]


@pytest.mark.thorough  # CI builds the site, which runs them
@pytest.mark.parametrize("script", GALLERY, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_scripts_of_the_gallery_run(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    for name in ("scipy", "xarray"):
        pytest.importorskip(name)
    from matplotlib import pyplot as plt

    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(cf.config.config, "device", "cpu")
    monkeypatch.setattr(plt, "show", lambda: None)
    try:
        names = runpy.run_path(str(script), run_name="__main__")
        assert plt.gcf().axes
        assert all(axes.dataLim.width > 0 and axes.has_data() for axes in plt.gcf().axes)
        plt.gcf().canvas.draw()
    finally:
        plt.close("all")
    if folder := names.get("folder"):
        folder.cleanup()
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert not errors  # of an observer, which is then dropped
    assert not [*tmp_path.iterdir()]


def test_the_gallery_has_a_dozen_pictures_with_words() -> None:
    assert len(GALLERY) >= 12
    for script in GALLERY:
        title, line, *rest = script.read_text().removeprefix('"""\n').splitlines()
        assert len(line) == len(title), script.name
        assert "plt.show()" in "\n".join(rest)
