"""A format of one's own is one file (its source and its target), one row, and the suites that it inherits."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.positions import full_disk

import chunkflow as cf
from chunkflow.core.grid import whole
from chunkflow.core.spec import ArraySpec
from chunkflow.stores import Source, open_source, registry
from chunkflow.stores.file.new_file import NewFileTarget, is_fortran
from chunkflow.stores.file.strided import FileSource, Strided
from chunkflow.testing.stores import PathSinkContract, SourceContract


def holds_raw(path: str) -> bool:
    return path.endswith(".raw") and os.path.isfile(f"{path}.json")


def open_raw(path: str) -> Source:
    header = json.loads(Path(f"{path}.json").read_text())
    shape, dtype = tuple(header["shape"]), np.dtype(header["dtype"])
    return FileSource(Strided.packed(path, 0, shape, dtype, fortran=header["fortran"]))


class RawTarget(NewFileTarget):
    """Elements in ``x.raw``, and what they are in ``x.raw.json``."""

    kind = "a .raw file with a header beside it"

    def replaces(self, path: str) -> bool:
        return holds_raw(path)

    def beside(self, spec: ArraySpec) -> dict[str, bytes]:
        header = {"shape": spec.shape, "dtype": spec.dtype.str, "fortran": is_fortran(spec)}
        return {".json": json.dumps(header).encode()}

    def opened(self, spec: ArraySpec) -> Any:
        return np.fromfile(self.name, spec.dtype).reshape(spec.shape, order="F" if is_fortran(spec) else "C")


RAW = registry.Format(holds_raw, open_raw, lambda path: path.endswith(".raw"), RawTarget)


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "FORMATS", (*registry.FORMATS, RAW))
        yield


class TestRawSource(SourceContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        target = RawTarget(tmp_path / "x.raw", overwrite=True)
        sink = target.open(target.describe(array.shape, array.dtype, None))
        if array.size:
            sink.write(whole(array.shape), array)
        sink.commit()
        return open_source(str(tmp_path / "x.raw"))


class TestRawSink(PathSinkContract):
    name = "result.raw"
    beside = (".json",)

    def fail_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        full_disk(monkeypatch)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_run_reads_and_writes_it(order: Any, tmp_path: Path) -> None:
    x = np.asarray(np.random.default_rng(0).random((50, 60), "f4"), order=order)
    cf.map(np.negative, x, out=tmp_path / "x.raw", device="cpu", budget="1MB")
    np.testing.assert_array_equal(cf.map(np.negative, tmp_path / "x.raw", device="cpu", budget="1MB"), x)
