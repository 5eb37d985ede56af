"""What a user reads when something goes wrong: what happened, where, the figures, and what to do."""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr

import chunkflow as cf
from chunkflow.core import elsewhere

CPU: dict[str, Any] = {"device": "cpu"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    values = np.random.default_rng(0).random((64, 48, 32))
    np.save("a.npy", values)
    zarr.create_array("a.zarr", data=values, chunks=(16, 24, 32))
    return tmp_path


def np_sqrt(block: Any) -> Any:
    return np.sqrt(block)


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "a budget that is too small": (
        lambda: cf.mean("a.zarr", axis=0, budget="100kB", **CPU),
        r"block takes \S+ kB, .* budget is 100.00 kB .* raise budget= to at least \d+; \S+ kB of the block hold "
        r"chunks .*\. With \S+ kB \S+ blocks read .*, with \S+ kB \S+ blocks? reads? .*\. "
        r"The block is of \S+a\.zarr \(64, 48, 32\)$",
    ),
    "a keyword of another operation": (
        lambda: cf.map(np_sqrt, "a.npy", boundary="nearest", depth=1, **CPU),
        r"map has no argument boundary=, .* but chunkflow\.map_overlap has: write "
        r"chunkflow\.map_overlap\(np_sqrt, \.\.\., boundary='nearest', depth=1\), and to plan it "
        r"chunkflow\.explain\(chunkflow\.map_overlap, np_sqrt, \.\.\., boundary='nearest', depth=1\)$",
    ),
    "the same in explain": (
        lambda: cf.explain(np_sqrt, "a.npy", boundary="nearest", **CPU),
        r"chunkflow\.explain\(chunkflow\.map_overlap, np_sqrt, \.\.\., boundary='nearest'\)$",
    ),
    "a signature": (
        lambda: cf.map(np_sqrt, "a.npy", signature="(i)->()", **CPU),
        r"map has no argument signature=, .*: write chunkflow\.apply_gufunc\(np_sqrt, '\(i\)->\(\)', \.\.\.\)$",
    ),
    "a keyword of none": (
        lambda: cf.map(np_sqrt, "a.npy", foo=1, **CPU),
        r"map has no argument foo=, and neither has its function np_sqrt$",
    ),
    "an expression that is to be run at once": (
        lambda: cf.map(np_sqrt, cf.open("a.npy") + 1, out="y.zarr", budget="1MB", overwrite=True),
        r"run it, as chunkflow\.store\(map\(\.\.\.\), 'y\.zarr', budget='1MB', overwrite=True\)$",
    ),
    "one with its output in memory": (
        lambda: cf.copy(cf.open("a.npy") + 1, np.empty((64, 48, 32))),
        r"run it, as chunkflow\.store\(x, \.\.\.\)$",
    ),
    "one with chunks": (
        lambda: cf.rechunk(cf.open("a.npy") + 1, (8, -1, 8), "o.zarr", overwrite=True),
        r"run it, as chunkflow\.store\(x, 'o\.zarr', chunks=\(8, -1, 8\), overwrite=True\)$",
    ),
    "one that needs no output": (
        lambda: cf.median(cf.open("a.npy"), budget="1MB"),
        r"run it, as median\(\.\.\.\)\.compute\(budget='1MB'\)$",
    ),
    "times with other chunks": (
        lambda: cf.rechunk(cf.open(np.ones(3, "M8[s]")), 2, "o.zarr"),
        r"chunkflow\.rechunk of times is not supported, but x\.to_zarr\(path, chunks=\.\.\.\) stores them",
    ),
    "a function of dask's": (lambda: cf.from_array, r"chunkflow has no from_array: chunkflow\.open\(x\) takes arrays"),
    "a command of the shell": (lambda: cf.stats, r"no stats: .*`chunkflow stats FILE` is a command of the shell$"),
    "an attribute of dask's": (
        lambda: cf.open("a.npy").map_blocks,
        r"an expression has no map_blocks: x\.map\(fn\), or chunkflow\.map\(fn, x, y\), calls",
    ),
    "one of a masked array": (
        lambda: cf.masked_array(cf.open("a.npy"), cf.open("a.npy") > 1).to_hdf5,
        r"a masked expression has no to_hdf5: chunkflow\.store\(x, path\) writes it",
    ),
    "keywords of dask's": (
        lambda: cf.open("a.npy").compute(scheduler="threads", num_workers=3),
        r"compute got an unexpected keyword argument 'num_workers': it takes budget, .*; device= says where it is "
        r"computed, and budget= in how much memory$",
    ),
    "one of an operation": (lambda: cf.mean("a.npy", gpu=True), r"unexpected .*'gpu': .*; device= says"),
    "one beside a function": (lambda: cf.map(np_sqrt, "a.npy", meta=1), r"no argument meta=, .*; dtype= says what a"),
    "chunks of what is opened": (lambda: cf.open("a.npy", chunks=3), r"'chunks': it takes .*; blocks are planned"),
    "a labelled array in store": (
        lambda: cf.store(xr.DataArray(np.arange(3)), "y.npy"),
        r"which this DataArray is not: see chunkflow\.open and from_dask$",
    ),
    "a path to compute": (lambda: cf.compute("a.npy"), r"'a\.npy' is none: chunkflow\.open makes one of a path"),
    "nothing in an array's place": (lambda: cf.sum(None, **CPU), r"given was None: pass an array, or the path of one"),
    "arrays before the function": (lambda: cf.map("a.npy", np.sqrt), r"the function comes before the arrays"),
    "a function without return": (
        lambda: cf.map(lambda block: None, "a.npy", **CPU),
        r"returned None, as one without a return statement does",
    ),
    "another dtype than was said": (
        lambda: cf.map(np.sqrt, "a.npy", dtype="i4", **CPU),
        r"returned dtype float64; expected int32, .*: convert it in fn, by \.astype, or name its dtype in dtype=",
    ),
    "a path in explain": (lambda: cf.explain("a.npy"), r"as explain\(chunkflow\.mean, .* given was 'a\.npy'$"),
    "an array in explain": (lambda: cf.explain(np.ones((64, 64))), r"given was a ndarray$"),
    "a function that chunkflow does not have": (
        lambda: np.linalg.eig(cf.open("a.npy")),
        r"whether its results are complex depends on the values: use chunkflow\.apply_gufunc",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_refusal_names_what_was_given_and_the_way_out(what: str, folder: Path) -> None:
    call, said = REFUSED[what]
    with pytest.raises(cf.ChunkflowError, match=said):
        call()


def test_a_device_that_a_setting_names_is_said_to_be_of_the_setting(folder: Path) -> None:
    with pytest.raises(cf.errors.ArgumentError, match=r"device='gpu' \(given to set\(\)\): it must be 'auto'"):
        cf.config.set(device="gpu")
    with cf.config.set(device="cuda:99"), pytest.raises(cf.errors.DeviceError, match="the setting `device`"):
        cf.sum("a.npy")
    with pytest.raises(cf.errors.DeviceError, match="unknown device 'gpu': use"):
        cf.sum("a.npy", device="gpu")


@pytest.mark.parametrize("given", ["steps/*.h5:/u/v", "steps/*.h5", "steps/[01].nc", "steps/*.zarr", "steps/*.npy"])
def test_a_pattern_is_one_array_wherever_a_path_is(given: str, folder: Path) -> None:
    (folder / "steps").mkdir()
    for i in range(2):
        for ending in ("h5", "nc"):
            with h5py.File(folder / "steps" / f"{i}.{ending}", "w") as file:
                file["u/v"] = np.full(3, i)
        zarr.save_array(folder / "steps" / f"{i}.zarr", np.full(3, i))
        np.save(folder / "steps" / f"{i}.npy", np.full(3, i))
    assert cf.sum(given, device="cpu") == 3
    np.testing.assert_array_equal(cf.map(np.negative, given, device="cpu"), [[0] * 3, [-1] * 3])
    np.testing.assert_array_equal(cf.open(given).compute(device="cpu"), [[0] * 3, [1] * 3])
    cf.copy(given, "all.zarr", device="cpu")
    np.testing.assert_array_equal(zarr.open_array("all.zarr", mode="r")[...], [[0] * 3, [1] * 3])
    with pytest.raises(cf.errors.ArgumentError, match=r"steps/\*\.npy.*stands for many files"):
        cf.map(np.negative, given, out="steps/*.npy", device="cpu")
    with pytest.raises(cf.errors.ArgumentError, match="stands for many files"):
        cf.map(np.negative, given, out=cf.NewArray("steps/*.x", format="zarr"), device="cpu")


@pytest.mark.parametrize("lengths", [(3, 2), (3, 3, 4)])
def test_a_pattern_of_files_of_different_lengths_names_what_joins_them(lengths: Any, folder: Path) -> None:
    (folder / "steps").mkdir()
    for i, n in enumerate(lengths):
        np.save(folder / "steps" / f"{i}.npy", np.full((n, 2), i))
    with pytest.raises(cf.errors.ArgumentError, match=r"open_mfdataset\(paths, chunks={}") as caught:
        cf.open("steps/*.npy")
    with pytest.raises(cf.errors.ArgumentError, match=r"open_mfdataset\(paths, chunks={}"):
        cf.sum("steps/*.npy")
    assert f"steps/0.npy has (3, 2), steps/{len(lengths) - 1}.npy ({lengths[-1]}, 2)" in str(caught.value)
    named = re.search(r"chunkflow\.(concatenate\(\[.*)?, \.\.\.\]\)", str(caught.value))
    assert named is not None, caught.value
    found = eval(f"cf.{named[1]}])".replace("chunkflow", "cf")).compute(device="cpu")
    np.testing.assert_array_equal(found[:, 0], np.repeat([0, 1], lengths[:2]))
    np.save(folder / "steps" / "0.npy", np.ones((3, 5)))
    with pytest.raises(cf.errors.ArgumentError, match=r"Write a pattern that matches files of one shape"):
        cf.open("steps/*.npy")
    with pytest.raises(cf.errors.ArgumentError, match=r"chunkflow\.concatenate joins those"):
        cf.stack([np.ones(3), np.ones(2)])


@pytest.mark.parametrize("given", ["steps/*.h5:/u", "steps/*.zarr"])
def test_a_pattern_that_matches_none_says_so(given: str, folder: Path) -> None:
    with pytest.raises(cf.errors.SourceNotFoundError, match=r"steps/\*\.\w+: no file matches the pattern"):
        cf.open(given)


def test_a_pattern_of_tiffs_that_matches_none_says_so(folder: Path) -> None:
    with pytest.raises(cf.errors.SourceNotFoundError, match=r"frames/\*\.tif: no file matches the pattern"):
        cf.open("frames/*.tif")


def test_of_a_finished_call_that_is_to_go_on_it_is_said_that_it_has_finished(folder: Path) -> None:
    calls: tuple[Callable[[], object], ...] = (
        lambda: cf.map(np.negative, "a.npy", out="b.npy", resume=True, **CPU),
        lambda: cf.rechunk("a.npy", (4, 4, 4), out="b.zarr", resume=True, **CPU),
        lambda: cf.open("a.npy").to_zarr("c.zarr", resume=True, **CPU),
        lambda: cf.store(cf.open("a.npy") + 1, "d.h5:/x", resume=True, **CPU),
    )
    for call in calls:
        call()
        with pytest.raises(cf.errors.OutputExistsError, match="If a call with resume=True stored it, that call has"):
            call()


def test_of_a_file_that_was_cut_the_cause_is_named(folder: Path) -> None:
    Path("cut.npy").write_bytes(Path("a.npy").read_bytes()[:5000])
    with pytest.raises(cf.ReadError, match=r"holds 5000 bytes, .* was not copied or written to its end"):
        cf.sum("cut.npy", **CPU)


def test_of_a_damaged_chunk_the_command_is_named_that_finds_others(folder: Path) -> None:
    chunk = Path("a.zarr/c/1/1/0")
    chunk.write_bytes(chunk.read_bytes()[:50])
    with pytest.raises(cf.ReadError, match=r"chunk c/1/1/0: .*\. `chunkflow verify \S+a\.zarr` finds all chunks"):
        cf.sum("a.zarr", **CPU)


def test_a_missing_chunk_is_not_called_damaged(folder: Path) -> None:
    Path("a.zarr/c/1/1/0").unlink()
    with pytest.raises(cf.ReadError, match=r"chunk \(1, 1, 0\) is missing") as caught:
        cf.open("a.zarr", missing="error").sum().compute(**CPU)
    assert "damaged" not in str(caught.value)


def fails_at_the_end(block: Any, block_id: tuple[int, ...] = ()) -> Any:
    if block_id == (7, 0, 0):
        time.sleep(0.3)  # until the others are done
        raise InterruptedError
    return block


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"name": "mine"}, "differs in the function: mine then, one without name= now. Make the same call"),
        ({}, "differs in the function (fn of the operation"),
    ],
)
def test_no_digests_are_shown_of_calls_that_differ(named: dict[str, str], said: str, folder: Path) -> None:
    options: dict[str, Any] = {"out": "out.npy", "chunks": (8, -1, -1), "resume": True, **CPU}
    with pytest.raises(InterruptedError):
        cf.map(fails_at_the_end, "a.npy", **named, **options)
    with pytest.raises(cf.errors.ResumeError) as caught:
        cf.map(np.sqrt, "a.npy", **options)
    assert said in str(caught.value)
    assert not re.search("[0-9a-f]{32}", str(caught.value))


ELSEWHERE = """
chunkflow.cli.common: argparse.ArgumentTypeError(f'{error}')
    chunkflow.core.config: ArgumentError(self._unread)
    chunkflow.api.adapters: MemoryError(str(error))
    chunkflow.api.lazy.handlers: self.refusal(name)
    chunkflow.api.statistics.sort: (ArgumentTypeError if isinstance(error, TypeError) else ArgumentError)(str(error))
    chunkflow.cli.common: ArgumentError(message)
    chunkflow.engine.pipeline: watch.warn(trace)
    chunkflow.errors: kind(f'{name}: {error}')
    chunkflow.graph.evaluate: max(errors, key=lambda error: error.smallest or error.needed or 0)
    chunkflow.kernels.statistics.distinct: self.too_many(number)
    chunkflow.kernels.statistics.distinct: self.too_many(len(value[0]))
    chunkflow.kernels.statistics.groups: TooManyValuesError(number)
    chunkflow.stores.checks: TimesError(name, found)
    chunkflow.stores.kvstore.http: translated(error)
    chunkflow.stores.kvstore.http: RequestError(said, answer.status, seconds_after(answer.headers.get('Retry-After')))
    chunkflow.stores.registry: at('chunkflow.stores.advice:refusal')(path, _KINDS)
"""
"""Calls whose text is made, and listed, elsewhere, or is another's."""
WITHIN = re.compile(
    r"os\.strerror|SystemExit|AssertionError|CancelledError|MustBeStoredError|_Terminated|"
    r"settle: \w+Error\(path\)|fusion\.\w+: TypeError|nodes: TypeError\(type\(value\)\)|cuda\.device: runtime\.|"
    r"patch: UnsupportedOperation|array: NotDirectError\(type\(array\.store\)"
)
"""Calls whose errors are caught within, or say what the system says."""


@functools.cache
def messages_page() -> Any:
    path = Path(__file__).resolve().parents[1] / "docs" / "messages.py"
    spec = importlib.util.spec_from_file_location("messages_page", path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found  # for its named tuples
    spec.loader.exec_module(found)
    return found


PACKAGE = Path(cf.__file__).parent


@functools.cache
def page() -> str:
    text: str = messages_page().page(PACKAGE)
    return text.replace("\\", "")


def test_the_page_of_messages_has_all_of_them() -> None:
    elsewhere = {line.strip() for line in ELSEWHERE.strip().splitlines()}
    unknown = {call for call in messages_page().unknown(PACKAGE) if not WITHIN.search(call)}
    assert unknown == elsewhere


def test_each_class_of_errors_and_warnings_has_messages_on_the_page() -> None:
    own = [n for n, o in vars(cf.errors).items() if isinstance(o, type) and o.__module__ == "chunkflow.errors"]
    assert not [name for name in own if not name.startswith("_") and f"\n## {name}\n" not in page()]


LISTED = [
    r"the smallest block takes {smallest}, with all that is computed from it, and the budget is {budget}",
    r"{name} of a masked expression is not supported: x.filled(value) or x.compressed() gives",  # of a helper
    r"np.pad of times computes none that are not there: give another mode",  # the same, as a call has it
    r"{grid} blocks of {block}: handling them is most of the {seconds} s",  # of a property
    r"{name} took {took} in block {index}, region {box}, where its trial call let expect {expected}",  # a variable
    r"initial={initial} of {name} in {native}: {error}",  # of one of two classes
]


@pytest.mark.parametrize("text", LISTED)
def test_texts_that_are_made_in_several_places_are_listed_whole(text: str) -> None:
    assert text in page()


def test_words_of_other_libraries_are_none_of_ours() -> None:
    x = cf.open(np.ones((2, 3)))
    for name in elsewhere.FUNCTIONS:
        assert name not in cf.__all__
        with pytest.raises(AttributeError, match=f"chunkflow has no {name}: "):
            getattr(cf, name)
    for name in elsewhere.ATTRIBUTES:
        with pytest.raises(AttributeError, match=f"an expression has no {name}: "):
            getattr(x, name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        cf.nothing  # noqa: B018


def test_a_missing_path_names_what_lies_beside_it(tmp_path: Path) -> None:
    np.save(tmp_path / "speed.npy", np.ones(3))
    with pytest.raises(cf.errors.SourceNotFoundError, match=r"but beside it: 'speed\.npy'$"):
        cf.sum(tmp_path / "sped.npy", **CPU)
    with pytest.raises(cf.errors.SourceNotFoundError, match=r"other\.npy$"):
        cf.sum(tmp_path / "other.npy", **CPU)


def test_words_that_are_here_by_another_name_are_no_misspelt_keywords(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones(3))
    with pytest.raises(cf.errors.ArgumentTypeError, match=r"arrays are opened for reading") as found:
        cf.open(tmp_path / "x.npy", mode="r")  # type: ignore[call-arg]
    assert "did you mean" not in str(found.value)
    with pytest.raises(AttributeError, match="map_overlap"):
        cf.gaussian_filter  # noqa: B018


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: cf.stdev, r"did you mean std\?"),
        (lambda: cf.open("a.npy").men(), r"did you mean mean\?"),
        (lambda: cf.open("a.npy").avg(), r"chunkflow\.average"),
        (lambda: cf.open("a.npy").astype("flaot32"), r"'flaot32' is no dtype.*did you mean 'float32'"),
        (lambda: cf.zeros((3,), dtype="flaot32"), r"did you mean 'float32'"),
        (lambda: cf.sum("a.npy", dtype="flaot32"), r"did you mean 'float32'"),
        (lambda: cf.sum("a.npy", budget="-4MB"), "'-4MB' is negative"),
        (lambda: cf.sum([[1, 2], [3]]), "rows are of different lengths, 2 and 1"),
        (lambda: cf.open("a.npy").to_zarr("b.tif"), "'b.tif' ends as TIFF does.*chunkflow.store"),
        (lambda: cf.open("a.npy").to_zarr("b.h5:/u"), "ends as HDF5 does"),
        (lambda: cf.map(np.negative, cf.open("a.npy"), name="it"), r"to_zarr\(path, resume=True, name='it'\)"),
        (lambda: cf.store(cf.open("a.npy") > 1, "c.tif"), r"TIFF has no bool.*astype\('u1'\) \* 255"),
    ],
)
def test_a_slip_is_answered_with_what_was_meant(ask: Any, said: str, folder: Path) -> None:
    with pytest.raises((cf.ChunkflowError, AttributeError), match=said):
        ask()


@pytest.mark.parametrize("change", [lambda b: b.__imul__(2), lambda b: b.__setitem__(b < 1, 0)])
def test_a_function_that_writes_to_its_block_is_told_what_to_do(change: Any, folder: Path) -> None:
    with pytest.raises(ValueError, match="read-only") as caught:
        cf.map(change, "a.npy", device="cpu")
    assert any("begin with b = b.copy()" in note for note in caught.value.__notes__)


def test_a_page_in_no_folder_is_refused(folder: Path) -> None:
    with cf.Profile() as profile:
        cf.sum("a.npy", device="cpu")
    for write in (profile.html, profile.trace):
        with pytest.raises(cf.errors.WriteError, match="cannot write nowhere/run"):
            write("nowhere/run")
