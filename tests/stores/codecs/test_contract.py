"""Every codec passes the contract suite."""

from __future__ import annotations

import gzip
import struct
import zlib
from typing import Any, ClassVar

import numcodecs
import numpy as np
import pytest

from chunkflow.stores.codecs import deflate, registry
from chunkflow.stores.codecs.crc32c import CHECKSUM, Crc32c
from chunkflow.stores.codecs.filters import filters
from chunkflow.stores.codecs.fletcher32 import Fletcher32
from chunkflow.stores.codecs.shuffle import Shuffle
from chunkflow.stores.codecs.step import Codec, flat
from chunkflow.testing import CodecContract

WHOLE = (4, 8, 12, 64, 1004, 4096, 70_000)
"""Sizes of whole elements of 4 bytes."""


class TestZstd(CodecContract):
    def make(self) -> Codec:
        return registry.compressor(numcodecs.Zstd(1))


class TestZstdWithChecksum(CodecContract):
    def make(self) -> Codec:
        return registry.compressor(numcodecs.Zstd(1, checksum=True))


class TestBloscLz4(CodecContract):
    def make(self) -> Codec:
        return registry.compressor(numcodecs.Blosc("lz4", shuffle=1))


class TestBloscZstd(CodecContract):
    def make(self) -> Codec:
        return registry.compressor(numcodecs.Blosc("zstd", 1, shuffle=2))


class TestBloscOfBloscsOwn(CodecContract):
    def make(self) -> Codec:
        return registry.compressor(numcodecs.Blosc("blosclz", shuffle=0))


class TestLz4(CodecContract):
    def make(self) -> Codec:
        return registry.compressor(numcodecs.LZ4())


class TestLz4Blocks(CodecContract):
    """HDF5's frame, which is not written here: blocks of 1000 bytes, stored as they are where nothing is gained."""

    def make(self) -> Codec:
        return registry.HDF5[32004](())

    def encoded(self, codec: Codec, plain: Any) -> np.ndarray:
        data, side = flat(plain).tobytes(), 1000
        frame = struct.pack(">QI", len(data), side)
        for at in range(0, len(data), side):
            block = data[at : at + side]
            body = min(block, bytes(numcodecs.LZ4().encode(block))[4:], key=len)
            frame += struct.pack(">I", len(body)) + body
        return np.frombuffer(frame, np.uint8)


class Deflated(CodecContract):
    """With the packages of the extra ``fast``, whole chunks and large ones in pieces, and without."""

    @pytest.fixture(autouse=True, params=["fast", "large", "plain"])
    def packages(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        if request.param == "plain":
            monkeypatch.setattr(deflate, "package", lambda name: None)
        elif deflate.package("deflate") is None or deflate.package("isal") is None:
            pytest.skip("the extra `fast` is not installed")
        elif request.param == "large":
            monkeypatch.setattr(deflate, "_LARGE", 0)


class TestGzip(Deflated):
    def make(self) -> Codec:
        return registry.compressor(numcodecs.GZip(1))

    @pytest.mark.parametrize("level", [0, 1, 5, 6, 9])
    def test_other_programs_read_it(self, level: int) -> None:
        plain = np.arange(9000, dtype="i2")
        codec = registry.compressor(numcodecs.GZip(level))
        assert gzip.decompress(flat(codec.encode(plain)).tobytes()) == plain.tobytes()

    @pytest.mark.parametrize(
        "behind",
        [b"garbage!", gzip.compress(b"", mtime=0)[:5], b"\x1f\x8b\x08"],
        ids=["no member", "a cut one", "its first bytes"],
    )
    def test_what_lies_behind_a_file_is_refused(self, behind: bytes) -> None:
        plain = bytes(range(256)) * 8
        raw = np.frombuffer(gzip.compress(plain) + behind, "u1")
        self.check_refused(lambda: self.decode(self.make(), raw, len(plain)))

    def test_two_members_that_are_alike_are_two(self) -> None:
        plain = bytes(range(256)) * 8
        raw = np.frombuffer(2 * gzip.compress(plain), "u1")
        self.check_refused(lambda: self.decode(self.make(), raw, len(plain)))
        assert self.decode(self.make(), raw, 2 * len(plain)).tobytes() == 2 * plain

    def test_a_wrong_checksum_of_a_header_is_refused(self) -> None:
        plain = bytes(range(256)) * 8
        whole = bytearray(gzip.compress(plain))
        whole[3] |= 2
        raw = np.frombuffer(bytes(whole[:10]) + b"\0\0" + bytes(whole[10:]), "u1")
        self.check_refused(lambda: self.decode(self.make(), raw, len(plain)))

    @pytest.mark.parametrize("second", [b"", b"more", bytes(500)])
    def test_members_are_joined(self, second: bytes) -> None:
        first = bytes(range(256)) * 8
        raw = np.frombuffer(gzip.compress(first) + gzip.compress(second), "u1")
        joined = self.decode(self.make(), raw, len(first + second))
        assert joined.tobytes() == first + second
        if second:
            self.check_refused(lambda: self.decode(self.make(), raw, len(first)))


class TestZlib(Deflated):
    def make(self) -> Codec:
        return registry.compressor(numcodecs.Zlib(1))

    @pytest.mark.parametrize("level", [-1, 0, 2, 6, 9])
    def test_other_programs_read_it(self, level: int) -> None:
        plain = np.arange(9000, dtype="i2")
        codec = registry.compressor(numcodecs.Zlib(level))
        assert zlib.decompress(flat(codec.encode(plain)).tobytes()) == plain.tobytes()


class TestFletcher32(CodecContract):
    def make(self) -> Codec:
        return Fletcher32()


@pytest.mark.skipif(CHECKSUM is None, reason="no package has the checksum")
class TestCrc32c(CodecContract):
    def make(self) -> Codec:
        return Crc32c.installed()


class TestShuffle(CodecContract):
    sizes = WHOLE

    def make(self) -> Codec:
        return Shuffle(4)


class Filter(CodecContract):
    sizes = WHOLE
    given: ClassVar[Any]

    def make(self) -> Codec:
        (found,) = filters([self.given], np.dtype("i4"))
        return found


class TestDelta(Filter):
    given = numcodecs.Delta("i4")


class TestAsType(Filter):
    given = numcodecs.AsType("i8", "i4")
