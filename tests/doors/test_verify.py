"""`chunkflow verify` finds damage, and says where it lies."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
from fsspec.implementations.memory import MemoryFileSystem

import chunkflow as cf
from chunkflow.cli.command import main
from chunkflow.errors import ReadError

X = np.random.default_rng(0).random((32, 16))


def created(folder: Path, **options: Any) -> str:
    cf.map(np.positive, X, out=folder / "x.zarr", chunks=(8, 16), device="cpu", **options)
    return str(folder / "x.zarr")


def sharded(folder: Path) -> str:
    how: dict[str, Any] = {"compressors": [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]}
    zarr.create_array(folder / "x.zarr", data=X, chunks=(8, 16), shards=(16, 16), **how)
    return str(folder / "x.zarr")


def hdf5(folder: Path) -> str:
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("u", data=X, chunks=(8, 16), fletcher32=True)
    return f"{folder / 'x.h5'}:/u"


def npy(folder: Path) -> str:
    np.save(folder / "x.npy", X)
    return str(folder / "x.npy")


def flipped(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 4
    path.write_bytes(raw)


def chunk_at(path: str) -> tuple[Path, int]:
    """A place in the third chunk."""
    if not path.endswith("/u"):
        file = Path(path) / "c/2/0"
        return (file, 300) if file.exists() else (Path(path) / "c/1/0", 300)
    with h5py.File(path.partition(":")[0]) as file:
        return Path(path.partition(":")[0]), file["u"].id.get_chunk_info_by_coord((16, 0)).byte_offset + 300


KINDS: dict[Callable[[Path], str], tuple[str, str]] = {
    created: ("crc32c", "x.zarr/c/2/0"),
    sharded: ("crc32c", "x.zarr/c/1/0, from byte 0 on"),
    hdf5: ("fletcher32", "x.h5, from byte"),
}


@pytest.mark.parametrize("make", KINDS)
def test_a_flipped_bit_is_found(
    make: Callable[[Path], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, (checksums, where) = make(tmp_path), KINDS[make]
    assert main(["verify", path]) == 0
    assert f"4 chunks of 4.10 kB in all, 0 damaged, 0 missing; verified by {checksums}" in capsys.readouterr().out
    flipped(*chunk_at(path))
    assert main(["verify", path]) == 1
    assert "damaged: [16:24, 0:16], in " in (told := capsys.readouterr().out)
    assert where in told
    assert "4 chunks of 4.10 kB in all, 1 damaged" in told
    found = cf.verify(path)
    assert not found
    assert found.damages[0].region == np.s_[16:24, 0:16]
    with pytest.raises(ReadError):  # runs find it, too
        cf.sum(path, device="cpu")


@pytest.mark.parametrize(("make", "how"), [(npy, {}), (created, {"checksum": False})])
def test_what_has_no_checksums_says_so(make: Callable[..., str], how: dict[str, Any], tmp_path: Path) -> None:
    assert "without checksums" in str(cf.verify(make(tmp_path, **how)))


def test_a_short_file_and_damaged_metadata_are_damage(tmp_path: Path) -> None:
    path = Path(npy(tmp_path))
    path.write_bytes(path.read_bytes()[:-8])
    assert "all of it, in" in str(cf.verify(path))
    path = Path(created(tmp_path))
    (path / "zarr.json").write_text('{"node_type": "array"}')
    assert not cf.verify(path)


def test_missing_chunks_are_counted(tmp_path: Path) -> None:
    path = created(tmp_path)
    (Path(path) / "c/1/0").unlink()
    found = cf.verify(path)
    assert (bool(found), found.missing) == (True, 1)


def test_an_array_behind_a_url(tmp_path: Path) -> None:
    url = "memory://verified/x.zarr"
    cf.map(np.positive, X, out=url, chunks=(8, 16), device="cpu")
    assert cf.verify(url).checksums == "crc32c"
    (key,) = [key for key in MemoryFileSystem.store if key.endswith("verified/x.zarr/c/3/0")]
    raw = bytearray(MemoryFileSystem.store[key].getvalue())
    raw[100] ^= 1
    MemoryFileSystem().pipe_file(key, bytes(raw))
    (damage,) = cf.verify(url).damages
    assert damage.where.endswith("x.zarr/c/3/0")


def test_what_is_no_array(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path / "nothing.npy")]) == 2
    assert "nothing.npy" in capsys.readouterr().err


def test_progress(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    cf.verify(created(tmp_path), progress=lambda done, total: told.append((done, total)))
    assert told == [(1024 * n, 4096) for n in range(5)]


def test_missing_chunks_are_damage_where_all_were_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = created(tmp_path)
    (tmp_path / "x.zarr/c/2/0").unlink()
    found = cf.verify(path)
    assert found
    assert (found.damaged, found.missing) == (0, 1)
    assert "1 missing (they read as the fill value; --missing error" in str(found)
    found = cf.verify(path, missing="error")
    assert not found
    assert (found.chunks, found.damaged) == (4, 1)
    assert found.damages[0].region == (slice(16, 24), slice(0, 16))
    assert "is missing" in found.damages[0].problem
    assert main(["verify", path]) == 0
    assert main(["verify", path, "--missing", "error"]) == 1
    assert "damaged: [16:24, 0:16]" in capsys.readouterr().out
    with pytest.raises(cf.errors.ArgumentError, match="missing='all' is unknown"):
        cf.verify(path, missing="all")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["step_{}.h5:/fields/u", "step_{}.zarr", "step_{}.npy"])
def test_each_file_of_a_pattern_is_verified(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for i in range(3):
        cf.copy(X, kind.format(i), device="cpu")
    assert main(["verify", kind.format("*")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith(f"{tmp_path}/{kind.format(i)}: ") for i, line in enumerate(lines)] == [True] * 3
    file = tmp_path / kind.format(1).partition(":")[0]
    file = file / "zarr.json" if file.is_dir() else file
    file.write_bytes(file.read_bytes()[:-100])
    assert main(["verify", kind.format("*")]) == 1
    told = capsys.readouterr().out
    assert re.search(r"step_1\S*: 0 chunks of 0 B in all, 1 damaged", told)
    assert told.count("1 chunk of 4.10 kB in all, 0 damaged") == 2


def test_all_arrays_of_files_and_groups_are_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("a.h5:/u", "a.h5:/run/v", "g.zarr/0", "g.zarr/labels/0"):
        cf.copy(X, path, device="cpu")
    with h5py.File("a.h5", "r+") as file:
        file["names"] = ["x", "y"]
    zarr.create_array("g.zarr/time", data=np.arange(3).astype("M8[s]"))
    assert main(["verify", "a.h5", "g.zarr"]) == 0
    lines = [line.removeprefix(f"{tmp_path}/") for line in capsys.readouterr().out.splitlines()]
    assert [line.partition(": ")[0] for line in lines] == [
        "a.h5:/names",
        "a.h5:/run/v",
        "a.h5:/u",
        "g.zarr/0",
        "g.zarr/labels/0",
        "g.zarr/time",
    ]
    assert lines[0].startswith("a.h5:/names: not verified: ")
    assert "24 B in all, 0 damaged" in lines[-1]
    (tmp_path / "g.zarr/time/c/0").unlink()
    assert main(["verify", "g.zarr", "--missing", "error"]) == 1
    assert "damaged: [0:3], in" in capsys.readouterr().out


def test_wrong_paths_do_not_keep_others_from_being_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    cf.copy(X, "a.h5:/u", device="cpu")
    with h5py.File("a.h5", "r+") as file:
        file["names"] = ["x", "y"]
    for wrong, told in (
        ("none.npy", "there is no array under"),
        ("none*.npy", "no file matches the pattern none*.npy"),
        ("a.h5:/names", "has dtype object"),
        ("a.h5:/w", "there is no dataset '/w'"),
    ):
        assert main(["verify", wrong, "a.h5:/u"]) == 2
        out, err = capsys.readouterr()
        assert "a.h5:/u: " in out
        assert told in err
        assert err.startswith("chunkflow: error: ")
    Path(npy(tmp_path)).write_bytes(Path("x.npy").read_bytes()[:-8])
    assert main(["verify", "x.npy", "none.npy"]) == 2  # the worst
    assert "1 damaged" in capsys.readouterr().out
