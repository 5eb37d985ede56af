"""Regions that meet in a chunk may be written at once: nothing of either is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import chunkflow as cf
from chunkflow.stores.chunk_locks import ChunkLocks
from chunkflow.stores.zarr.array import ZarrSource

SHAPE, CHUNK = (40, 6), (16, 6)
X = np.arange(240.0).reshape(SHAPE)

ARRAYS: dict[str, dict[str, Any]] = {
    "format 2": {"zarr_format": 2, "chunks": CHUNK},
    "format 3": {"chunks": CHUNK},
    "shards": {"chunks": (8, 3), "shards": CHUNK},
}


@pytest.mark.parametrize("stored", ["folder", "memory"])
@pytest.mark.parametrize("kind", ARRAYS)
def test_threads_change_a_chunk_one_after_the_other(
    kind: str, stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "x.zarr" if stored == "folder" else zarr.storage.MemoryStore()
    array = zarr.create_array(store, shape=SHAPE, dtype="f8", **ARRAYS[kind])
    inside, at_once, read = [0], [0], ZarrSource.read

    def slow(self: ZarrSource, region: Any, out: np.ndarray) -> None:
        read(self, region, out)
        inside[0] += 1
        at_once[0] = max(at_once[0], inside[0])
        time.sleep(0.02)  # long enough for the other thread to read, too, if nothing kept it
        inside[0] -= 1

    monkeypatch.setattr(ZarrSource, "read", slow)

    def write(rows: slice) -> None:
        cf.copy(X[rows], cf.ExistingArray(array, region=(rows,)), device="cpu")

    threads = [threading.Thread(target=write, args=(rows,)) for rows in (slice(0, 20), slice(20, 40))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(array[...], X)  # type: ignore[arg-type]
    assert at_once == [1]


ASKS = """
import fcntl, os, struct, sys
opened = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.fcntl(opened, fcntl.F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 64, 0))
except BlockingIOError:
    print("locked")
"""


def test_other_processes_wait(tmp_path: Path) -> None:
    file = tmp_path / "zarr.json"
    file.write_text("{}")
    locks = ChunkLocks(str(file))

    def others() -> str:
        return subprocess.run([sys.executable, "-c", ASKS, file], capture_output=True, text=True, check=True).stdout

    with locks.changing((3, 1)):
        assert others() == "locked\n"
    assert others() == ""
    locks.close()
    locks.close()


def test_a_file_that_cannot_be_written_keeps_threads_apart_all_the_same(tmp_path: Path) -> None:
    locks = ChunkLocks(str(tmp_path / "missing"))
    with locks.changing((0,)):
        pass
    locks.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_locks_of_its_own() -> None:
    with ChunkLocks().changing((0,)):
        child = os.fork()
        if not child:  # with the parent's locks it would wait for ever
            with ChunkLocks().changing((0,)):
                os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
