"""What tensorstore has opened is read and written as it says: N5, neuroglancer's, zarr, arrays in memory."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.foreign import ZARR_READERS, create_tensor, tensor_spec

import chunkflow as cf
from chunkflow.errors import ArgumentError, ArgumentTypeError, ReadError
from chunkflow.stores import Source, Target, open_source, open_target
from chunkflow.testing import ForeignReader, SinkContract, SourceContract, filled

ts = pytest.importorskip("tensorstore")


def n5(path: Path) -> dict[str, Any]:
    return {"driver": "n5", "kvstore": {"driver": "file", "path": str(path)}}


class TestZarrSource(SourceContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        return open_source(create_tensor(array, tensor_spec(tmp_path / "u.zarr", 3)))


class TestTransposedSource(SourceContract):
    """Its indices begin elsewhere, and its chunks lie otherwise."""

    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        made = create_tensor(array.T, tensor_spec(tmp_path / "u.zarr", 3))
        return open_source(made.T.translate_by[(-3,) * array.ndim] if array.ndim else made)


class TestN5Source(SourceContract):
    dtypes = ("f4", "i2", "f8", "u1")
    test_spec = None  # it has no booleans
    test_the_whole_array_at_once = None  # nor arrays of no axes

    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        if not array.ndim:
            return open_source(array)
        return open_source(create_tensor(array, n5(tmp_path / "u.n5")))


class TestSink(SinkContract):
    name = "u.zarr"

    def make(self, tmp_path: Path, array: np.ndarray) -> Target:
        self.folder = tmp_path
        made = create_tensor(np.zeros_like(array), tensor_spec(tmp_path / self.name, 3))
        return open_target(made.translate_by[(5,) * array.ndim] if array.ndim else made)

    def values(self, result: Any) -> np.ndarray:
        return np.asarray(result.read().result())

    def fail_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shutil.rmtree(self.folder / self.name)
        (self.folder / self.name).write_text("a file")

    def foreign_readers(self) -> Sequence[ForeignReader]:
        return ZARR_READERS


@pytest.mark.parametrize("spec", [n5(Path("u")), tensor_spec("u", 2), {"driver": "array", "dtype": "float32"}], ids=str)
def test_runs_from_and_into_each_driver(spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    array = filled((60, 50), "f4")
    if spec["driver"] == "array":
        x, y = (ts.array(values) for values in (array, np.zeros_like(array)))
    else:
        x = create_tensor(array, spec)
        place = spec["kvstore"] | {"path": str(tmp_path / "v")}
        y = create_tensor(np.zeros_like(array), spec | {"kvstore": place})
    done = cf.map(lambda a: a + 1, x, out=y, budget="100kB", device="cpu")
    assert done is y
    np.testing.assert_array_equal(y.read().result(), array + 1)
    part = x[5:40:2, 7:]  # its indices begin at 7, as tensorstore counts
    np.testing.assert_array_equal(cf.map(np.negative, part, device="cpu"), -array[5:40:2, 7:])


def test_what_is_the_same_place_is_seen(tmp_path: Path) -> None:
    x = create_tensor(filled((60, 50), "f4"), tensor_spec(tmp_path / "u.zarr", 3))
    with pytest.raises(ArgumentError, match="overlaps"):
        cf.copy(tmp_path / "u.zarr", out=x.T.T[:, ::-1], device="cpu")
    cf.map(np.negative, x, out=x, device="cpu")
    np.testing.assert_array_equal(x.read().result(), -filled((60, 50), "f4"))


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    spec = tensor_spec(tmp_path / "u.zarr", 3)
    made = create_tensor(filled((4, 5), "f4"), spec)
    with pytest.raises(ArgumentError, match=r"read-only.*write=True"):
        open_target(ts.open(spec, read=True).result())
    with pytest.raises(ArgumentError, match=r"writing only.*read=True"):
        open_source(ts.open(spec, write=True).result())
    with pytest.raises(ArgumentTypeError, match="bfloat16"):
        open_source(ts.array([1, 2], ts.bfloat16))
    (tmp_path / "u.zarr" / "c" / "0" / "0").write_bytes(b"x")
    with pytest.raises(ReadError, match=r"cannot read \[0:4, 0:5\] from TensorStore file://"):
        cf.copy(made, device="cpu")


@pytest.mark.parametrize(("mark", "name"), [("attributes.json", "N5"), ("manifest.ocdbt", "OCDBT"), ("info", "neuro")])
def test_other_formats_are_hinted_at(mark: str, name: str, tmp_path: Path) -> None:
    (tmp_path / mark).write_text("{}")
    with pytest.raises(ArgumentError, match=rf"of {name}.*tensorstore\.open"):
        open_source(tmp_path)
