"""Transforms are NumPy's to within rounding, in whatever passes. Nothing is left behind."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budgets import SLACK, traced
from support.devices import CHECKING, CPU, Place, checked, everywhere
from support.examples import examples
from support.transforms import DTYPES, close, noise, stored

import chunkflow as cf
from chunkflow.api.fourier import passes, transform
from chunkflow.errors import ArgumentError, ArgumentTypeError, BudgetError, OutputExistsError, ReadError
from chunkflow.testing import CountingSource, FailingArray, laid_out

LINES = ("fft", "ifft", "rfft", "irfft")
VOLUMES = ("fftn", "ifftn", "rfftn", "irfftn")
NORMS = (None, "backward", "ortho", "forward")
REAL = ("rfft", "rfftn")


class Chunked(CountingSource):
    """A counting source with chunks."""

    def __init__(self, array: np.ndarray, chunks: Any) -> None:
        super().__init__(array)
        self.chunks = chunks


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    name = draw(st.sampled_from(LINES + VOLUMES))
    dtype = draw(st.sampled_from([d for d in DTYPES if name not in REAL or "c" not in d]))
    if name in LINES:
        axes: Any = draw(st.integers(-len(shape), len(shape) - 1))
        found = [axes]
        lengths: Any = draw(st.one_of(st.none(), st.integers(1, 12)))
    else:
        axes = draw(st.permutations(range(len(shape))))[: draw(st.integers(1, len(shape)))]
        found = axes
        lengths = draw(st.one_of(st.none(), st.lists(st.integers(1, 12), min_size=len(axes), max_size=len(axes))))
        if lengths is None and draw(st.booleans()):
            axes, found = None, list(range(len(shape)))
    if "irfft" in name and lengths is None and shape[found[-1]] == 1:
        lengths = 4 if name in LINES else [*[shape[a] for a in found[:-1]], 4]
        axes = axes if axes is not None else found
    return {
        "name": name,
        "x": np.asarray(noise(shape, dtype), order=draw(st.sampled_from("CF"))),
        "args": (lengths, axes, draw(st.sampled_from(NORMS))),
        "chunks": draw(st.sampled_from([None, 1, 2, 4])),
        "budget": draw(st.sampled_from([40_000, 100_000, 2_000_000])),
    }


def numpys(case: dict[str, Any]) -> np.ndarray:
    x = case["x"]
    found = getattr(np.fft, case["name"])(x.astype(x.dtype.newbyteorder("=")), *case["args"])
    return np.asarray(found)


@everywhere
@settings(max_examples=examples(1 / 4))
@given(case=cases())
def test_transforms_are_numpys(case: dict[str, Any], place: Place) -> None:
    x = case["x"] if case["chunks"] is None else Chunked(case["x"], (case["chunks"],) * case["x"].ndim)
    options = {"budget": place.budget(case["budget"]), "device": place.device()}
    got = getattr(cf.fft, case["name"])(x, *case["args"], **options)
    half = case["x"].dtype == np.float16  # NumPy rounds its scale to the input's precision, CuPy does not
    close(place.host(got), numpys(case), size=1.0 if half else 0.0, rough=half)


@settings(max_examples=examples(1))
@given(case=cases(), place=st.sampled_from([CPU, *CHECKING]), kind=st.sampled_from(["zarr", "npy"]))
def test_transforms_through_the_disk_are_numpys(case: dict[str, Any], place: Place, kind: str) -> None:
    _through_the_disk(case, place, kind)


@settings(max_examples=examples(1 / 2))
@given(case=cases(), place=st.sampled_from([CPU, *CHECKING]), kind=st.sampled_from(["zarr", "npy"]))
def test_transforms_through_chunks_are_numpys(case: dict[str, Any], place: Place, kind: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(passes, "SMALL_CHUNK", 0)
        patched.setattr(transform, "available_memory", lambda: 0)
        _through_the_disk({**case, "budget": 8_000}, place, kind)


def _through_the_disk(case: dict[str, Any], place: Place, kind: str) -> None:
    expected = numpys(case)
    with tempfile.TemporaryDirectory() as folder:
        options = {"budget": case["budget"], "device": place.device(), "out": f"{folder}/y.{kind}"}
        if case["chunks"] and kind == "zarr":
            options["chunks"] = case["chunks"]
        try:
            got = getattr(cf.fft, case["name"])(case["x"], *case["args"], **options)
        except BudgetError as error:
            options["budget"] = error.smallest or 0
            got = getattr(cf.fft, case["name"])(case["x"], *case["args"], **options)
        half = case["x"].dtype == np.float16  # which NumPy scales in half precision
        close(got, expected, size=1.0 if half else 0.0, rough=half)
        assert os.listdir(folder) == [f"y.{kind}"]
        if "chunks" in options:
            assert got.chunks == tuple(min(case["chunks"], n) for n in expected.shape)


# -- Passes --------------------------------------------------------------------------------------------------

VOLUME = (48, 40, 56)


@everywhere
@pytest.mark.parametrize("name", ["fftn", "rfftn", "irfftn"])
def test_a_volume_larger_than_the_budget_takes_several_passes(name: str, place: Place) -> None:
    x = noise(VOLUME, "f4" if name == "rfftn" else "c8")
    source, device = CountingSource(x), place.device()
    budget = place.budget(150_000)
    assert len(cf.fft.plan(name, x, budget=budget, device=device).passes) >= 2 or place.is_gpu
    got = getattr(cf.fft, name)(source, budget=budget, device=device)
    close(place.host(got), getattr(np.fft, name)(x))
    assert source.bytes_read == x.nbytes


@pytest.mark.parametrize("place", [CPU, CHECKING[0]], ids=str)
@pytest.mark.parametrize("kind", ["zarr", "npy"])
@pytest.mark.parametrize("chunked", [False, True])
def test_each_pass_moves_every_byte_once(
    chunked: bool, kind: str, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if chunked:
        monkeypatch.setattr(passes, "SMALL_CHUNK", 0)
    x = noise(VOLUME, "f4")
    options = {"budget": x.nbytes, "device": place.device(), "out": tmp_path / f"y.{kind}"}
    plan = cf.fft.plan(cf.fft.rfftn, x, **options)
    assert len(plan.passes) == 2
    assert plan.on_disk
    for one, two in zip(plan.passes, plan.passes[1:], strict=False):
        assert one.bytes_written == one.result.nbytes
        assert two.bytes_read == two.source.nbytes
        assert one.result == two.source
        assert (one.result.chunks is not None) is chunked
    close(cf.fft.rfftn(x, **options), np.fft.rfftn(x))
    assert len(str(plan).splitlines()) == 4
    assert os.listdir(tmp_path) == [f"y.{kind}"]


def test_as_few_passes_as_the_budget_allows() -> None:
    x = CountingSource(np.zeros((8, 100, 100, 8), "c8"))

    def axes(budget: int) -> list[Any]:
        return [p.axes for p in cf.fft.plan("fftn", x, budget=budget, device="cpu").passes]

    assert axes(100_000_000) == [(0, 1, 2, 3)]
    assert sorted(a for some in axes(60_000) for a in some) == [0, 1, 2, 3]
    assert len(axes(60_000)) == 2  # 8 x 100 at a time, whichever way they lie
    assert len(axes(20_000)) > 2
    assert x.bytes_read == 0


def test_a_real_transform_is_the_first_pass_and_its_inverse_the_last() -> None:
    x = np.zeros((40, 40, 40), "f4")
    first = cf.fft.plan("rfftn", x, axes=(2, 1, 0), budget=60_000, device="cpu").passes
    last = cf.fft.plan("irfftn", x, axes=(2, 1, 0), budget=60_000, device="cpu").passes
    assert len(first) > 1 < len(last)
    assert first[0].steps[0].name == "rfft"
    assert first[0].steps[0].axis == 0
    assert last[-1].steps[-1].name == "irfft"
    assert last[-1].steps[-1].axis == 0


def test_planes_of_a_stack_are_transformed_in_one_pass() -> None:
    x = noise((50, 20, 24), "f8")
    source = CountingSource(x)
    plan = cf.fft.plan("fftn", source, axes=(1, 2), budget=300_000, device="cpu")
    assert [p.axes for p in plan.passes] == [(1, 2)]
    assert plan.passes[0].block[0] < 50
    close(cf.fft.fftn(source, axes=(1, 2), budget=300_000, device="cpu"), np.fft.fftn(x, axes=(1, 2)))
    assert source.bytes_read == x.nbytes


@checked
def test_the_smallest_budget_that_is_named_will_do(place: Place, tmp_path: Path) -> None:
    x = noise((30, 4000), "f4")
    for out in (None, tmp_path / f"{place}.zarr"):
        with pytest.raises(BudgetError) as caught:
            cf.fft.fftn(x, budget=20_000, device=place.device(), out=out)
        assert caught.value.smallest is not None
        assert caught.value.smallest > 4000 * 8
        assert "line along axis 1" in str(caught.value)
        got = cf.fft.fftn(x, budget=caught.value.smallest, device=place.device(), out=out)
        close(got, np.fft.fftn(x))


@pytest.mark.parametrize(
    ("kind", "kilobytes"),
    [
        ("zarr", 300),
        *(pytest.param(*much, marks=pytest.mark.thorough) for much in (("npy", 300), ("memory", 300))),
        ("npy", 1000),
        ("zarr", 8000),
        ("memory", 8000),
    ],
)
def test_what_is_allocated_stays_within_the_budget(kind: str, kilobytes: int, tmp_path: Path) -> None:
    x = noise((128, 96, 64), "f4")
    np.save(tmp_path / "x.npy", x)
    budget = kilobytes * 1000

    def run(number: int) -> Any:
        out = np.empty((128, 96, 33), "c8") if kind == "memory" else tmp_path / f"{number}.{kind}"
        gc.collect()
        with cf.Budget(budget) as shared, traced() as peak:
            got = cf.fft.rfftn(tmp_path / "x.npy", out=out, device="cpu")
            return got, peak(), shared.peak

    run(0)  # imports
    got, measured, peak = run(1)
    close(got, np.fft.rfftn(x))
    between = 128 * 96 * 33 * 8 if kind == "memory" else 0  # what lies between is the host's affair
    assert measured - between <= budget + SLACK
    assert 0 < peak <= budget


@pytest.mark.parametrize("place", [p for p in CHECKING if p.staged], ids=str)
def test_pools_keep_the_budget(place: Place) -> None:
    x, device = noise((64, 32, 40), "c8"), place.device()
    for size in (200_000, 600_000):
        with cf.Budget(size) as budget:
            close(cf.fft.fftn(x, device=device), np.fft.fftn(x))
        assert 0 < budget.peak <= size


# -- Sources, sinks, failures --------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [CPU, CHECKING[0]], ids=str)
@pytest.mark.parametrize("sink", ["zarr", "npy", "memmap", "array", "none", "group"])
@pytest.mark.parametrize("source", ["zarr", "npy", "memmap", "array"])
def test_any_source_and_any_sink(source: str, sink: str, place: Place, tmp_path: Path) -> None:
    x = noise((32, 24, 40), "f4")
    expected = np.fft.rfftn(x)
    out: Any = {"zarr": tmp_path / "y.zarr", "npy": tmp_path / "y.npy", "group": tmp_path / "g.zarr/y"}.get(sink)
    if sink == "memmap":
        out = np.lib.format.open_memmap(tmp_path / "m.npy", "w+", "c16", expected.shape)
        expected = expected.astype("c16")
    elif sink == "array":
        out = laid_out(expected.shape, "c8", "strided")
    given_source = stored(x, source, tmp_path)
    before = set(os.listdir(tmp_path)) | {"y.zarr", "y.npy", "g.zarr"}
    got = cf.fft.rfftn(given_source, out=out, budget=120_000, device=place.device())
    assert np.abs(np.asarray(got[...]) - expected).max() <= 1e-5 * np.abs(expected).max()
    assert got.shape == expected.shape
    assert set(os.listdir(tmp_path)) <= before


def test_the_smallest_budget_is_right_where_the_output_takes_the_array_between(tmp_path: Path) -> None:
    x = cf.fft.fftn(cf.open(noise((2, 2, 8), "f8")))
    out = np.lib.format.open_memmap(tmp_path / "y.npy", "w+", "c16", x.shape)
    with pytest.raises(cf.BudgetError) as refused:
        cf.store(x, out, budget=1, device="cpu")
    cf.store(x, out, budget=refused.value.smallest, device="cpu")
    close(np.load(tmp_path / "y.npy"), np.asarray(x))


def test_in_place() -> None:
    x = noise((40, 30), "c16")
    expected = np.fft.fftn(x)
    assert cf.fft.fftn(x, out=x, budget=30_000, device="cpu") is x
    close(x, expected)


def test_chunks_and_existing_outputs(tmp_path: Path) -> None:
    x = noise((40, 30), "f8")
    out = tmp_path / "y.zarr"
    y = cf.fft.rfftn(x, out=out, chunks=(7, 4), budget=40_000, device="cpu")
    assert y.chunks == (7, 4)
    close(y, np.fft.rfftn(x))
    with pytest.raises(OutputExistsError):
        cf.fft.rfftn(x, out=out, budget=40_000, device="cpu")
    close(cf.fft.ifft(x, out=out, budget=40_000, device="cpu", overwrite=True), np.fft.ifft(x))
    close(cf.fft.fft(x, out=zarr.open_array(out), budget=60_000, device="cpu"), np.fft.fft(x))


@pytest.mark.parametrize("sink", ["npy", "zarr", "array"])
@pytest.mark.parametrize("after", [0, 3])
def test_failures_leave_nothing_behind(after: int, sink: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(transform, "available_memory", lambda: 0)
    x = noise((32, 24, 40), "f4")
    out = laid_out((32, 24, 21), "c8", "C") if sink == "array" else tmp_path / f"y.{sink}"
    options: dict[str, Any] = {"budget": 200_000, "device": "cpu", "out": out}
    assert cf.fft.plan("rfftn", x, **options).on_disk == (sink != "array")  # an array takes what lies between, too
    with pytest.raises(ReadError):
        cf.fft.rfftn(FailingArray(x, after=after), **options)
    assert os.listdir(tmp_path) == []
    with monkeypatch.context() as patched:
        original, calls = transform.execute, []

        def second(request: Any) -> Any:
            calls.append([name for name in os.listdir(tmp_path) if not name.endswith(".claim")])
            if len(calls) == 2:
                raise KeyboardInterrupt
            return original(request)

        patched.setattr(transform, "execute", second)
        with pytest.raises(KeyboardInterrupt):
            cf.fft.rfftn(x, **options)
    assert len(calls[1]) == (sink != "array")  # what lies between
    assert os.listdir(tmp_path) == []
    close(cf.fft.rfftn(x, **options), np.fft.rfftn(x))
    assert len(os.listdir(tmp_path)) == (0 if sink == "array" else 1)


def test_what_a_pass_has_read_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transform, "available_memory", lambda: 0)
    x, original, between = noise((24, 24, 24), "c8"), transform.execute, []

    def noted(request: Any) -> Any:
        between.append(sorted(path.name for path in tmp_path.glob("*/*") if path.parent.suffix != ".zarr"))
        return original(request)

    monkeypatch.setattr(transform, "execute", noted)
    got = cf.fft.fftn(x, out=tmp_path / "y.zarr", budget=20_000, device="cpu")
    assert between == [["0"], ["0", "1"], ["1"]]
    close(got, np.fft.fftn(x))


def test_what_lies_between_stays_in_memory_only_if_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.zeros((40, 40, 40), "c8")
    assert not cf.fft.plan("fftn", x, budget=100_000, device="cpu").on_disk
    monkeypatch.setattr(transform, "available_memory", lambda: 4 * x.nbytes)
    assert cf.fft.plan("fftn", x, budget=100_000, device="cpu").on_disk


# -- What is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "args", "error", "words"),
    [
        ("fft", (0,), ArgumentError, "0 points along axis 1"),
        ("fft", (-1,), ArgumentError, "-1 points"),
        ("fft", (2.5,), ArgumentTypeError, "n must be an int, not 2.5"),
        ("fft", (None, 2), ArgumentError, "axis=2 is out of bounds for 2"),
        ("fft", (None, True), ArgumentTypeError, "axis must be an int"),
        ("fft", (None, -1, "Ortho"), ArgumentError, "norm='Ortho'.*'forward'"),
        ("fft", (None, -1, 3), ArgumentError, "norm=3"),
        ("fftn", ((4, 0),), ArgumentError, "0 points along axis 1"),
        ("fftn", ((4, 4, 4),), ArgumentError, "3 lengths and the array 2"),
        ("fftn", ((4, 4), (0,)), ArgumentError, "2 lengths for 1"),
        ("fftn", (4,), ArgumentTypeError, "sequence"),
        ("fftn", (None, (0, -2)), ArgumentError, "twice"),
        ("fftn", (None, ()), ArgumentError, "no axis"),
        ("fftn", (None, 1), ArgumentTypeError, "axes must be a sequence"),
        ("irfftn", (None, (0, 1), "x"), ArgumentError, "norm='x'"),
    ],
)
def test_bad_arguments_are_refused_before_a_byte_is_read(name: str, args: Any, error: Any, words: str) -> None:
    source = CountingSource(np.zeros((6, 4)))
    with pytest.raises(error, match=words):
        getattr(cf.fft, name)(source, *args, device="cpu")
    assert source.bytes_read == 0


@pytest.mark.parametrize("name", REAL)
def test_complex_numbers_are_no_input_of_a_real_transform(name: str) -> None:
    with pytest.raises(ArgumentTypeError, match="complex64: use fft"):
        getattr(cf.fft, name)(np.zeros((6, 4), "c8"), device="cpu")


def test_outputs_that_do_not_fit_are_refused_before_a_byte_is_read() -> None:
    source = CountingSource(np.zeros((6, 4)))
    with pytest.raises(ArgumentError, match=r"\(6, 3\)"):
        cf.fft.rfft(source, out=np.empty((6, 4), "c16"), device="cpu")
    with pytest.raises(ArgumentTypeError):
        cf.fft.rfft(source, out=np.empty((6, 3)), device="cpu")
    with pytest.raises(ArgumentTypeError, match="one array or path"):
        cf.fft.rfft(source, out=(np.empty((6, 3), "c16"),), device="cpu")
    assert len(cf.fft.plan("rfftn", source, device="cpu").passes) == 1
    assert len(cf.explain(cf.fft.rfftn, np.zeros((6, 4)), device="cpu").passes) == 1, "it tries a block"
    with pytest.raises(ArgumentError, match="transform='fft2'"):
        cf.fft.plan("fft2", source)
    assert source.bytes_read == 0


def test_empty_arrays() -> None:
    with pytest.raises(ArgumentError, match="0 points"):
        cf.fft.fft(np.zeros(0), device="cpu")
    with pytest.raises(ArgumentError, match="no element"):
        cf.fft.fft(np.zeros((3, 0)), 4, device="cpu")
    with pytest.raises(ArgumentError, match="no axis"):
        cf.fft.fftn(np.zeros(()), device="cpu")
    for name in LINES:
        close(getattr(cf.fft, name)(np.zeros((0, 4)), device="cpu"), getattr(np.fft, name)(np.zeros((0, 4))))


def test_half_precision_is_transformed_in_single_precision() -> None:
    """NumPy scales the first axis in half precision; passes may begin with another one."""
    x = noise((2, 4, 3), "f2")
    exact = np.fft.irfftn(x.astype("f4"), s=[2, 5, 2], axes=(0, 1, 2), norm="ortho")
    for budget in ("1GB", 1500):
        got = cf.fft.irfftn(cf.open(x), s=[2, 5, 2], axes=(0, 1, 2), norm="ortho").compute(device="cpu", budget=budget)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-6)
