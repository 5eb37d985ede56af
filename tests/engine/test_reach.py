"""Values that depend on where blocks end are told of, with the depth that is enough; others are not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from support.devices import Place, everywhere

import chunkflow as cf
from chunkflow.errors import BlockEdgeWarning

X = np.random.default_rng(0).random((120, 40, 50), dtype="f4")
SMALL = 300_000


def said_by(run: Callable[[], Any]) -> list[str]:
    """The warnings of a run."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run()
    return [str(w.message) for w in seen if w.category is BlockEdgeWarning]


def mean_within(reach: int, axis: int = 0) -> Callable[[Any], Any]:
    """A mean of neighbours along an axis, which are wrapped around."""
    return lambda b: sum(np.roll(b, i, axis) for i in range(-reach, reach + 1)) / np.float32(2 * reach + 1)


@everywhere
@pytest.mark.parametrize(("reach", "depth"), [(2, 1), (3, 1), (2, 2), (1, 3)])
def test_a_depth_that_is_too_small_is_named(place: Place, reach: int, depth: int) -> None:
    run = {"depth": {0: depth}, "boundary": "periodic", "chunks": (20, 40, 50), "device": place.device()}
    said = said_by(lambda: cf.map_overlap(mean_within(reach), X, budget=place.budget(4_000_000), **run))
    if depth >= reach:
        assert said == []
        return
    assert len(said) == 1
    assert f"larger by at least {reach - depth}" in said[0]
    assert "axis 0" in said[0] or "axes 0" in said[0]


@settings(max_examples=30)
@given(
    reach=st.integers(0, 3),
    depth=st.integers(0, 3),
    dtype=st.sampled_from(["f4", "f8", "i2", "u1", "c8", "?", "f2"]),
    boundary=st.sampled_from(["none", "reflect", "nearest", "mirror", "periodic"]),
    rows=st.integers(30, 200),
)
def test_values_are_the_same_for_any_budget_or_it_is_said(
    reach: int, depth: int, dtype: str, boundary: str, rows: int
) -> None:
    x = (np.resize(X, (rows, 300)) * 200).astype(dtype)

    def fn(b: Any) -> Any:
        return np.max([np.roll(b, i, 0) for i in range(-reach, reach + 1)], axis=0) if len(b) else b

    found = {}

    def run(budget: str) -> None:
        found[budget] = cf.map_overlap(fn, x, depth={0: depth}, boundary=boundary, budget=budget, device="cpu")

    one, other = said_by(lambda: run("1GB")), said_by(lambda: run("60kB"))
    edge = reach + depth + 1  # there the function wraps its block around
    inner = slice(edge, rows - edge)
    if not other and not one:
        assert reach <= depth or np.array_equal(found["1GB"][inner], found["60kB"][inner])
    assert reach > depth or not (one or other)


EXPRESSIONS: dict[str, Callable[[Any], Any]] = {
    "alone": lambda x: x,
    "before others": lambda x: np.sqrt(abs(x)) + 1,
    "in a reduction": lambda x: x.mean(axis=0),
    "behind others": lambda x: x,
    "twice": lambda x: cf.map_overlap(mean_within(1), x, depth={0: 1}, boundary="nearest"),
    "beside others": lambda x: x + cf.open(X),
    "turned": lambda x: x.transpose(2, 0, 1),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.parametrize("depth", [1, 2])
def test_within_an_expression_it_is_named_too(name: str, depth: int) -> None:
    x = cf.open(X) * 2 if name == "behind others" else cf.open(X)
    smooth = cf.map_overlap(mean_within(2), x, depth={0: depth}, boundary="nearest")
    said = said_by(lambda: EXPRESSIONS[name](smooth).compute(budget=SMALL, device="cpu"))
    assert ["larger by at least 1" in each for each in said] == [True] * (2 - depth)


@pytest.mark.parametrize(
    "fn",
    [
        lambda b: b - b.mean(),
        lambda b: b / b.max(),
        lambda b: np.cumsum(b, axis=0),
        lambda b: (b - b.min()) / np.ptp(b),
    ],
)
def test_a_function_of_the_whole_array_is_named_in_map(fn: Callable[[Any], Any]) -> None:
    [said] = said_by(lambda: cf.map(fn, X + np.float32(1), budget=SMALL, device="cpu"))
    assert "of other blocks" in said
    assert "map_overlap" in said
    assert "chunks=" in said


@pytest.mark.parametrize(
    "fn",
    [
        lambda b: np.flip(b, 0),
        lambda b: b * np.hanning(len(b))[:, None, None],
        lambda b: b * np.arange(len(b))[:, None, None],
        lambda b: b + len(b),
    ],
)
def test_a_function_of_where_its_block_ends_is_named(fn: Callable[[Any], Any]) -> None:
    assert len(said_by(lambda: cf.map(fn, X, budget=SMALL, device="cpu"))) == 1
    assert len(said_by(lambda: (cf.map(fn, cf.open(X)) + 1).compute(budget=SMALL, device="cpu"))) == 1


@pytest.mark.parametrize(
    ("fn", "how"),
    [
        (np.sort, {"axis": 0}),
        (np.argsort, {"axis": 0}),
        (np.cumsum, {"axis": 0}),
        (np.roll, {"shift": 1, "axis": 0}),
        (np.fft.fft, {"axis": 0}),
        (np.fft.fftshift, {}),
        (np.unwrap, {"axis": 0}),
    ],
)
def test_functions_of_numpys_are_tried_too(fn: Callable[..., Any], how: dict[str, Any]) -> None:
    x, run = 10 * X, {"budget": 2 * SMALL, "device": "cpu"}
    for said in (
        said_by(lambda: cf.map(fn, x, **how, **run)),
        said_by(lambda: cf.map(fn, cf.open(x), **how).compute(**run)),
    ):
        assert len(said) == 1
        assert f"values of {fn.__name__} depend" in said[0]
    assert said_by(lambda: cf.map(fn, x, chunks=(-1, 10, 10), **how, **run)) == []


@pytest.mark.parametrize("fn", [np.sqrt, np.clip, np.nan_to_num, np.where])
def test_functions_of_single_elements_are_not(fn: Callable[..., Any]) -> None:
    more = {np.clip: (0.2, 0.7), np.where: (X, 0)}.get(fn, ())
    first = X > 0.5 if fn is np.where else X
    assert said_by(lambda: cf.map(fn, first, *more, budget=SMALL, device="cpu")) == []


def test_a_function_of_whole_axes_is_told_of_no_depth() -> None:
    [said] = said_by(lambda: cf.map(lambda b: b - np.nanmean(b, axis=0), X, budget=SMALL, device="cpu"))
    assert "depth" not in said
    assert "apply_gufunc" in said


def test_where_one_block_holds_all_nothing_is_said() -> None:
    x = X[:20, :20]
    assert said_by(lambda: cf.map(lambda b: b - b.mean(), x, budget="1GB", device="cpu")) == []


@pytest.mark.parametrize(
    ("fn", "options"),
    [
        (lambda b: b * 2, {}),
        (lambda b: np.sort(b, axis=2), {"chunks": (8, 40, -1)}),
        (lambda b: b - b.mean(), {"chunks": (10, 40, 50)}),  # blocks of the user's own choice
        (lambda b, block_id: b + block_id[0], {}),
        (lambda b: b + np.random.default_rng().random(b.shape, dtype="f4"), {}),
    ],
)
def test_what_is_meant_so_is_not_told_of(fn: Callable[..., Any], options: dict[str, Any]) -> None:
    assert said_by(lambda: cf.map(fn, X, budget=SMALL, device="cpu", **options)) == []


def test_a_function_that_fails_on_other_values_runs_on() -> None:
    def picky(b: Any) -> Any:
        if b.max() > 1:
            raise ValueError("these are no probabilities")
        return b * 2

    found = []
    assert said_by(lambda: found.append(cf.map(picky, X, budget=SMALL, device="cpu"))) == []
    assert np.array_equal(found[0], X * 2)


def test_tails_that_are_cut_on_purpose_are_not_told_of() -> None:
    weights = np.exp(-(np.arange(-12, 13) ** 2) / (2 * 3.0**2)).astype("f4")
    weights /= weights.sum()

    def smooth(b: Any) -> Any:
        return sum(w * np.roll(b, i - 12, 0) for i, w in enumerate(weights))

    def said(depth: int) -> list[str]:
        return said_by(
            lambda: cf.map_overlap(smooth, X, depth={0: depth}, boundary="periodic", budget="1MB", device="cpu")
        )

    assert said(9) == []  # three standard deviations
    assert len(said(3)) == 1  # one


def test_a_depth_far_from_enough_is_found_where_the_budget_is_small() -> None:
    x = np.random.default_rng(1).random((400, 40, 50), dtype="f4")
    run = {"depth": {0: 1}, "boundary": "periodic", "budget": SMALL, "device": "cpu"}
    [said] = said_by(lambda: cf.map_overlap(mean_within(9), x, **run))
    assert "larger by at least 8" in said


def test_with_dtype_and_workspace_given_the_function_sees_its_blocks_alone() -> None:
    shapes = []

    def fn(b: Any) -> Any:
        shapes.append(b.shape)
        return b - b.mean()

    given = {"dtype": "f4", "workspace": 8}
    assert said_by(lambda: cf.map(fn, X, budget=SMALL, device="cpu", **given)) == []
    assert sum(shape[0] * shape[1] * shape[2] for shape in shapes) == X.size


def test_the_depth_that_is_named_is_enough_where_tails_are_cut_on_purpose() -> None:
    weights = np.exp(-(np.arange(-16, 17) ** 2) / 32).astype("f4")
    weights /= weights.sum()

    def smooth(b: Any) -> Any:
        return sum(w * np.roll(b, i - 16, 0) for i, w in enumerate(weights))

    def said(depth: int) -> list[str]:
        run = {"depth": {0: depth}, "boundary": "periodic", "budget": "8MB", "device": "cpu"}
        return said_by(lambda: cf.map_overlap(smooth, np.resize(X, (400, 40, 50)), **run))

    for depth in (1, 4):
        assert f"larger by at least {16 - depth} along" in said(depth)[0]
    assert "with which they still change by up to 1%" in said(10)[0]
    assert said(16) == []


@pytest.mark.parametrize("budget", ["1MB", "2MB", "4MB"])
@pytest.mark.parametrize("depth", [0, 3])
def test_labels_of_blocks_are_told_of_and_no_depth_is_promised(budget: str, depth: int) -> None:
    image = (ndimage.gaussian_filter(np.random.default_rng(0).random((48, 128, 128)), 2) * 60000).astype("u2")
    high = np.percentile(image, 80)

    def label(block: Any) -> Any:
        return ndimage.label(block > high)[0]

    if depth:
        run = {"depth": depth, "boundary": "reflect", "budget": budget, "device": "cpu"}
        [said] = said_by(lambda: cf.map_overlap(label, image, **run))
    else:
        [said] = said_by(lambda: cf.map(label, image, budget=budget, device="cpu"))
    assert "at least" not in said
    assert "compute what fn takes of all first" in said
