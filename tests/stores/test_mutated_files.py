"""Files of every format with bytes flipped, cut out, repeated or cut off: an error of ours, or an array; never a crash.

Each format's files are opened in a process of its own, with bounds on its memory and time. The seeds are fixed;
``CHUNKFLOW_MUTATIONS`` is how many files of each kind are tried.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

NUMBER = int(os.environ.get("CHUNKFLOW_MUTATIONS", "20"))

X = np.arange(96, dtype="<i4").reshape(12, 8)
NUMBERS = (0, 1, 127, 128, 255)
LENGTHS = (b"0", b"1", b"-1", b"65536", b"4294967296", b"9223372036854775807", b'"x"', b"null", b"[]", b"1e400")


def flipped(raw: bytearray, draw: random.Random) -> None:
    for _ in range(draw.choice((1, 1, 2, 8))):
        at = draw.randrange(len(raw))
        raw[at] = draw.choice((raw[at] ^ 1 << draw.randrange(8), draw.choice(NUMBERS)))


def cut(raw: bytearray, draw: random.Random) -> None:
    del raw[draw.randrange(len(raw)) :]


def dropped(raw: bytearray, draw: random.Random) -> None:
    at = draw.randrange(len(raw))
    del raw[at : at + draw.choice((1, 4, 16))]


def repeated(raw: bytearray, draw: random.Random) -> None:
    at = draw.randrange(len(raw))
    raw[at:at] = raw[at : at + draw.choice((1, 8, 64))]


def lengthened(raw: bytearray, draw: random.Random) -> None:
    """Another number in text, or a large one in binary."""
    places = [i for i, letter in enumerate(raw) if letter in b"0123456789"]
    if places and draw.random() < 0.7:
        at = draw.choice(places)
        raw[at : at + 1] = draw.choice(LENGTHS)
    else:
        at = draw.randrange(len(raw))
        raw[at : at + 8] = draw.choice((2**31 - 1, 2**32 - 1, 2**62, 2**64 - 1, 0)).to_bytes(8, "little")


MUTATIONS = (flipped, flipped, cut, dropped, repeated, lengthened)


def npy(path: Path) -> str:
    np.save(path / "x.npy", X)
    return str(path / "x.npy")


def of_zarr(**options: Any) -> Callable[[Path], str]:
    def make(path: Path) -> str:
        made = zarr.create_array(path / "x.zarr", shape=X.shape, chunks=(4, 8), dtype=X.dtype, **options)
        made[...] = X
        return str(path / "x.zarr")

    return make


def of_hdf5(**options: Any) -> Callable[[Path], str]:
    def make(path: Path) -> str:
        import h5py

        with h5py.File(path / "x.h5", "w", libver=options.pop("libver", None)) as file:
            file.create_dataset("group/x", data=X, **options)
        return f"{path}/x.h5:/group/x"

    return make


KINDS: dict[str, Callable[[Path], str]] = {
    "npy": npy,
    "zarr 3": of_zarr(),
    "zarr 3 in shards": of_zarr(shards=(12, 8)),
    "zarr 3 with two compressors": of_zarr(compressors=[zarr.codecs.GzipCodec(), zarr.codecs.BloscCodec()]),
    "zarr 2": of_zarr(zarr_format=2),
    "hdf5": of_hdf5(),
    "hdf5 in chunks": of_hdf5(chunks=(4, 8), compression="gzip", shuffle=True, fletcher32=True),
    "hdf5 of lzf": of_hdf5(chunks=(4, 8), compression="lzf", libver="latest"),
}

# Reads each path twice: how it ends is the line that is printed. Memory is that of the process beyond its start.
READ = """
import json, resource, sys, warnings
import numpy as np
import chunkflow as cf
from chunkflow.errors import ChunkflowError
warnings.simplefilter("ignore")
cf.copy(np.ones(9), device="cpu")
most = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
before = most()
for line in sys.stdin:
    print(end=line.strip() + "\\t", flush=True)
    try:
        ended = "read" if cf.copy(line.strip(), device="cpu", budget="4MB").nbytes < 1 << 20 else "read much"
    except ChunkflowError as error:
        ended = "refused"
    except BaseException as error:
        ended = f"raw {error!r}"
    print(ended if most() - before < 256 else f"{most() - before} MB", flush=True)
"""


def mutated(make: Callable[[Path], str], path: Path, draw: random.Random) -> str:
    """An array of which one file was changed."""
    path.mkdir()
    found = make(path)
    files = sorted(each for each in path.rglob("*") if each.is_file())
    documents = [each for each in files if "json" in each.name or each.name == ".zarray"]
    chosen = draw.choice(documents if documents and draw.random() < 0.5 else files)
    raw = bytearray(chosen.read_bytes())
    draw.choice(MUTATIONS)(raw, draw)
    chosen.write_bytes(raw)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_damaged_is_refused_or_read(kind: str, tmp_path: Path) -> None:
    if "hdf5" in kind:
        pytest.importorskip("h5py")
    draw = random.Random(kind)
    paths = [mutated(KINDS[kind], tmp_path / str(i), draw) for i in range(NUMBER)]
    done = subprocess.run(
        [sys.executable, "-c", READ], input="\n".join(paths), capture_output=True, text=True, timeout=300, check=False
    )
    ended = dict(line.split("\t") for line in done.stdout.splitlines() if "\t" in line)
    wrong = {path: how for path, how in ended.items() if how not in ("read", "refused", "read much")}
    assert not wrong, json.dumps(wrong, indent=1)
    assert len(ended) == len(paths), f"the process died: {done.stdout[-300:]} {done.stderr[-2000:]}"
