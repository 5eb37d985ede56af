"""Pages with examples do what they say, and what they name exists."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
from pathlib import Path

import numpy as np
import pytest
import zarr

import chunkflow as cf

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
NEEDS = {"dask.md": ["dask"], "xarray.md": ["xarray"], "libraries.md": ["torch", "jax"], "tutorial.md": ["matplotlib"]}
MADE = {"generated", "auto_gallery", "_build"}
"""Folders that are made when the site is built."""
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(p for p in DOCS.rglob("*.md") if MADE.isdisjoint(p.parts))]
)
FILE = re.compile(r"(?<![\w./-])((?:chunkflow|tests|benchmarks|examples|docs)/[\w./-]*[\w/])")
"""A path of the repository, as pages write it."""
NAME = re.compile(r"(?<![\w./-])(chunkflow(?:\.\w+)+)(?![\w/])")
"""A module, or something in one, by its full name."""
WINGS = ["system", "core", "kernels", "planner", "stores", "devices", "engine", "graph", "cluster", "api", "cli"]
SHORT = re.compile(rf"`((?:{'|'.join(WINGS)})(/[\w./]*|(?:\.\w+)+))`")
"""A path or name below `chunkflow`, as the page on the architecture writes it."""
LINK = re.compile(r"\]\((?!\w+:)([^)#]+)?(?:#([^)]+))?\)")
"""A link to another page, or to a heading."""


NEW = re.compile(r"^A new file, `(\S+)\.py`:$", re.M)
"""A file that a recipe adds to the project, which does not have it."""


RUN_WHOLE = sorted(
    page
    for page in [
        *DOCS.glob("*.md"),
        *(p for name in ("explanation", "from", "howto", "reference") for p in DOCS.glob(f"{name}/*.md")),
    ]
    if (page.parent != DOCS or page.stem in ("budgets", "faq", "index", "tutorial")) and "```python" in page.read_text()
)
"""Pages of the site on which each block of Python runs; what is not to be run is called `py`."""


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def make_fields() -> dict[str, np.ndarray]:
    """The arrays `sim.zarr/u`, `v` and `w` of the first example."""
    rng = np.random.default_rng(1)
    fields = {name: rng.standard_normal((16, 24, 32), "f4") for name in "uvw"}
    group = zarr.open_group("sim.zarr", mode="w")
    for name, field in fields.items():
        group.create_array(name, data=field, chunks=(8, 24, 32))
    return fields


@pytest.mark.parametrize(
    "page", sorted(p.name for p in DOCS.glob("*.md") if ">>> " in p.read_text() and p not in RUN_WHOLE)
)
def test_examples_of_a_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NEEDS.get(page, []):
        pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(cf.config.config, "device", "cpu")
    failed, tried = doctest.testfile(str(DOCS / page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert tried
    assert not failed


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("page", [page_id(page) for page in RUN_WHOLE])
def test_code_of_a_page_of_the_site(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks of Python, one after the other, in an empty folder; what blocks with prompts print is compared."""
    for name in NEEDS.get(page.removeprefix("docs/"), []):
        pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(cf.config.config, "device", "cpu")
    monkeypatch.setenv("MPLBACKEND", "agg")
    text = (ROOT / page).read_text()
    if page == "docs/index.md":
        make_fields()
    names: dict[str, object] = {"__name__": "__main__"}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for match in re.finditer(r"^```python\n(.*?)^```", text, re.S | re.M):
        block, line = match[1], text[: match.start()].count("\n") + 1
        if ">>> " in block:
            examples = doctest.DocTestParser().get_doctest(block, names, page, page, line)
            assert not runner.run(examples, clear_globs=False).failed
            names = examples.globs
        else:
            exec(compile("\n" * line + block, page, "exec"), names)


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_examples_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of Python in README, one after the other, on small arrays under the names that they use."""
    monkeypatch.chdir(tmp_path)
    fields = make_fields()
    names: dict[str, object] = {}
    with cf.config.set(device="cpu"):
        for block in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S):
            exec(compile(block, "README.md", "exec"), names)

    speed = np.sqrt(sum(field**2 for field in fields.values()))
    np.testing.assert_allclose(zarr.open_array("speed.zarr")[...], speed, rtol=1e-5)
    np.testing.assert_allclose(names["mean"], (speed**2 / 2).mean(), rtol=1e-5)
    np.testing.assert_allclose(names["peak"], (speed**2 / 2).max(axis=(1, 2)), rtol=1e-5)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_files_that_a_page_names_exist(page: Path) -> None:
    added = {f"{name}.py" for name in NEW.findall(page.read_text())}
    missing = [name for name in FILE.findall(page.read_text()) if not (ROOT / name).exists()]
    assert set(missing) <= added


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_names_that_a_page_names_exist(page: Path) -> None:
    added = {name.replace("/", ".") for name in NEW.findall(page.read_text())}
    missing = [name for name in sorted(set(NAME.findall(page.read_text()))) if not exists(name)]
    assert set(missing) <= added


def test_short_paths_and_names_of_the_architecture_exist() -> None:
    found = SHORT.findall((DOCS / "architecture.md").read_text())
    assert found
    files = [name for name, rest in found if rest.startswith("/")]
    names = [f"chunkflow.{name}" for name, rest in found if rest.startswith(".")]
    assert not [name for name in files if not (ROOT / "chunkflow" / name).exists()]
    assert not [name for name in sorted(set(names)) if not exists(name)]


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target, heading in LINK.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.S)):
        there = page.parent / target if target else page
        assert there.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.*)$", there.read_text(), re.M)
            assert heading in [re.sub(r"[^\w\- ]", "", h).strip().lower().replace(" ", "-") for h in headings]


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_no_code_of_a_page_escapes_the_tests(page: Path) -> None:
    """Each block of Python is run by one of them; tests/test_contributing.py and tests/doors/test_cli_page.py too."""
    if page in RUN_WHOLE or page.name in ("README.md", "CONTRIBUTING.md", "cli.md"):
        return
    blocks = re.findall(r"^ *```python\n(.*?)^ *```", page.read_text(), re.S | re.M)
    assert not [block for block in blocks if ">>> " not in block or page.parent != DOCS]


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_code_of_a_page_stands_in_fences(page: Path) -> None:
    """Else it is shown as a quotation in a quotation."""
    assert not re.findall(r"^ *>>> .*$", re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.S | re.M), re.M)


def test_constants_have_the_values_that_are_listed() -> None:
    rows = re.findall(r"^\| `(chunkflow\.[\w.]+)` \| `([^`]+)` \|", (DOCS / "architecture.md").read_text(), re.M)
    assert rows
    for name, text in rows:
        assert value(name) == eval(text), name


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def exists(name: str) -> bool:
    try:
        value(name)
    except (ImportError, AttributeError):
        return optional(name)
    return True


def value(name: str) -> object:
    """What a full name stands for: a module, or what is in one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:end])
        if path.with_suffix(".py").exists() or (path / "__init__.py").exists():
            found: object = importlib.import_module(".".join(parts[:end]))
            for part in parts[end:]:
                found = getattr(found, part)
            return found
    raise ImportError(name)


def optional(name: str) -> bool:
    """Whether the name is in a module that cannot be imported here, for want of a library."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:end]).with_suffix(".py")
        if path.exists():
            tree = ast.parse(path.read_text())
            defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
            return len(parts) == end or parts[end] in defined
    return False
