"""Where sources and outputs lie: what an output may overlap, and what a source is by the time that it is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st
from support.devices import same

import chunkflow as cf
from chunkflow.api.labels import wrapped
from chunkflow.errors import ArgumentError, ChunkflowError, ReadError
from chunkflow.testing import CountingSource, filled

# -- Outputs that lie where sources do -------------------------------------------------------------------------------

SHAPE = (40, 50)


def opened(kind: str, folder: Path) -> tuple[Any, Any]:
    """A source, and an output that is the same array."""
    x = filled(SHAPE, "f8")
    if kind == "memory":
        return x, x
    if kind in ("memmap", "path and memmap"):
        np.save(folder / "x.npy", x)
        out = np.load(folder / "x.npy", mmap_mode="r+")
        return out if kind == "memmap" else folder / "x.npy", out
    if kind in ("hdf5", "chunked hdf5"):
        out = h5py.File(folder / "x.h5", "w").create_dataset(
            "u", data=x, chunks=(10, 50) if "chunked" in kind else None
        )
        return out, out
    out = zarr.create_array(folder / "x.zarr", data=x, chunks=(10, 50))
    return out if kind == "zarr" else folder / "x.zarr", out


KINDS = ["memory", "memmap", "path and memmap", "zarr", "path and zarr", "hdf5", "chunked hdf5"]

MOVED: dict[str, Callable[[Any], Any]] = {
    "concatenated": lambda x: np.concatenate([x[20:], x[:20]]),
    "computed of what is concatenated": lambda x: np.concatenate([x[20:], x[:20]]) * 2 + 1,
    "beside what is concatenated": lambda x: x + np.concatenate([x[20:], x[:20]]),
    "a slice of what is concatenated": lambda x: np.concatenate([x, x])[20:60],
    "with another": lambda x: np.concatenate([cf.open(np.zeros((20, 50))), x[:20]]),
    "concatenated and flipped": lambda x: np.flip(np.concatenate([x[20:], x[:20]]), 1),
    "flipped": lambda x: np.flip(x, 0),
    "a slice": lambda x: x[::-1],
    "summed up": lambda x: np.cumsum(np.concatenate([x[20:], x[:20]]), axis=0),
}


@pytest.mark.parametrize("budget", [20_000, None])
@pytest.mark.parametrize("how", MOVED)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_put_together_of_an_output_is_refused(kind: str, how: str, budget: int | None, tmp_path: Path) -> None:
    source, out = opened(kind, tmp_path)
    with pytest.raises(ArgumentError, match=r"overlaps the input .*Write to another array"):
        cf.store(MOVED[how](cf.open(source)), out, budget=budget, device="cpu")
    same(out[...], filled(SHAPE, "f8"))


@pytest.mark.parametrize("budget", [20_000, None])
def test_what_is_stacked_of_an_output_is_refused(budget: int | None) -> None:
    array = filled(SHAPE, "f8")
    x = cf.open(array)
    with pytest.raises(ArgumentError, match="overlaps the input"):
        cf.store(np.stack([x[20:], x[:20]]), array.reshape(2, 20, 50), budget=budget, device="cpu")
    same(array, filled(SHAPE, "f8"))


def test_it_is_refused_before_anything_is_read() -> None:
    array = np.zeros(SHAPE)
    counting = CountingSource(np.zeros(SHAPE))
    x = cf.open(array)
    with pytest.raises(ArgumentError, match="overlaps the input"):
        cf.store(cf.open(counting) + np.concatenate([x[20:], x[:20]]), array, device="cpu")
    assert counting.bytes_read == 0


ROWS = 200
pieces = st.builds(
    lambda ends, step: slice(*sorted(ends), step) if step > 0 else slice(max(ends), min(ends), step),
    st.tuples(st.integers(0, ROWS - 1), st.integers(0, ROWS - 1)),
    st.sampled_from([1, 2, -1]),
)


@given(
    parts=st.lists(pieces, min_size=1, max_size=3),
    start=st.integers(0, ROWS - 1),
    step=st.sampled_from([1, 2]),
    budget=st.sampled_from([5000, None]),
)
def test_a_result_is_numpys_or_it_is_refused(parts: list[slice], start: int, step: int, budget: int | None) -> None:
    array = np.arange(ROWS * 5.0).reshape(ROWS, 5)
    x = cf.open(array)
    lazy, expected = (
        np.concatenate([x[part] for part in parts]) * 3,
        np.concatenate([array[part] for part in parts]) * 3,
    )
    out = array[start::step]
    n = min(len(out), len(expected))
    out, wanted = out[:n], array.copy()
    wanted[start::step][:n] = expected[:n]
    apart = not any(np.shares_memory(array[part], out) for part in parts)
    if apart or not n:
        cf.store(lazy[:n], out, budget=budget, device="cpu")
        same(array, wanted)
        return
    try:
        cf.store(lazy[:n], out, budget=budget, device="cpu")
    except ArgumentError:
        same(array, np.arange(ROWS * 5.0).reshape(ROWS, 5))
    else:
        same(array, wanted)


def test_parts_of_an_array_that_are_apart_are_no_overlap() -> None:
    array = filled((40, 5), "f8")
    expected = array.copy()
    x = cf.open(array)
    cf.store(np.concatenate([x[:10], x[30:]]) * 2, array[10:30], budget=2000, device="cpu")
    expected[10:30] = np.concatenate([expected[:10], expected[30:]]) * 2
    same(array, expected)
    cf.store(x[::2] * 2, array[1::2], budget=2000, device="cpu")
    expected[1::2] = expected[::2] * 2
    same(array, expected)
    cf.store(x[5:15] * 2, array[5:15], budget=2000, device="cpu")  # the very same elements
    expected[5:15] *= 2
    same(array, expected)


@pytest.mark.parametrize("kind", ["xarray's", "ours", "ours of hdf5"])
def test_what_xarray_holds_of_an_output_is_refused(kind: str, tmp_path: Path) -> None:
    x = filled(SHAPE, "f8")
    if kind == "ours of hdf5":
        out = h5py.File(tmp_path / "x.h5", "w").create_dataset("u", data=x, chunks=(10, 50))
    else:
        xr.Dataset({"u": (("a", "b"), x)}).to_zarr(tmp_path / "x.zarr", consolidated=False)
        out = zarr.open_array(tmp_path / "x.zarr" / "u", mode="r+")
    if kind == "xarray's":
        held = xr.open_zarr(tmp_path / "x.zarr", chunks=None, consolidated=False).u
    else:
        held = wrapped(out, ("a", "b"), (), [xr.DataArray(x, dims=("a", "b"))], xr.DataArray(x).coords)
    for one in (held, held[::-1], held.transpose("b", "a").transpose("a", "b")):
        with pytest.raises(ArgumentError, match="overlaps the input"):
            cf.flip(one, 0, out=out, device="cpu")
        with pytest.raises(ArgumentError, match="overlaps the input"):
            cf.store(np.roll(cf.open(one).data, 3, 0), out, device="cpu")
    same(out[...], x)


@pytest.mark.parametrize("kind", KINDS)
def test_what_replaces_a_source_that_a_later_pass_reads_is_refused(kind: str, tmp_path: Path) -> None:
    """However the source was opened: under its own name is another array by then."""
    source, out = opened(kind, tmp_path)
    x = cf.open(source)
    path = {"m": "x.npy", "z": "x.zarr", "h": "x.h5:/u"}[kind.split()[-1].removeprefix("chunked ")[0]]
    if kind == "memory":
        np.save(tmp_path / path, out)
        x = cf.open(tmp_path / path)
    asked = [x * 2, x - x.mean()], [f"{tmp_path}/{path}", tmp_path / "y.npy"]
    with pytest.raises(ArgumentError, match="a later pass reads again"):
        cf.store(*asked, device="cpu", overwrite=True)
    same(np.asarray(out[...]), filled(SHAPE, "f8"))
    assert not (tmp_path / "y.npy").exists()


def test_all_arrays_of_an_iteration_are_seen() -> None:
    x, y, out = cf.open(np.arange(8.0)), np.ones(8), np.empty(8)
    z = x.map_overlap(np.add, y, depth=0, iterations=3)
    with pytest.raises(ArgumentError, match="a later pass reads again"):
        cf.store([x * 7, z], [y, out], device="cpu")
    same(y, np.ones(8))
    same(z.compute(device="cpu"), np.arange(8.0) + 3)


# -- Outputs that lie in one another ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("m.zarr/sub", "m.zarr"),
        ("m.zarr/a/b/c", "m.zarr/a"),
        ("m.h5:/a/b", "m.h5:/a"),
        ("m.h5", "m.h5:/data/u"),
        ("m.zarr", "./m.zarr/"),
        ("m.h5", "m.h5:data"),
        ("memory://places/m.zarr/sub", "memory://places/m.zarr"),
    ],
)
@pytest.mark.parametrize("way", ["store", "map"])
def test_an_output_within_another_is_refused(
    one: str, other: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = CountingSource(np.zeros(6))
    x = cf.open(source)

    def run(outs: tuple[str, str]) -> None:
        if way == "store":
            cf.store([x + 1, x * 2], outs, device="cpu")
        else:
            cf.map(lambda x: (x, x), source, out=outs, device="cpu", dtype=("f8", "f8"), workspace=0)

    for outs in ((one, other), (other, one)):
        with pytest.raises(ArgumentError, match=r"m\.(zarr|h5).*own place|same path twice.*m\.(zarr|h5)"):
            run(outs)
    assert source.bytes_read == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("turned", [False, True])
def test_an_output_in_the_file_that_another_replaces_is_refused(turned: bool, tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.zeros(6))
    outs = [tmp_path / "y.npy", np.load(tmp_path / "y.npy", mmap_mode="r+")]
    x = cf.open(np.arange(6.0))
    with pytest.raises(ArgumentError, match=r"overlap: give each its own place"):
        cf.store([x + 1, x * 2], outs[::-1] if turned else outs, overwrite=True, device="cpu")
    same(np.load(tmp_path / "y.npy"), np.zeros(6))


def test_outputs_beside_one_another_are_written(tmp_path: Path) -> None:
    x = cf.open(np.arange(6.0))
    one, other, third = cf.store(
        [x, x * 2, x * 3], [tmp_path / "m.zarr/u", tmp_path / "m.zarr/u2", tmp_path / "m.zarr2.npy"], device="cpu"
    )
    same(np.stack([one[...], other[...], third[...]]), np.arange(6.0) * [[1], [2], [3]])


# -- Sources that are told apart, and found from anywhere -------------------------------------------------------------


def test_scalars_are_not_taken_for_one_another() -> None:
    one, two = cf.open(np.float64(1.0)), cf.open(np.float64(2.0))
    assert (one + two).compute(device="cpu") == 3
    many = [cf.open(np.float64(i)) for i in range(50)]
    assert sum(many[1:], many[0]).compute(device="cpu") == sum(range(50))


def test_tasks_of_other_arrays_are_not_taken_for_one_another(tmp_path: Path) -> None:
    """A mapped array may be gone when its tasks run, and another one have its id."""
    dask = pytest.importorskip("dask")
    for i in range(20):
        np.save(tmp_path / f"{i}.npy", np.full(10, float(i)))
    sums = [cf.open(np.load(tmp_path / f"{i}.npy", mmap_mode="r")).sum().to_dask(device="cpu") for i in range(20)]
    assert [float(s) for s in dask.compute(*sums, scheduler="sync")] == [10.0 * i for i in range(20)]


def test_an_array_that_is_opened_twice_is_read_once() -> None:
    source = CountingSource(np.arange(6.0))
    sums = cf.open(source).sum() + cf.open(source).max()
    source.bytes_read = 0
    assert sums.compute(device="cpu") == 20
    assert source.bytes_read <= 2 * 48  # it, and as much in a trial call


def written(path: str, x: np.ndarray) -> str:
    """Write an array, and give the path that opens it."""
    if path.endswith(".npy"):
        np.save(path, x)
    elif ".h5" in path:
        with h5py.File(path.partition(":")[0], "w") as file:
            file["group/data"] = x
    else:
        zarr.create_array(path.partition("/")[0], name=path.partition("/")[2] or None, data=x, overwrite=True)
    return path


PATHS = ["u.npy", "u.zarr", "u.zarr/v", "u.h5", "u.h5:/group/data", "file://u.npy"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", [str, Path])
def test_a_relative_path_means_what_it_meant_when_it_was_opened(
    path: str, kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind is Path and "://" in path:
        pytest.skip("a Path has no scheme")
    found = []
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        written(path.removeprefix("file://"), np.full(5, float(number)))
        x = cf.open(kind(path))
        found.append((x, cf.map(np.add, cf.open(np.arange(5.0)), kind(path)), x[::2], np.concatenate([x, x])))
    monkeypatch.chdir(tmp_path)
    for one, two in zip(*found, strict=True):
        same((two - one).compute(device="cpu"), np.ones(one.shape))


def test_the_same_path_is_another_array_in_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, sums, steps = cf.open(np.arange(5.0)), [], []
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        np.save("u.npy", np.full(5, float(number)))
        sums.append(cf.map(np.add, x, "u.npy"))
        steps.append(cf.map_overlap(np.add, x, "u.npy", depth=0, iterations=2))
    monkeypatch.chdir(tmp_path)
    same((sums[1] - sums[0]).compute(device="cpu"), np.ones(5))
    same((steps[1] - steps[0]).compute(device="cpu"), np.full(5, 2.0))


def test_one_source_by_several_names_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("u.npy", "u.zarr", "u.h5:/group/data"):
        written(path, np.arange(6.0))
        (tmp_path / f"link-{path.partition(':')[0]}").symlink_to(path.partition(":")[0])
        x, y, z = (cf.open(p) for p in (path, Path(f"../{tmp_path.name}/{path}"), f"link-{path}"))
        assert cf.explain(x + y + z, device="cpu").bytes_in == 48


# -- Sources that change ----------------------------------------------------------------------------------------------

USES: dict[str, Callable[[Any], Any]] = {
    "itself": lambda x: x,
    "computed": lambda x: x * 2,
    "summed": lambda x: x.sum(),
    "sliced": lambda x: x[::3, 1:],
    "put together": lambda x: np.concatenate([x, x]),
    "in passes": lambda x: x - x.mean(),
    "transformed": lambda x: np.fft.fft(x, axis=0),
    "median": lambda x: np.median(x),
    "iterated": lambda x: x.map_overlap(np.copy, depth=1, boundary=0, iterations=2, dtype="f8"),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("path", ["u.npy", "u.zarr", "u.h5:/group/data"])
@pytest.mark.parametrize(("shape", "dtype"), [((12, 20), "f8"), ((40, 20), "f8"), ((20, 30), "f8"), ((30, 20), "f4")])
def test_a_source_that_has_changed_is_refused(
    path: str, use: str, shape: tuple[int, int], dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    x = cf.open(written(path, np.ones((30, 20))))
    y = USES[use](x)
    written(path, np.ones(shape, dtype))
    with pytest.raises(ReadError, match="has changed since it was opened") as caught:
        y.compute(device="cpu")
    for told in ("(30, 20)", str(shape), "float64", str(np.dtype(dtype)), "Open it again"):
        assert told in str(caught.value)


def test_a_resized_zarr_array_is_refused(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "u.zarr", shape=(300, 200), chunks=(50, 200), dtype="f8", fill_value=0)
    array[...] = 1
    sums = [cf.open(source).sum() for source in (array, tmp_path / "u.zarr")]
    out = np.zeros(())
    array.resize((120, 200))
    for one in sums:
        with pytest.raises(ReadError, match=r"\(300, 200\).*\(120, 200\)"):
            one.compute(device="cpu")
        with pytest.raises(ReadError, match="has changed"):
            cf.store(one, out, device="cpu")
        with pytest.raises(ReadError, match="has changed"):
            cf.explain(one, device="cpu")
    assert not out


def test_an_array_that_was_given_another_shape_is_refused() -> None:
    array = np.zeros((4, 6))
    y = cf.open(array) + 1
    array.resize((6, 4), refcheck=False)
    with pytest.raises(ReadError, match="has changed"):
        y.compute(device="cpu")


def test_the_same_shape_and_dtype_may_be_written_anew(tmp_path: Path) -> None:
    for order in "<>":
        np.save(tmp_path / "u.npy", np.zeros(5, f"{order}f8"))
        x = cf.open(tmp_path / "u.npy")
        np.save(tmp_path / "u.npy", np.ones(5))
        same((x + 1).compute(device="cpu"), np.full(5, 2.0))


def test_tasks_refuse_a_source_that_has_changed(tmp_path: Path) -> None:
    dask = pytest.importorskip("dask")
    np.save(tmp_path / "u.npy", np.zeros(50))
    total = cf.open(tmp_path / "u.npy").sum().to_dask(device="cpu")
    np.save(tmp_path / "u.npy", np.zeros(40))
    with pytest.raises(ReadError, match="has changed"):
        dask.compute(total, scheduler="sync")


@pytest.mark.parametrize("budget", [20_000, 200_000, "1GB"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    ("ours", "numpys"),
    [
        (lambda x: x - x.mean(), lambda x: x - x.mean()),
        (lambda x: np.cumsum(x, axis=0), lambda x: np.cumsum(x, axis=0)),
        (lambda x: cf.median(x, axis=0), lambda x: np.median(x, axis=0)),
        (lambda x: cf.map(lambda b: b.max(axis=0), x * 3, drop_axis=0), lambda x: (x * 3).max(axis=0)),
    ],
    ids=["mean", "cumsum", "median", "max"],
)
def test_what_a_later_pass_can_compute_is_not_taken_from_a_narrower_output(
    ours: Any, numpys: Any, dtype: str, budget: Any, tmp_path: Path
) -> None:
    a, first = np.random.default_rng(0).random((20, 30, 40)), np.zeros((20, 30, 40), dtype)
    x = np.negative(cf.open(a))
    found = cf.store([x, ours(x)], [first, tmp_path / "y.npy"], device="cpu", budget=budget)
    np.testing.assert_array_equal(first, (-a).astype(dtype))
    assert found[0] is first
    assert found[1].dtype == np.float64
    np.testing.assert_allclose(found[1], numpys(-a), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("dtype", ["i2", "f4", "f8"])
def test_what_a_later_pass_needs_is_not_taken_from_a_narrower_output(dtype: str) -> None:
    a = np.full((60, 6), 100 if dtype == "i2" else 1000.1)
    y = np.cumsum(cf.open(a.astype(int) if dtype == "i2" else a), axis=0)
    z, out, other = y - y.min(axis=0), np.zeros(a.shape, dtype), np.zeros(a.shape)
    if dtype == "f8":
        cf.store([y, z], [out, other], device="cpu")
        c = np.cumsum(a, axis=0)
        np.testing.assert_array_equal(out, c)
        np.testing.assert_array_equal(other, c - c.min(axis=0))
        return
    with pytest.raises(
        ArgumentError, match=f"has dtype {out.dtype}, and a later pass reads cumsum.*store it by a call of its own"
    ):
        cf.store([y, z], [out, other], device="cpu")
    assert not out.any()
    assert not other.any()
    cf.store(y, out, device="cpu")
    assert out.any()


@pytest.mark.parametrize("dtype", ["f8", "c16", "i4"])
def test_what_a_later_pass_needs_is_not_taken_from_an_output_of_another_dtype(dtype: str) -> None:
    y = np.cumsum(cf.open(np.array([2**53 + 1, 2**60 + 7])))
    with pytest.raises(ArgumentError, match=r"a later pass reads .*: give an output of dtype int64"):
        cf.store([y, y.sum()], [np.zeros(2, dtype), np.zeros((), "i8")], device="cpu")


@pytest.mark.parametrize("kind", ["zarr", "npy", "h5", "dataset", "memory"])
def test_a_stored_result_is_taken_in_another_shape(kind: str, tmp_path: Path) -> None:
    a = np.random.default_rng(0).integers(-9, 9, (4, 5, 6))
    y, wanted = cf.topk(cf.open(a), -3, axis=2), np.sort(a, axis=2)[..., :3]
    with h5py.File(tmp_path / "d.h5", "w") as file:
        outs: dict[str, Any] = {
            "dataset": file.create_dataset("d", wanted.shape, "i8", chunks=(2, 2, 2)),
            "memory": np.zeros(wanted.shape, "i8", order="F"),
        }
        out = outs.get(kind, tmp_path / f"y.{kind}")
        found = cf.store([y, y.reshape(10, -1), y.ravel().max()], [out, tmp_path / "r.zarr", None], device="cpu")
        for got, right in zip(found, (wanted, wanted.reshape(10, -1), wanted.max()), strict=True):
            np.testing.assert_array_equal(got[()] if hasattr(got, "shape") else got, right)


CHUNKED: list[tuple[Callable[[Any], Any], tuple[int, ...], tuple[int, ...]]] = [
    (lambda x: x.reshape(-1), (5,), (5,)),
    (np.cumsum, (7,), (7,)),
    (np.cov, (1, 3), (1, 3)),
    (lambda x: x.max(axis=0), (4,), (4,)),
    (lambda x: x.T * 2, (2, -1), (2, 4)),
    (lambda x: np.cumsum(x - x.mean(), axis=1), (3, 2), (3, 2)),
]


@pytest.mark.parametrize(("make", "asked", "chunks"), CHUNKED)
def test_any_result_is_stored_in_the_chunks_asked_for(make: Any, asked: Any, chunks: Any, tmp_path: Path) -> None:
    a = np.arange(24.0).reshape(4, 6)
    for number, budget in enumerate((None, 5000)):
        path = tmp_path / f"{number}.zarr"
        found = make(cf.open(a)).to_zarr(path, chunks=asked, budget=budget, device="cpu")
        assert found.chunks == chunks
        np.testing.assert_allclose(zarr.open_array(path)[...], make(a))


def test_chunks_that_do_not_suit_a_result_are_refused(tmp_path: Path) -> None:
    x = cf.open(np.arange(24.0).reshape(4, 6))
    for y, chunks, why in (
        (x.max(axis=0), (1, 2), "2 entries and the result has 1"),
        (x.max(axis=0), (0,), "at least one element"),
        (np.median(x, axis=0), (2,), "several passes of its own"),
    ):
        with pytest.raises(ChunkflowError, match=why):
            cf.store(y, tmp_path / "y.zarr", chunks=chunks)


def test_passes_that_one_operation_makes_are_explained() -> None:
    """What it takes, and what a run shows beside it."""
    x = cf.open(np.random.default_rng(0).random((40, 30, 20)))
    (plan,) = cf.explain(np.nanquantile(x, [0.1, 0.9], axis=0), budget="200kB", device="cpu").plans
    assert plan.bytes_in == 40 * 30 * 20 * 8
    assert plan.memory.total <= 200_000
    assert plan.seconds > 0
    assert len(cf.explain(np.median(x), budget="200kB", device="cpu").plans) > 1
