"""nvCOMP's C interface with the CPU behind it: what it is told, and when it is left alone."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from support.decoders import Decodes
from support.devices import machine, same

import chunkflow as cf
from chunkflow.core.encoded_chunks import ROWS
from chunkflow.devices.cpu.device import NumpyDevice
from chunkflow.devices.cuda import nvcomp
from chunkflow.devices.protocol import Decoder
from chunkflow.errors import DeviceError
from chunkflow.system import native

STREAM = 77


def _at(address: int, number: int, dtype: Any = np.uint64) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * (number * np.dtype(dtype).itemsize)).from_address(address)).view(
        dtype
    )


class Library:
    """What nvCOMP's functions do, and with what arguments; they give `status`, and bytes and sums that are `wrong`."""

    def __init__(self, codec: str, status: int = 0, wrong: int = 0, wrong_sums: int = 0) -> None:
        self.codec, self.status, self.wrong, self.wrong_sums = codec, status, wrong, wrong_sums
        self.numbers: list[int] = []

    def size(self, number: int, most: int, options: Any, out: Any, total: int, stream: Any) -> int:
        assert ctypes.sizeof(options) == 64
        assert bytes(options) == bytes(64)
        assert 0 < total <= number * most
        out._obj.value = 3 * total
        return self.status

    def decode(
        self,
        source: int,
        sizes: int,
        rooms: int,
        made: int,
        number: int,
        temporary: int,
        temporary_bytes: int,
        target: int,
        options: Any,
        statuses: int,
        stream: int,
    ) -> int:
        assert stream == STREAM
        assert bytes(options) == bytes(64)
        assert temporary % 8 == 0
        self.numbers.append(number)
        for n, (here, length, room, there) in enumerate(
            zip(*(_at(a, number).tolist() for a in (source, sizes, rooms, target)), strict=True)
        ):
            raw = _at(here, length, "u1").tobytes()
            plain = numcodecs.get_codec({"id": self.codec}).decode(
                room.to_bytes(4, "little") + raw if self.codec == "lz4" else raw
            )
            _at(there, room, "u1")[...] = np.frombuffer(plain, np.uint8) + self.wrong
            _at(made, number)[n] = room
            _at(statuses, number, np.int32)[n] = 0
        return self.status

    def configure(self, sizes: Any, number: int, out: Any, most: int, stream: Any) -> int:
        assert (sizes, stream) == (None, None)
        assert most > 0
        out._obj.blocks = 7
        return 0

    def compute(
        self,
        source: int,
        sizes: int,
        number: int,
        target: int,
        options: Any,
        segment: int,
        statuses: Any,
        stream: int,
    ) -> int:
        assert ctypes.sizeof(options) == 128
        assert (options.poly, options.init, options.xorout) == (0x04C11DB7, 0xFFFFFFFF, 0xFFFFFFFF)
        assert (options.ref_in, options.ref_out, options.how.blocks) == (True, True, 7)
        assert (segment, statuses, stream) == (0, None, STREAM)
        rows = zip(_at(source, number).tolist(), _at(sizes, number).tolist(), strict=True)
        found = [zlib.crc32(_at(here, size, "u1")) for here, size in rows]
        _at(target, number, np.uint32)[...] = np.array(found, np.uint32) + self.wrong_sums
        return self.status


class Gpu(NumpyDevice):
    """The CPU as a device that nvCOMP knows."""

    def __init__(self) -> None:
        super().__init__(staged=True, machine=machine(staged=True, decode=1e3))
        self.growth: list[int] = []
        self.machine = replace(self.machine, decodings=nvcomp.decodings(self))

    unshuffle = staticmethod(Decodes.unshuffle)

    def caller_lane(self) -> Any:
        lane: Any = super().caller_lane()
        lane.pointer = STREAM
        return lane

    def taken(self) -> int:
        return 0

    def note_growth(self, nbytes: int) -> None:
        self.growth.append(nbytes)

    def decoder(self, codec: str) -> Decoder | None:
        return nvcomp.decoder(self, codec)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Nothing is known of a library before, or after."""
    kept = nvcomp._path, nvcomp._functions, nvcomp._temporary, nvcomp.decoder
    for known in kept:
        known.cache_clear()
    yield
    for known in kept:
        known.cache_clear()


def installed(monkeypatch: pytest.MonkeyPatch, **options: Any) -> dict[str, Library]:
    """A library for each codec."""
    found = {codec: Library(codec, **options) for codec in nvcomp.NAMES}
    monkeypatch.setattr(nvcomp, "_path", lambda: "somewhere")
    monkeypatch.setattr(nvcomp, "_functions", lambda codec: (found[codec].size, found[codec].decode))
    monkeypatch.setattr(nvcomp, "_checksums", lambda: (found["gzip"].configure, found["gzip"].compute))
    for name in ("_path", "_functions"):
        monkeypatch.setattr(getattr(nvcomp, name), "cache_clear", lambda: None, raising=False)
    return found


@pytest.mark.skipif(native.chunks is None, reason="built without a C compiler")
@pytest.mark.parametrize("codec", nvcomp.CODECS)
def test_batches_come_to_the_library(codec: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    libraries, device, x = installed(monkeypatch), Gpu(), np.arange(3000.0).reshape(50, 60)
    inner = codec.removeprefix("blosc-")
    compressor = numcodecs.get_codec({"id": codec} if inner == codec else {"id": "blosc", "cname": inner, "shuffle": 2})
    path = tmp_path / "x.zarr"
    zarr.create_array(path, shape=x.shape, chunks=(8, 60), dtype="f8", compressors=compressor, zarr_format=2)[...] = x
    plan = cf.explain(np.negative, path, device=device, budget="400kB")
    assert f"{codec}, decoded on the device" in str(plan)
    assert plan.batches[0].temporary == 3 * plan.batches[0].decoded
    same(cf.map(np.negative, path, device=device, budget="400kB"), -x)
    # First a chunk of the decoder's trial, which is made once; then those of a run.
    assert libraries[inner].numbers[0] == 1
    assert sum(libraries[inner].numbers[1:]) == 7 * (8 if codec == "blosc-lz4" else 1)  # it has an item for each byte
    assert len(device.growth) == 1


@pytest.mark.parametrize("options", [{"status": 10}, {"wrong": 1}], ids=str)
def test_a_library_that_does_not_work_is_not_used(options: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, **options)
    assert [Gpu().decoder(codec) for codec in (*nvcomp.CODECS, "zlib")] == [None] * 6


def test_a_library_whose_checksums_are_wrong_decodes_no_gzip(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, wrong_sums=1)
    assert [codec for codec in nvcomp.CODECS if Gpu().decoder(codec) is None] == ["gzip"]


def test_chunks_that_are_not_put_together_right_are_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)

    class Wrong(Gpu):
        unshuffle = staticmethod(lambda where, facts, nbytes, out: out.fill(1))

    class Without(Gpu):
        unshuffle = None  # type: ignore[assignment]

    for device in (Wrong(), Without()):
        assert [device.decoder(codec) is None for codec in nvcomp.CODECS] == [False, False, True, True, False]


def test_a_refused_batch_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    libraries, device = installed(monkeypatch), Gpu()
    decode = device.decoder("zstd")
    assert decode is not None
    libraries["zstd"].status = 21
    table = np.zeros(ROWS, np.uint64)
    with pytest.raises(DeviceError, match=r"nvCOMP refuses a batch of 0 zstd items \(status 21\)"):
        decode(0, 1, table.ctypes.data, 0, 0)
    # What the library can't do fits no budget.
    assert device.machine.decodings[0].temporary(5, 1000, 5000) > 1 << 60


def package(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package as the extra installs it, with a library of this name that is none."""
    library = folder / "nvidia" / "libnvcomp" / "lib64" / name
    library.parent.mkdir(parents=True)
    (library.parent.parent / "__init__.py").touch()
    library.write_bytes(b"no library")
    monkeypatch.syspath_prepend(str(folder))
    for known in [key for key in sys.modules if key.split(".")[0] == "nvidia"]:
        monkeypatch.delitem(sys.modules, known)
    return library


def test_the_library_is_found_where_it_was_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = package(tmp_path, nvcomp.LIBRARY, monkeypatch)
    assert nvcomp._path() == str(library)
    device = Gpu()
    assert [d.codec for d in device.machine.decodings] == list(nvcomp.CODECS)
    assert device.decoder("zstd") is None  # it cannot be loaded


def test_another_version_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package(tmp_path, "libnvcomp.so.99", monkeypatch)
    device = Gpu()
    assert device.machine.decodings == ()
    assert device.decoder("zstd") is None


def test_the_environment_can_do_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package(tmp_path, nvcomp.LIBRARY, monkeypatch)
    monkeypatch.setenv("CHUNKFLOW_NVCOMP", "0")
    device = Gpu()
    assert device.machine.decodings == ()
    assert device.decoder("zstd") is None


def test_no_package_is_no_error() -> None:
    code = (
        "import sys; sys.modules['nvidia'] = None; sys.modules['nvidia.libnvcomp'] = None\n"
        "from chunkflow.devices.cuda import nvcomp\n"
        "assert nvcomp._path() is None and nvcomp.decodings(None) == ()\n"
        "assert nvcomp.decoder(1, 'zstd') is None and 'cupy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
