"""What CONTRIBUTING.md shows works as it stands: each recipe passes its suite, and with a mistake it does not."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from support.devices import Place, everywhere
from support.examples import each
from support.recipes import PAGE, ROOT, copied, recipes, run

import chunkflow as cf
from chunkflow.devices import resolve
from chunkflow.stores import open_source
from chunkflow.testing import CodecContract, DeviceContract, PathSinkContract, ReductionContract, SourceContract

RECIPES = recipes()
SUITES: dict[str, tuple[type, ...]] = {
    "format": (SourceContract, PathSinkContract),
    "codec": (CodecContract,),
    "operation": (ReductionContract,),
    "device": (DeviceContract,),
}
UNCOUNTED = """\
    def pool(self, limit):
        pool = super().pool(limit)
        pool._count = lambda nbytes: None
        return pool

    def event("""
MISTAKES = {  # what is replaced, by what, and the test that finds it, which the page names
    "a format that ignores Fortran order": (
        "format", 'fortran=header["fortran"]', "fortran=False", "test_a_result_in_fortran_order",
    ),
    "a format that others read otherwise": (
        "format", '"dtype": spec.dtype.str', '"dtype": spec.dtype.newbyteorder(">").str',
        "test_other_programs_read_what_is_written",
    ),
    "a codec with a wrong byte": (
        "codec", "(found, np.uint8)", "(found, np.uint8) ^ 1", "test_bytes_make_the_round_trip",
    ),
    "a codec that believes the chunk": (
        "codec", ", out.size + 1)", ")", "test_a_chunk_that_holds_much_more_is_not_decoded",
    ),
    "a reduction that drops a part": (
        "operation", "(left[0] + right[0],)", "left", "test_the_parts_of_several_lanes_are_merged",
    ),
    "a device that does not wait": (
        "device", "self.call(mark.result)", "pass", "test_what_takes_long_is_waited_for",
    ),
    "a pool that does not count": (
        "device", "    def event(", UNCOUNTED, "test_the_pool_counts",
    ),
}  # fmt: skip
FURTHER = {  # the same, which the page does not name
    "a format that ignores the byte order": (
        "format", 'np.dtype(header["dtype"])', 'np.dtype(header["dtype"]).newbyteorder("=")',
        "test_random_regions_equal_numpy",
    ),
    "a reduction without labels": (
        "operation", "return request(make, (x,), axis, keepdims, **options)",
        "made = request(make, (x,), axis, keepdims, **options)\n    return type(made)(*made[:4])", "test_labels_stay",
    ),
    "a reduction that is wrong of no elements": (
        "operation", "lambda found: found,", "lambda found: found + 1 - (found != 0),",
        "test_of_no_elements_it_is_what_numpy_says",
    ),
    "a reduction that loses NaN": (
        "operation", "lambda found: found,", "np.nan_to_num,", "test_nan_and_infinities_are_what_numpy_says",
    ),
    "a reduction that refuses nothing": (
        "operation", '.kind == "c"', '.kind == "x"', "test_a_dtype_that_it_does_not_take_is_refused",
    ),
    "a format that replaces anything": (
        "format", "return bool(_described(path))", "pass\n        return True",
        "test_files_in_no_known_format_are_never_overwritten",
    ),
    "a format that lets foreign errors out": (
        "format", ", path):  #", ", path, foreign=OSError):  #", "test_what_is_left_of_its_files_is_no_foreign_error",
    ),
    "a format that follows no links": (
        "format", "os.path.realpath", "os.path.abspath", "test_a_link_to_nothing_is_followed",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project in which all recipes have been followed."""
    tree = copied(tmp_path_factory.mktemp("recipes"))
    for recipe in RECIPES.values():
        recipe.put(tree)
    return tree


@pytest.fixture
def loaded(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The module of a recipe that is followed in this process."""
    with pytest.MonkeyPatch.context() as patch:
        yield RECIPES[request.param].load(patch)


def following(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("loaded", [name], indirect=True)


def test_there_are_four() -> None:
    assert RECIPES.keys() == SUITES.keys()


@pytest.mark.parametrize("name", SUITES)
def test_a_recipe_is_a_file_a_row_and_a_test(name: str) -> None:
    recipe = RECIPES[name]
    assert len(recipe.blocks) == len(recipe.files) + len(recipe.rows)
    assert len(recipe.rows) == len(recipe.tests) == 1
    assert sum(len(block.splitlines()) for block in recipe.blocks) <= 100
    assert f"`pytest {recipe.tests[0]}`" in recipe.text
    assert max(len(line) for block in recipe.blocks for line in block.splitlines()) <= 120


def test_every_recipe_passes_its_suite(tree: Path) -> None:
    found = run(tree, [path for recipe in RECIPES.values() for path in recipe.tests], "-vv")
    assert found.returncode == 0, found.stdout + found.stderr
    for name, suites in SUITES.items():
        for test in {test for suite in suites for test in dir(suite) if test.startswith("test_")}:
            (path,) = RECIPES[name].tests
            assert re.search(rf"^{path}::\w+::{test}\b.* (PASSED|SKIPPED)", found.stdout, re.M), test


@pytest.mark.parametrize(
    "mistake", [*each(MISTAKES, 2), *(pytest.param(m, marks=pytest.mark.thorough) for m in FURTHER)]
)
def test_a_mistake_is_found(mistake: str, tree: Path) -> None:
    name, right, wrong, test = (MISTAKES | FURTHER)[mistake]
    recipe = RECIPES[name]
    recipe.put(tree, right, wrong)
    try:
        found = run(tree, recipe.tests, "-x", "-k", test)
    finally:
        recipe.put(tree)
    assert found.returncode == 1, found.stdout + found.stderr
    assert re.search(rf"^FAILED {recipe.tests[0]}::\w+::{test}", found.stdout, re.M), found.stdout
    assert f"`{test}`" in recipe.text or mistake in FURTHER


def test_libraries_that_tests_skip_for_are_installed_or_listed() -> None:
    asked = {
        name.split(".")[0]
        for path in [*(ROOT / "tests").rglob("*.py"), *(ROOT / "chunkflow" / "testing").glob("*.py")]
        for name in re.findall(r'importorskip\("([\w.]+)"', path.read_text())
    }
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    def brings(extra: str) -> list[str]:
        """What an extra installs, with the extras that it names."""
        found = re.search(r"chunkflow-stream\[(.*?)\]", " ".join(extras[extra]))
        return sum(map(brings, found[1].split(",") if found else []), extras[extra])

    brought = " ".join(brings("test")).replace("[http]", " aiohttp")
    table = PAGE.read_text().partition("\n| library |")[2].partition("\n\n")[0]
    listed = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (.*?) \|", table, re.M)))
    assert {name for name in asked if name not in brought} == set(listed)


# -- What the suites leave out ---------------------------------------------------------------------------------


@following("format")
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_run_reads_and_writes_the_format(loaded: ModuleType, order: Any, tmp_path: Path) -> None:
    x = np.asarray(np.random.default_rng(0).random((50, 60), "f4"), order=order)
    cf.map(np.negative, x, out=tmp_path / "x.raw", device="cpu", budget="1MB")
    np.testing.assert_array_equal(cf.map(np.negative, tmp_path / "x.raw", device="cpu", budget="1MB"), x)


@following("codec")
def test_a_zarr_array_is_decoded_by_the_codec(loaded: ModuleType, tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((50, 60), "f4")
    options: dict[str, Any] = {"chunks": (20, 60), "zarr_format": 2, "compressors": numcodecs.BZ2()}
    zarr.create_array(tmp_path / "x.zarr", data=x, **options)
    assert "bz2" in open_source(tmp_path / "x.zarr").spec.storage.how
    np.testing.assert_array_equal(cf.map(np.negative, tmp_path / "x.zarr", device="cpu"), -x)


@following("operation")
@everywhere
def test_the_operation_runs_everywhere(loaded: ModuleType, place: Place) -> None:
    x = np.random.default_rng(0).random((60, 50, 7))
    for axis in range(3):
        got = loaded.sum_of_squares(x, axis, device=place.device(), budget=place.budget(60_000))
        np.testing.assert_allclose(place.host(got), (x**2).sum(axis=axis))


@following("device")
def test_a_run_uses_the_device(loaded: ModuleType) -> None:
    x = np.random.default_rng(0).random((60, 50, 7))
    assert resolve("threads") is loaded.device()
    for axis in range(3):
        np.testing.assert_allclose(cf.sum(x, axis, device="threads", budget=600_000), x.sum(axis=axis))
    np.testing.assert_array_equal(cf.map(np.negative, x, device="threads", budget=600_000), -x)
