"""What every array that a run creates at a URL does, for the tests beside this file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.foreign import URL_READERS
from zarr.storage import FsspecStore

from chunkflow.errors import SourceNotFoundError
from chunkflow.stores import open_source
from chunkflow.stores.kvstore.fsspec import Bucket, open_store
from chunkflow.testing import ForeignReader, PathSinkContract


def bucket(url: str) -> Bucket:
    return Bucket(open_store(url), "")


class UrlSinkContract(PathSinkContract):
    test_a_missing_directory_is_named = None  # stores have none

    def foreign_readers(self) -> Sequence[ForeignReader]:
        return URL_READERS

    def root(self, tmp_path: Path) -> str:
        return f"memory:/{tmp_path}"

    def at(self, tmp_path: Path) -> str:
        return f"{self.root(tmp_path)}/{self.name}"

    def names(self, tmp_path: Path) -> list[str]:
        return sorted({name.split("/")[0] for name in bucket(self.root(tmp_path)).names()})

    def check_unseen(self, tmp_path: Path) -> None:
        with pytest.raises(SourceNotFoundError):
            open_source(self.at(tmp_path))

    def put_stranger(self, tmp_path: Path) -> Callable[[], bytes]:
        place = bucket(self.at(tmp_path))
        place.put("photo.jpg", lambda file: file.write(b"dear") > 0)
        return lambda: np.asarray(place.get("photo.jpg")).tobytes()

    def put_other(self, tmp_path: Path, array: np.ndarray) -> None:
        zarr.create_array(self.at(tmp_path), shape=array.shape, dtype=array.dtype, chunks=array.shape)[...] = array

    def fail_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def failing(*_: Any) -> None:
            raise PermissionError("not yours")

        monkeypatch.setattr(FsspecStore, "set", failing)
