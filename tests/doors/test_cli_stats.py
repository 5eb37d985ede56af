"""`chunkflow stats` says what NumPy says, from one read; and its histogram does not depend on blocks."""

from __future__ import annotations

import io
import json
from functools import reduce
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.compiled import CompiledDevice
from support.devices import machine

import chunkflow as cf
from chunkflow.cli import histogram, main, stats
from chunkflow.errors import BudgetError

RNG = np.random.default_rng(0)
SPOILT = RNG.standard_normal((9, 10, 11))
SPOILT[0, 0, :3] = np.nan, np.inf, -np.inf


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cf.config.config, "device", "cpu")
    monkeypatch.chdir(tmp_path)


def told_of(path: str, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["stats", path, "--json", *options]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


CASES = {
    "floats": RNG.standard_normal((13, 17, 19)).astype("f4"),
    "spoilt": SPOILT,
    "offset": 101325 + RNG.standard_normal((40, 50)),
    "integers": RNG.integers(-1000, 1000, (30, 40)),
    "bytes": RNG.integers(0, 256, 5000).astype("u1"),
    "large integers": np.array([-5, 2**62, 7]),
    "largest": np.array([2**64 - 1, 0], "u8"),
    "bools": RNG.random((20, 20)) > 0.3,
    "half": RNG.random(100).astype("f2"),
    "constant": np.full(10, 0.1),
    "zeros": np.zeros((3, 4), "f4"),
    "one": np.array(3.5),
}


@pytest.mark.parametrize("name", CASES)
def test_figures_are_numpys(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    x = CASES[name]
    np.save("x.npy", x)
    found = told_of("x.npy", capsys, "--budget", "64MB")
    finite = x[np.isfinite(x)]
    assert (found["dtype"], found["shape"], found["elements"]) == (str(x.dtype), list(x.shape), x.size)
    assert (found["nan"], found["infinite"]) == (np.isnan(x).sum(), np.isinf(x).sum())
    assert (found["min"], found["max"]) == (finite.min(), finite.max())
    assert found["mean"] == pytest.approx(finite.mean(dtype="f8"), rel=1e-9, abs=1e-12)
    assert found["std"] == pytest.approx(finite.std(dtype="f8"), rel=1e-9, abs=1e-12)
    edges, counts = found["histogram"]["edges"], found["histogram"]["counts"]
    assert sum(counts) == finite.size
    assert counts[0]
    assert counts[-1]
    np.testing.assert_array_equal(counts, np.histogram(finite.astype("f8"), edges)[0])
    assert main(["stats", "x.npy"]) == 0
    assert "█" in capsys.readouterr().out


def test_complex_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    x = RNG.standard_normal(50) + 1j * RNG.standard_normal(50)
    x[3], x[4] = np.nan, complex(0, np.inf)
    np.save("x.npy", x)
    found, finite = told_of("x.npy", capsys), x[np.isfinite(x)]
    assert (found["nan"], found["infinite"], found["of"]) == (1, 1, "abs")
    assert found["max"] == pytest.approx(abs(finite).max())
    assert complex(*found["mean"]) == pytest.approx(finite.mean())
    assert found["std"] == pytest.approx(abs(finite).std())
    assert main(["stats", "x.npy"]) == 0
    assert "|x| max" in capsys.readouterr().out


@pytest.mark.parametrize("x", [np.zeros((0, 3)), np.full(5, np.nan), np.array([np.inf]), np.zeros(0, "i4")])
def test_without_finite_elements(x: np.ndarray, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("x.npy", x)
    found = told_of("x.npy", capsys)
    assert (found["min"], found["mean"], found["finite"], found["histogram"]["counts"]) == (None, None, 0, [])
    assert main(["stats", "x.npy"]) == 0
    assert "mean     none" in capsys.readouterr().out


def test_too_large_for_doubles(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("x.npy", np.array([1.79e308, -1.79e308]))
    found = told_of("x.npy", capsys)
    assert found["std"] is None
    assert np.isfinite(found["histogram"]["edges"]).all()
    assert main(["stats", "x.npy"]) == 0


def test_a_terminal_without_blocks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("x.npy", np.arange(10))
    monkeypatch.setattr(stats.sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    assert main(["stats", "x.npy"]) == 0
    raw = stats.sys.stdout.buffer.getvalue()  # type: ignore[attr-defined]
    assert b"###" in raw


def test_on_a_device_with_its_own_memory() -> None:
    found = stats.statistics(cf.open(SPOILT), device=CompiledDevice(machine=machine(staged=True)))
    assert found["max"] == SPOILT[np.isfinite(SPOILT)].max()
    assert sum(found["histogram"]["counts"]) == found["finite"] == SPOILT.size - 3


def test_missing_chunks_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    x = zarr.create_array("x.zarr", shape=(40, 40), chunks=(10, 10), dtype="f4")
    x[:10] = 3
    assert told_of("x.zarr", capsys)["missing_chunks"] == 12
    assert main(["stats", "x.zarr"]) == 0
    assert "missing  12 chunks" in capsys.readouterr().out


def test_hdf5(capsys: pytest.CaptureFixture[str]) -> None:
    with h5py.File("x.h5", "w") as file:
        file["u"], file["v"] = np.arange(9), np.arange(3)
    assert told_of("x.h5:/u", capsys)["max"] == 8
    assert main(["stats", "x.h5"]) == 2
    assert "('u', 'v')" in capsys.readouterr().err


@pytest.mark.parametrize("x", [SPOILT, np.arange(50)])
def test_one_read(x: np.ndarray) -> None:
    lazy = cf.open(x)
    made = stats._of_floats(lazy) if x.dtype.kind == "f" else stats._of_integers(lazy)
    plan = cf.explain(made, device="cpu", budget="64MB")
    assert (len(plan), plan.bytes_in) == (1, x.nbytes)


FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True) | st.floats(90, 91) | st.just(0.0)


@given(x=arrays("f8", st.integers(1, 30), elements=FLOATS), data=st.data())
def test_the_histogram_does_not_depend_on_blocks(x: np.ndarray, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(x)), max_size=4)))
    parts = data.draw(st.permutations(np.split(x, cuts)))
    whole = histogram.counted(x)
    found = reduce(histogram.merged, map(histogram.counted, parts))
    finite = x[np.isfinite(x)]
    if not len(finite):
        assert not found[0].any()
        return
    for one, other in zip(whole, found, strict=True):
        np.testing.assert_array_equal(one, other)
    made = histogram.bars(np.concatenate(whole[::-1]))
    assert made.edges[0] <= finite.min() < made.edges[1]
    assert made.edges[-2] <= finite.max() < made.edges[-1]
    for bars in (made, made.fewer(7)):
        assert bars.counts.sum() == len(finite)
        np.testing.assert_array_equal(bars.counts, np.histogram(finite, bars.edges)[0])
    assert len(made.fewer(7).counts) <= 7


def test_packed_numbers_are_decoded_where_that_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "p.zarr", data=np.array([0, 2, -1], "i2"), attributes={"scale_factor": 0.5})
    array.attrs["_FillValue"] = -1
    assert main(["stats", str(tmp_path / "p.zarr"), "--decode", "cf", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["min"], found["max"]) == (0.0, 1.0)
    assert main(["run", "a * 2", str(tmp_path / "p.zarr"), str(tmp_path / "o.npy"), "--decode", "cf"]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "o.npy"), [0.0, 2.0, np.nan])


def test_the_least_budget_is_that_of_a_chunk_and_the_histogram() -> None:
    x = np.random.default_rng(0).random((48, 64, 64)).astype("f4")
    np.save("v.npy", x)
    cf.copy(x, "v.zarr", chunks=(16, 64, 64), device="cpu")
    least, chunk = {}, 4 * 16 * 64 * 64
    for path in ("v.npy", "v.zarr"):
        with pytest.raises(BudgetError) as caught:
            stats.statistics(cf.open(path), budget="1kB", device="cpu")
        least[path], said = caught.value.smallest, str(caught.value)
    assert least["v.npy"] < 100_000  # two counts of 1024 bins, while blocks are merged
    assert least["v.zarr"] < 2 * chunk + 200_000  # one that is encoded, and decoded
    assert "hold chunks while they are decoded or encoded" in said


def test_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = np.array(["2020-01-03", "NaT", "2020-01-01", "2020-01-02"], "M8[D]")
    cf.open(times).to_zarr(tmp_path / "t.zarr", device="cpu")
    assert main(["stats", str(tmp_path / "t.zarr"), "--decode", "cf"]) == 0
    shown = capsys.readouterr().out.splitlines()[1:]
    assert [line.split() for line in shown] == [
        ["first", "2020-01-03"],
        ["last", "2020-01-02"],
        ["min", "2020-01-01"],
        ["max", "2020-01-03"],
        ["mean", "2020-01-02"],
        ["NaT", "1"],
    ]
    cf.open(times[1:2]).to_zarr(tmp_path / "none.zarr", device="cpu")
    assert main(["stats", str(tmp_path / "none.zarr"), "--decode", "cf", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["nat"], found["min"], found["first"]) == (1, None, None)
