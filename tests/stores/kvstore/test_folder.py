"""The files of a local array."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chunkflow.stores.kvstore.folder import Folder
from chunkflow.stores.kvstore.protocol import ChunkError


def test_parts_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(range(20)))
    with Folder(str(tmp_path)).open("x") as file:
        np.testing.assert_array_equal(file.read(5, 10), np.arange(5, 15))
        np.testing.assert_array_equal(file.read(-3, 3), [17, 18, 19])
        with pytest.raises(ChunkError, match="ends 7 bytes early"):
            file.read(17, 10)
        with pytest.raises(ChunkError, match="20 bytes, where the last 21 are wanted"):
            file.read(-21, 3)
