"""Indices are NumPy's: lists, arrays and masks beside integers, slices and new axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from support.budgets import traced
from support.devices import Place, on_cpu_and_gpu, same
from support.examples import examples

import chunkflow as cf
from chunkflow import errors
from chunkflow.testing import CountingSource

SHAPE = (5, 1, 7, 4)
X = np.random.default_rng(0).integers(0, 1000, SHAPE).astype("i4")


@st.composite
def indices(draw: Any, shape: tuple[int, ...] = SHAPE) -> Any:
    """An index of any entries, of which those that are arrays are broadcast."""
    entries: list[Any] = []
    axis = 0
    common = draw(npst.array_shapes(min_dims=0, max_dims=2, max_side=4)) if draw(st.booleans()) else None
    dots = draw(st.booleans())
    while axis < len(shape) and (axis == 0 or draw(st.integers(0, 4))):
        n = shape[axis]
        kind = draw(st.sampled_from(["int", "slice", "places", "list", "mask", "new", "wide mask"]))
        if kind == "new":
            entries.append(None)
            continue
        if kind == "int":
            entries.append(draw(st.integers(-n, n - 1)))
        elif kind == "slice":
            entries.append(draw(st.slices(n)))
        elif kind == "mask":
            entries.append(draw(npst.arrays(bool, n)))
        elif kind == "wide mask" and axis + 1 < len(shape):
            entries.append(draw(npst.arrays(bool, shape[axis : axis + 2])))
            axis += 1
        else:
            wanted = (draw(st.integers(0, 6)),) if common is None else draw(_parts(common))
            found = draw(npst.arrays(draw(st.sampled_from(["i1", "i8", "u2"])), wanted, elements=st.integers(0, n - 1)))
            found = found - n * draw(npst.arrays(bool, wanted)) if found.dtype.kind == "i" else found
            entries.append(found.tolist() if kind == "list" else found)
        axis += 1
    if dots and not any(isinstance(e, np.ndarray) and e.dtype == bool and e.ndim > 1 for e in entries):
        entries.insert(draw(st.integers(0, len(entries))), Ellipsis)
    return tuple(entries)


def _parts(common: tuple[int, ...]) -> Any:
    """Shapes that are broadcast to a common one."""
    sides = st.tuples(*(st.sampled_from([1, n]) for n in common))
    return st.tuples(sides, st.integers(0, len(common))).map(lambda drawn: drawn[0][drawn[1] :])


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The array in several stores."""
    folder = tmp_path_factory.mktemp("indexing")
    np.save(folder / "x.npy", X)
    np.save(folder / "f.npy", np.asfortranarray(X))
    zarr.create_array(folder / "x.zarr", shape=SHAPE, dtype=X.dtype, chunks=(2, 1, 3, 2))[...] = X
    return {"memory": X, "npy": folder / "x.npy", "f": folder / "f.npy", "zarr": folder / "x.zarr"}


@given(indices(), st.sampled_from(["memory", "npy", "f", "zarr"]), st.sampled_from(["source", "expression", "stored"]))
@settings(max_examples=examples(3), deadline=None)
def test_any_index(stored: dict[str, Any], index: Any, where: str, what: str) -> None:
    lazy, array = cf.open(stored[where]), X
    if what == "expression":
        lazy, array = lazy * 2 + np.arange(4), array * 2 + np.arange(4)
    elif what == "stored":
        lazy, array = np.cumsum(lazy, 0), np.cumsum(array, 0)
    try:
        expected = array[index]
    except IndexError as error:
        said = str(error).partition(" (")[0]
        with pytest.raises(IndexError) as raised:
            lazy[index]
        assert said.partition(":")[0] in str(raised.value)
        return
    found = lazy[index]
    assert found.shape == expected.shape
    same(found.compute(device="cpu"), expected)


@given(indices(), st.sampled_from(["memory", "zarr"]))
@settings(max_examples=examples(1), deadline=None)
def test_an_outer_index_is_of_each_axis_by_itself(stored: dict[str, Any], index: Any, where: str) -> None:
    index = tuple(e for e in index if not (isinstance(e, np.ndarray | list) and np.ndim(e) != 1) and e is not None)
    index = tuple(e for e in index if e is not Ellipsis)
    expected: Any = X
    try:
        for axis, entry in reversed(list(enumerate(index))):
            expected = expected[(*(slice(None),) * axis, entry)]
    except IndexError:
        with pytest.raises(IndexError):
            _ = cf.open(stored[where]).oindex[index]
        return
    same(cf.open(stored[where]).oindex[index].compute(device="cpu"), expected)


# -- Assignment, and places along an axis ------------------------------------------------------------------------------


@given(indices(), st.data(), st.sampled_from(["memory", "npy", "f", "zarr"]), st.sampled_from(["16kB", "64MB"]))
@settings(max_examples=examples(2), deadline=None)
def test_elements_that_are_set(stored: dict[str, Any], index: Any, data: Any, where: str, budget: str) -> None:
    expected = X.copy()
    try:
        picked = X[index].shape
    except IndexError:
        with pytest.raises(IndexError):
            cf.put(stored[where], index, 1, device="cpu")
        return
    sides = data.draw(st.tuples(*(st.sampled_from([1, n]) for n in picked)))[data.draw(st.integers(0, len(picked))) :]
    values = np.arange(2000, 2000 + int(np.prod(sides))).reshape(sides) * data.draw(st.sampled_from([1, 0.7]))
    expected[index] = values
    same(cf.put(stored[where], index, values, budget=budget, device="cpu"), expected)
    same(cf.put(cf.open(stored[where]) * 1, index, cf.open(values) + 0).compute(device="cpu"), expected)


@on_cpu_and_gpu
def test_elements_that_a_mask_sets(place: Place, stored: dict[str, Any], tmp_path: Path) -> None:
    wanted = X > 500
    values = np.arange(wanted.sum(), dtype="f8")
    np.save(tmp_path / "values.npy", values)
    expected = X.copy()
    expected[wanted] = values
    for source in stored.values():
        x = cf.open(source)
        for some in (values, tmp_path / "values.npy", cf.open(values) * 1):
            same(cf.put(x, x > 500, some).compute(device=place.device()), expected)
        for one in (cf.open(np.array([3.0])) * 1, cf.open(values).min() + 3):
            same(cf.put(x, x > 500, one).compute(device=place.device()), np.where(wanted, 3, X).astype("i4"))
        same(cf.put(x, x > 500, 3.7).compute(device=place.device()), np.where(wanted, 3, X).astype("i4"))
        mean = np.where(wanted.any((2, 3))[:, :, None, None], 0, X).astype("i4")
        same(cf.put(x, np.any(x > 500, axis=(2, 3)), 0).compute(device=place.device()), mean)
        same(cf.put(source, wanted, values, device=place.device()), expected)


@pytest.mark.parametrize(
    ("index", "values"), [(9, 1), (slice(2), np.ones((3, 4))), (X > 500, [1, 2]), ([0, 1], np.ones((3, 1, 7, 4)))]
)
def test_what_cannot_be_set(index: Any, values: Any) -> None:
    with pytest.raises((IndexError, errors.ArgumentError)):
        cf.put(X, index, values, device="cpu")


@pytest.mark.parametrize("value", [np.nan, np.float64(np.nan), np.float32(np.inf), 300, -1, 1j])
def test_a_number_that_the_dtype_does_not_hold(value: Any) -> None:
    for x in (np.zeros(3, "u1"), cf.open(np.zeros(3, "u1"))):
        with pytest.raises((errors.ArgumentError, errors.ArgumentTypeError), match="put: "):
            cf.put(x, 0, value)
    same(cf.put(np.zeros(3, "u1"), 0, 2.7, device="cpu"), np.array([2, 0, 0], "u1"))
    same(cf.put(np.zeros(3, "f4"), 0, np.nan, device="cpu"), np.array([np.nan, 0, 0], "f4"))


@given(st.integers(-4, 3), st.data(), st.sampled_from(["memory", "f", "zarr"]), st.sampled_from(["16kB", "64MB"]))
@settings(max_examples=examples(1), deadline=None)
def test_places_along_an_axis(stored: dict[str, Any], axis: int, data: Any, where: str, budget: str) -> None:
    sides = [data.draw(st.sampled_from([1, n])) for n in SHAPE]
    sides[axis] = data.draw(st.integers(0, 9))
    n, dtype = SHAPE[axis], data.draw(st.sampled_from(["i1", "u2", "i8"]))
    least = 0 if dtype == "u2" else -n
    places = data.draw(npst.arrays(dtype, tuple(sides), elements=st.integers(least, n - 1)))
    expected = np.take_along_axis(X, places, axis)
    same(cf.take_along_axis(stored[where], places, axis, budget=budget, device="cpu"), expected)
    lazy = np.take_along_axis(cf.open(stored[where]) + 1, cf.open(places) * 1, axis)
    same(lazy.compute(device="cpu", budget=budget), expected + 1)


@on_cpu_and_gpu
def test_places_that_other_operations_find(place: Place, stored: dict[str, Any]) -> None:
    for source in stored.values():
        x = cf.open(source)
        found = np.take_along_axis(x, np.argmax(x, axis=2, keepdims=True), 2)[:, :, 0]
        same(found.compute(device=place.device()), X.max(2))
        same(np.take_along_axis(x, np.array([5, -1]), None).compute(device=place.device()), X.reshape(-1)[[5, -1]])
        with pytest.raises(IndexError, match="out of bounds"):
            np.take_along_axis(x, x, 0).compute(device=place.device())


@pytest.mark.parametrize("dtype", ["f4", "c16", "i2"])
def test_places_along_lines_that_no_block_holds(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(-9, 9, (2, 30_000)).astype(dtype)
    if dtype == "f4":
        x[:, ::2] *= -0.0
    np.save(tmp_path / "x.npy", x)
    places = rng.integers(-30_000, 30_000, (2, 5000))
    source, options = str(tmp_path / "x.npy"), {"budget": "48kB", "device": "cpu"}
    assert "x 30000 " not in str(cf.explain(cf.take_along_axis, source, places, 1, **options)).splitlines()[0]
    found = cf.take_along_axis(source, places, 1, **options)
    assert found.dtype == x.dtype
    assert found.tobytes() == np.take_along_axis(x, places, 1).tobytes()
    lazy = np.take_along_axis(cf.open(source), cf.open(places), 1)
    assert str(cf.explain(cf.take_along_axis, source, places, 1, **options)).splitlines()[0] in str(
        cf.explain(lazy, **options)
    )
    with pytest.raises(IndexError, match="index 30000 is out of bounds for axis 1 with size 30000"):
        cf.take_along_axis(source, np.full((2, 5000), 30_000), 1, **options)


# -- Tables ------------------------------------------------------------------------------------------------------------


@on_cpu_and_gpu
@pytest.mark.parametrize("dtype", ["u1", "i2", "i8", "u8", "?"])
def test_tables_that_expressions_look_up(dtype: str, place: Place) -> None:
    x = (np.random.default_rng(3).integers(0, 120, (40, 50)) % (2 if dtype == "?" else 120)).astype(dtype)
    table, device = np.linspace(0, 1, 120), place.device()
    same(cf.take(table, cf.open(x)).compute(device=device), np.take(table, x.astype("i8")))
    same(cf.take(table, cf.open(x) + 1, mode="clip").compute(device=device), table[np.minimum(x.astype("i8") + 1, 119)])
    same(cf.take(table[:7], cf.open(x), mode="wrap").compute(device=device), table[x.astype("i8") % 7])
    same(
        np.searchsorted(np.arange(0, 120, 7), cf.open(x)).compute(device=device),
        np.searchsorted(np.arange(0, 120, 7), x),
    )
    same(
        np.choose(cf.open(x) % 3, [cf.open(x), 7, x[0]]).compute(device=device),
        np.choose(np.asarray(x % 3, "i8"), [x, 7, x[0]]),
    )
    if dtype != "?":
        with pytest.raises(IndexError, match="out of bounds"):
            cf.take(table[:50], cf.open(x)).compute(device=device)
    if dtype == "i8":
        same(cf.take(table, -cf.open(x) - 1).compute(device=device), table[-x - 1])


@on_cpu_and_gpu
def test_places_beside_other_operations(place: Place, stored: dict[str, Any]) -> None:
    for source in stored.values():
        x = cf.open(source)
        found = (np.sqrt(x[[4, 0, 0], :, [6, 1, 1]] * 2.0) + x[[1, 1, 0], :, 0, [3, 2, 1]][:, :, None]).sum(0)
        expected = (np.sqrt(X[[4, 0, 0], :, [6, 1, 1]] * 2.0) + X[[1, 1, 0], :, 0, [3, 2, 1]][:, :, None]).sum(0)
        np.testing.assert_allclose(found.compute(device=place.device()), expected)
        same(cf.take(source, [6, 0], 2, device=place.device()), np.take(X, [6, 0], 2))
        same(cf.compress([True, False, True], source, 0, device=place.device()), X[[0, 2]])


@on_cpu_and_gpu
def test_tables_of_several_dimensions(place: Place) -> None:
    rng, device = np.random.default_rng(4), place.device()
    table, i, j = rng.random((5, 6, 7)), rng.integers(-5, 5, (30, 4)), rng.integers(-6, 6, (30, 1))
    x, rows, columns = cf.open(table), cf.open(i) * 1, cf.open(j) * 1
    for axis in (0, 1, -1, None):
        same(cf.take(table, rows, axis).compute(device=device), np.take(table, i, axis))
        clipped = cf.take(table, rows * 9, axis, mode="clip")
        same(clipped.compute(device=device), np.take(table, i * 9, axis, mode="clip"))
    for index, other in (
        (np.s_[rows, columns], np.s_[i, j]),
        (np.s_[:, rows, columns], np.s_[:, i, j]),
        (np.s_[rows], np.s_[i]),
        (np.s_[..., columns], np.s_[..., j]),
        (np.s_[rows, :, 2], np.s_[i, :, 2]),
    ):
        same(x[index].compute(device=device), table[other])
        same((x + 1)[index].compute(device=device), (table + 1)[other])
    with pytest.raises(IndexError, match="out of bounds"):
        x[rows * 2].compute(device=device)


@on_cpu_and_gpu
def test_tables_of_one_element(place: Place) -> None:
    table, i, device = np.array([[2.5]]), np.zeros(5, int), place.device()
    for x in (cf.open(i), cf.open(i) * 1, cf.open(np.zeros((5, 3))).argmax(1)):  # the last is a pass of its own
        same(cf.take(table, x, 0).compute(device=device), np.take(table, i, 0))
        same(cf.open(table)[x, x].compute(device=device), table[i, i])
        same(np.choose(x, [7]).compute(device=device), np.choose(i, [7]))
        same(np.unravel_index(x, (1, 1))[0].compute(device=device), i)


def test_tables_that_are_operands() -> None:
    """Those that are expressions, or too large to be had uncounted."""
    i = np.array([[2, 0], [-1, 1]])
    same(cf.take(cf.open(np.arange(4.0)) + 1, cf.open(i)).compute(device="cpu"), np.arange(1.0, 5)[i])
    same(cf.take(np.broadcast_to(1.0, 1 << 28), cf.open(i), 0).compute(device="cpu"), np.ones((2, 2)))


# -- Masks that are expressions ----------------------------------------------------------------------------------------


@given(st.data(), st.sampled_from(["memory", "npy", "f", "zarr"]), st.sampled_from(["64kB", "64MB"]))
@settings(max_examples=examples(1), deadline=None)
def test_masks_that_are_expressions(stored: dict[str, Any], data: st.DataObject, where: str, budget: str) -> None:
    first, last = sorted(data.draw(st.lists(st.integers(0, 4), min_size=2, max_size=2, unique=True)))
    side = (0,) * first + (slice(None),) * (last - first) + (0,) * (4 - last)  # the axes that the mask is for
    least, before = data.draw(st.sampled_from([-1, 300, 900, 990, 1000])), (slice(None),) * first
    lazy, array = cf.open(stored[where]), X
    mask, expected_mask = lazy[side] > least, X[side] > least
    what = data.draw(st.sampled_from(["source", "expression", "stored"]))
    if what == "expression":
        lazy, array = lazy * 2 + np.arange(4), array * 2 + np.arange(4)
    elif what == "stored":
        lazy, array = np.cumsum(lazy, 0), np.cumsum(array, 0)
    found, expected = lazy[(*before, mask)], array[(*before, expected_mask)]
    assert found.shape == expected.shape
    same(found.compute(device="cpu", budget=budget), expected)
    for one, other in zip(np.nonzero(mask), np.nonzero(expected_mask), strict=True):
        same(one.compute(device="cpu", budget=budget), other)


@on_cpu_and_gpu
def test_elements_of_a_mask_in_other_operations(place: Place, stored: dict[str, Any]) -> None:
    device, wanted = place.device(), X[X > 500]
    for source in stored.values():
        x = cf.open(source)
        picked = x[x > 500]
        total, least, some = cf.compute(picked.sum(), picked.min(), (picked / 2)[::3], device=device)
        assert (total, least) == (wanted.sum(), wanted.min())
        same(some, (wanted / 2)[::3])
        same(picked[picked < 700].compute(device=device), wanted[wanted < 700])
        same(x[[4], :, x[0, 0, :, 0] > 500, None].compute(device=device), X[[4], :, X[0, 0, :, 0] > 500, None])
        same(x[np.argmax(x[:, 0, 0, 0])].compute(device=device), X[np.argmax(X[:, 0, 0, 0])])


def test_a_mask_of_put_is_counted_within_the_budget(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random(3_000_000)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "m.npy", x > 0.5)
    np.save(tmp_path / "v.npy", np.arange(float((x > 0.5).sum())))

    def run() -> Any:
        mask, out = cf.open(tmp_path / "m.npy"), tmp_path / "y.npy"
        how: Any = {"out": out, "overwrite": True, "budget": "3MB", "device": "cpu"}
        return cf.put(tmp_path / "x.npy", mask, tmp_path / "v.npy", **how)

    run()
    with traced() as peak:
        got = run()
        assert peak() <= 3_000_000
    x[x > 0.5] = np.load(tmp_path / "v.npy")
    same(got, x)


def test_an_index_and_values_of_put_are_computed_within_the_budget(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((2000, 1000))
    np.save(tmp_path / "x.npy", x)
    wanted, places = x.max(axis=1) > 0.999, np.arange(2, 990, 7)

    def run() -> Any:
        lazy, how = cf.open(tmp_path / "x.npy"), {"out": tmp_path / "y.npy", "budget": "3MB", "device": "cpu"}
        index = (lazy.max(axis=1) > 0.999, cf.open(places)[:1])
        return cf.put(tmp_path / "x.npy", index, lazy.min(axis=1)[cf.open(wanted)], overwrite=True, **how)

    run()
    with traced() as peak:
        got = run()
        assert peak() <= 3_000_000
    x[wanted, places[:1]] = x.min(axis=1)[wanted]
    same(got, x)


K = np.random.default_rng(0).integers(-400_000, 400_000, 60_000)
T, V = np.sort(np.random.default_rng(1).random(40_000)), np.arange(len(K))
LISTS: dict[str, tuple[Callable[..., Any], Callable[[np.ndarray], Any]]] = {
    "take": (lambda x, **o: cf.take(x, K, **o), lambda x: x[K]),
    "points": (
        lambda x, **o: cf.open(x).reshape(400, 1000)[K % 400, K % 1000].compute(**o),
        lambda x: x.reshape(400, -1)[K % 400, K % 1000],
    ),
    "put one": (lambda x, **o: cf.put(x, K, 7, **o), lambda x: _put(x, K, 7)),
    "put": (lambda x, **o: cf.put(x, K, V, **o), lambda x: _put(x, K, V)),
    "isin": (
        lambda x, **o: np.isin(cf.open(x), T.astype("f4"), invert=True).compute(**o),
        lambda x: np.isin(x, T.astype("f4"), invert=True),
    ),
    "interp": (lambda x, **o: np.interp(cf.open(x), T, T**2).compute(**o), lambda x: np.interp(x, T, T**2)),
}


def _put(x: np.ndarray, index: Any, values: Any) -> np.ndarray:
    found = x.copy()
    found[index] = values
    return found


@pytest.mark.parametrize("name", LISTS)
def test_long_lists_and_tables_count_in_the_budget(name: str, tmp_path: Path) -> None:
    x = np.random.default_rng(2).random(400_000).astype("f4")
    x[: len(T) * 7 : 7], x[-1] = T, np.nan
    np.save(tmp_path / "x.npy", x)
    run, numpy = LISTS[name]

    def call(budget: int) -> Any:
        return run(tmp_path / "x.npy", budget=budget, device="cpu")

    call(3_000_000)
    with traced() as peak:
        found = call(3_000_000)
        assert peak() <= 3_000_000 + found.nbytes
    np.testing.assert_array_equal(found, numpy(x))
    if name in ("take", "points", "put"):
        with pytest.raises(cf.BudgetError, match="held already") as caught:
            call(200_000)
        assert caught.value.smallest is not None
        call(caught.value.smallest + 200_000)


def test_a_mask_beside_other_indices_picks_no_more_than_memory_holds() -> None:
    x = cf.open(X)
    same(x[x[:, 0, 0, 0] > 300, :, 2:5].compute(device="cpu"), X[X[:, 0, 0, 0] > 300, :, 2:5])
    with cf.config.set(array_limit=15), pytest.raises(errors.UnsupportedError, match="index by the mask alone"):
        x[x[:, 0, 0, 0] >= 0, 0]


@pytest.mark.parametrize("index", [lambda x: x[0] > 3, lambda x: (x > 3, 1), lambda x: (..., x > 3, ...)])
def test_a_mask_that_does_not_fit_is_not_computed(index: Any) -> None:
    source = CountingSource(X)
    with pytest.raises(IndexError):
        X[index(X)]
    with pytest.raises(IndexError):
        cf.open(X)[index(cf.open(source))]
    assert not source.reads


@given(
    st.tuples(st.integers(-130, 130), st.integers(-130, 130), st.sampled_from([1, 1, 2, 7, -1, -3])),
    st.sampled_from([(120,), (10, 12), (1, 120), (4, 5, 6), (2, 3, 4, 5), (6, 1, 20)]),
    st.booleans(),
)
@settings(max_examples=examples(1), deadline=None)
def test_slices_of_flattened_arrays_read_the_rows_in_which_they_lie(
    ends: tuple[int, int, int], shape: tuple[int, ...], changed: bool
) -> None:
    x = np.arange(120.0).reshape(shape)
    source = CountingSource(x)
    lazy = np.ravel(cf.open(source) + 1 if changed else cf.open(source))[slice(*ends)]
    expected = np.ravel(x + 1 if changed else x)[slice(*ends)]
    np.testing.assert_array_equal(lazy.compute(device="cpu"), expected)
    if expected.size and ends[2] == 1:
        row = math.prod(shape[1:]) if len(shape) > 1 else expected.size
        rows = -(-expected.size // row) + 1
        assert source.bytes_read <= 2 * 8 * rows * row  # twice: a trial call is among it


def test_a_slice_of_one_row_of_a_flattened_array_goes_on_to_its_rows() -> None:
    x = np.random.default_rng(0).random((20, 30, 40))
    source = CountingSource(x)
    got = np.ravel(cf.open(source) * 2)[1300:1310]
    np.testing.assert_array_equal(got.compute(device="cpu"), np.ravel(x * 2)[1300:1310])
    assert source.bytes_read <= 2 * 10 * 8
