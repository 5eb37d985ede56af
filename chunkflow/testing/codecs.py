"""Contract suite that every codec passes.

A codec's test subclasses the suite, says in `make` how to get at the codec, and inherits every test:

    class TestMyCodec(CodecContract):
        def make(self):
            return MyCodec()
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chunkflow.stores.codecs.step import Codec, decoded, flat, sizes_between

_THREADS = 4
_modest = settings(
    max_examples=max(5, settings().max_examples // 3),
    deadline=None,
    # An inherited test has one executor for each codec.
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)
_KINDS = ("constant", "repeating", "random")


def _plain(size: int, kind: str, seed: int = 0) -> np.ndarray:
    """Bytes that are all alike, that compress well, or that do not compress."""
    if kind == "constant":
        return np.full(size, seed % 256, np.uint8)
    if kind == "repeating":
        return (np.arange(size) // 4 % (7 + seed % 5)).astype(np.uint8)
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


class CodecContract:
    """What every `chunkflow.stores.codecs.step.Codec` does. Subclasses override `make`.

    Errors of a chunk may be of any class: the store makes a `ReadError` of each. What a damaged chunk must not do is to
    end the process, to take memory beyond the chunk's size, or to give another number of bytes.

    Attributes
    ----------
    sizes : tuple of int
        Numbers of bytes that are encoded, from small to large. A codec of elements leaves out what is no whole number
        of them. There is no 0: no chunk is empty.
    """

    sizes: ClassVar[tuple[int, ...]] = (1, 2, 3, 7, 64, 1001, 4096, 70_001)

    def make(self) -> Codec:
        """The codec."""
        raise NotImplementedError

    def encoded(self, codec: Codec, plain: Any) -> np.ndarray:
        """A chunk, in memory that cannot be written, as that of a file that is mapped."""
        return np.frombuffer(flat(codec.encode(plain)).tobytes(), np.uint8)

    def decode(self, codec: Codec, raw: np.ndarray, size: int, out: np.ndarray | None = None) -> np.ndarray:
        """Decode a chunk of `size` bytes as the stores do."""
        return decoded(raw, (codec,), sizes_between((codec,), size), out)

    def check_refused(self, work: Callable[[], object]) -> None:
        """Check that work fails, and not for want of memory."""
        with pytest.raises(Exception) as caught:  # noqa: PT011 (each library has errors of its own)
            work()
        assert not isinstance(caught.value, MemoryError)

    # What it says of itself

    def test_it_describes_itself(self) -> None:
        codec = self.make()
        assert codec.name
        assert isinstance(codec.name, str)
        assert codec.copies >= 0

    @pytest.mark.parametrize("kind", _KINDS)
    def test_the_size_that_it_tells_is_true(self, kind: str) -> None:
        codec = self.make()
        for size in self.sizes:
            told = codec.size(size)
            assert told is None or len(self.encoded(codec, _plain(size, kind))) == told

    # Round trips

    @pytest.mark.parametrize("kind", _KINDS)
    def test_bytes_make_the_round_trip(self, kind: str) -> None:
        codec = self.make()
        for size in self.sizes:
            plain = _plain(size, kind)
            np.testing.assert_array_equal(self.decode(codec, self.encoded(codec, plain), size), plain)

    @given(data=st.data())
    @_modest
    def test_random_bytes_make_the_round_trip(self, data: st.DataObject) -> None:
        codec, size = self.make(), data.draw(st.sampled_from(self.sizes))
        part = data.draw(st.binary(min_size=1, max_size=200))
        plain = np.resize(np.frombuffer(part, np.uint8), size)
        out = data.draw(st.sampled_from([None, np.full(size, 99, np.uint8)]))
        np.testing.assert_array_equal(self.decode(codec, self.encoded(codec, plain), size, out), plain)

    @pytest.mark.parametrize("kind", _KINDS)
    def test_it_decodes_into_memory_that_it_is_given(self, kind: str) -> None:
        codec = self.make()
        for size in self.sizes:
            plain, room = _plain(size, kind), np.full(size + 2, 99, np.uint8)
            out = room[1:-1]
            self.decode(codec, self.encoded(codec, plain), size, out)
            np.testing.assert_array_equal(out, plain)
            assert room[0] == room[-1] == 99, "bytes beside the chunk's own were written"

    def test_a_chunk_may_lie_anywhere_in_memory(self) -> None:
        codec = self.make()
        for size in self.sizes:
            plain = _plain(size, "repeating")
            raw = self.encoded(codec, plain)
            for start in (1, 3, 8):  # as in a shard
                lying = np.concatenate([np.full(start, 7, np.uint8), raw, np.full(5, 7, np.uint8)])
                found = self.decode(codec, lying[start : start + len(raw)], size)
                np.testing.assert_array_equal(found, plain)

    def test_its_input_stays_as_it_was(self) -> None:
        codec = self.make()
        for size in self.sizes:
            plain = _plain(size, "random")
            source = plain.copy()
            raw = self.encoded(codec, source)
            chunk = raw.copy()
            self.decode(codec, chunk, size)
            np.testing.assert_array_equal(source, plain)
            np.testing.assert_array_equal(chunk, raw)

    def test_it_encodes_any_contiguous_buffer(self) -> None:
        codec, size = self.make(), 480
        plain = _plain(size, "repeating")
        fixed = plain.copy()
        fixed.flags.writeable = False
        for buffer in (fixed, plain.tobytes(), plain.view("f4").reshape(4, 5, 6), plain.view("i2").reshape(-1, 8)):
            np.testing.assert_array_equal(self.decode(codec, self.encoded(codec, buffer), size), plain)

    def test_several_threads_use_it_at_once(self) -> None:
        codec = self.make()

        def work(seed: int) -> None:
            for size in self.sizes:
                plain = _plain(size, _KINDS[seed % 3], seed)
                np.testing.assert_array_equal(self.decode(codec, self.encoded(codec, plain), size), plain)

        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(work, range(3 * _THREADS)))

    # Chunks that are not as they should be

    @given(data=st.data())
    @_modest
    def test_a_truncated_chunk_is_refused(self, data: st.DataObject) -> None:
        codec, size = self.make(), data.draw(st.sampled_from(self.sizes))
        raw = self.encoded(codec, _plain(size, data.draw(st.sampled_from(_KINDS))))
        cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
        self.check_refused(lambda: self.decode(codec, cut, size))

    @given(data=st.data())
    @_modest
    def test_a_damaged_chunk_is_refused_or_has_its_size(self, data: st.DataObject) -> None:
        codec, size = self.make(), data.draw(st.sampled_from(self.sizes))
        raw = self.encoded(codec, _plain(size, data.draw(st.sampled_from(_KINDS)))).copy()
        near = st.integers(0, min(len(raw), 24) - 1)  # headers claim sizes
        for at in data.draw(st.lists(near | st.integers(0, len(raw) - 1), min_size=1, max_size=4)):
            raw[at] = data.draw(st.integers(0, 255))
        self.check_size(codec, raw, size)

    @given(data=st.data())
    @_modest
    def test_any_bytes_are_refused_or_have_the_size(self, data: st.DataObject) -> None:
        raw = np.frombuffer(data.draw(st.binary(max_size=80)), np.uint8)
        self.check_size(self.make(), raw, data.draw(st.sampled_from((0, *self.sizes))))

    def check_size(self, codec: Codec, raw: np.ndarray, size: int) -> None:
        """Decode what may be no chunk: fail, or give exactly `size` bytes and write none beside them."""
        room = np.full(size + 32, 99, np.uint8)
        out = room[16:-16]
        try:
            found = self.decode(codec, raw, size, out)
        except MemoryError:
            raise
        except Exception:
            found = out
        assert len(found) == size
        assert (room[:16] == 99).all()
        assert (room[-16:] == 99).all()

    def test_a_chunk_of_another_size_is_refused(self) -> None:
        codec = self.make()
        for size, other in pairwise(self.sizes):
            for kind in _KINDS:
                small, large = (self.encoded(codec, _plain(n, kind)) for n in (size, other))
                self.check_refused(lambda raw=small, n=other: self.decode(codec, raw, n))  # type: ignore[misc]
                self.check_refused(lambda raw=large, n=size: self.decode(codec, raw, n))  # type: ignore[misc]

    def test_a_chunk_that_holds_much_more_is_not_decoded(self) -> None:
        codec, most = self.make(), 32 << 20
        if codec.size(most) is not None:
            pytest.skip("a chunk is as long as what it holds, and its length is checked before")
        bomb = self.encoded(codec, np.zeros(most, np.uint8))
        assert _peak(lambda: self.check_refused(lambda: self.decode(codec, bomb, 64))) < 4 << 20

    # Memory

    @pytest.mark.parametrize("kind", ["repeating", "random"])
    def test_it_takes_no_more_memory_than_it_says(self, kind: str) -> None:
        codec, size = self.make(), 1 << 20
        plain = _plain(size, kind)
        raw, out = self.encoded(codec, plain), np.empty(size, np.uint8)
        most = (1 + codec.copies) * size + (64 << 10)  # the result too
        assert _peak(lambda: self.decode(codec, raw, size, out)) <= most
        assert _peak(lambda: codec.encode(plain)) <= most


def _peak(work: Callable[[], Any]) -> int:
    """Most bytes that Python and NumPy take during a call."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
