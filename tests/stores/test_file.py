from __future__ import annotations

import errno
import os
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkflow.errors import ArgumentError, ReadError, WriteError
from chunkflow.grid import Region, shape_of, whole
from chunkflow.stores import Sink, Source, Target, file, open_source, open_target
from chunkflow.stores.array import ArraySource, ArrayTarget
from chunkflow.stores.file import FileSource
from chunkflow.stores.filesink import FileSink, FileTarget
from chunkflow.stores.mapped import mapped_file
from chunkflow.testing import SinkContract, SourceContract, filled, laid_out

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")

OFFSET = 24


def mapped(path: Path, array: np.ndarray, mode: Any = "r+", order: Any = "C") -> np.memmap:
    """Map a file that holds `array` behind a header and before a trailer."""
    path.write_bytes(b"h" * OFFSET + array.tobytes(order) + b"t" * 8)
    return np.memmap(path, array.dtype, mode, OFFSET, array.shape, order)


def no_space(*_: Any) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def descriptors_of(path: Path) -> int:
    return [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")].count(str(path))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scratch and gaps so small that small arrays take every way through the code."""
    monkeypatch.setattr(file, "SCRATCH", 64)
    monkeypatch.setattr("chunkflow.stores.filesink.SCRATCH", 64)
    monkeypatch.setattr("chunkflow.stores.filesink._WORTHWHILE", 0)
    monkeypatch.setattr(file, "_GAP", 8)


class TestMemmapSource(SourceContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        source = open_source(mapped(tmp_path / "data.bin", array, "r"))
        assert isinstance(source, FileSource) == bool(array.size)
        return source


class TestFortranMemmapSource(SourceContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        return open_source(mapped(tmp_path / "data.bin", array, "r", "F"))


@pytest.mark.usefixtures("tiny")
class TestTinyScratchSource(SourceContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        return open_source(mapped(tmp_path / "data.bin", array, "r", "F"))


class TestPrivateMemmapSource(SourceContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        source = open_source(mapped(tmp_path / "data.bin", array, "c"))
        assert isinstance(source, ArraySource)
        return source


class TestMemmapSink(SinkContract):
    order = "C"

    def make(self, tmp_path: Path, array: np.ndarray) -> Target:
        target = open_target(mapped(tmp_path / "data.bin", np.zeros_like(array), "r+", self.order))
        assert isinstance(target, FileTarget) == bool(array.size)
        return target

    def fail_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "pwritev", no_space)


class TestFortranMemmapSink(TestMemmapSink):
    order = "F"


@pytest.mark.usefixtures("tiny")
class TestTinyScratchSink(TestMemmapSink):
    order = "F"


class TestBigEndianMemmapSink(TestMemmapSink):
    def make(self, tmp_path: Path, array: np.ndarray) -> Target:
        return super().make(tmp_path, array.astype(array.dtype.newbyteorder(">")))


@st.composite
def views(draw: st.DrawFn, ndim: int) -> tuple[Any, ...]:
    """Index with steps, negative ones too, and a permutation of the axes."""
    steps = st.sampled_from([None, 2, 3, -1, -2])
    return tuple(slice(None, None, draw(steps)) for _ in range(ndim)), draw(st.permutations(range(ndim)))


@pytest.mark.parametrize("small", [False, True])
@given(view=views(3), data=st.data())
def test_any_view_of_a_memmap_is_read_at_positions(
    tmp_path_factory: pytest.TempPathFactory, small: bool, view: Any, data: st.DataObject
) -> None:
    array = filled((7, 9, 8), ">i4")
    base = mapped(tmp_path_factory.mktemp("view") / "data.bin", array, "r")
    index, axes = view
    seen, expected = base[index].transpose(axes), array[index].transpose(axes)
    starts = [data.draw(st.integers(0, n - 1)) for n in expected.shape]
    region = tuple(slice(a, data.draw(st.integers(a + 1, n))) for a, n in zip(starts, expected.shape, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        if small:
            patch.setattr(file, "SCRATCH", 64)
            patch.setattr(file, "_GAP", 8)
        source = open_source(np.asarray(seen))
        assert isinstance(source, FileSource)
        out = laid_out(shape_of(region), source.spec.dtype, data.draw(st.sampled_from(["C", "F"])))
        source.read(region, out)
        source.close()
    np.testing.assert_array_equal(out, expected[region])


@given(view=views(3), data=st.data())
def test_any_view_of_a_memmap_is_written_and_its_gaps_are_kept(
    tmp_path_factory: pytest.TempPathFactory, view: Any, data: st.DataObject
) -> None:
    array = filled((7, 9, 8), ">i4")
    base = mapped(tmp_path_factory.mktemp("view") / "data.bin", array)
    index, axes = view
    expected = array.copy()
    chosen = expected[index].transpose(axes)
    chosen[...] = -np.arange(chosen.size).reshape(chosen.shape)
    out = base[index].transpose(axes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chunkflow.stores.filesink.SCRATCH", data.draw(st.sampled_from([64, 1 << 20])))
        patch.setattr("chunkflow.stores.filesink._WORTHWHILE", data.draw(st.sampled_from([0, 1 << 20])))
        target = open_target(out)
        sink = target.open(target.describe(out.shape, np.dtype("i4"), None))
        sink.write(whole(out.shape), np.array(chosen, "i4", order=data.draw(st.sampled_from(["C", "F"]))))
        assert sink.commit() is out
    np.testing.assert_array_equal(base, expected)
    raw = Path(base.filename or "").read_bytes()
    assert (raw[:OFFSET], raw[-8:]) == (b"h" * OFFSET, b"t" * 8)


@pytest.mark.parametrize(
    "strides", [(0, 4), (4, 0), (4, 4), (0, 0), (40, -4)], ids=["rows", "columns", "windows", "one", "back"]
)
def test_repeated_and_overlapping_elements_are_read(tmp_path: Path, strides: tuple[int, int]) -> None:
    base = mapped(tmp_path / "data.bin", filled((100,), "i4"), "r")[10:]
    view = np.lib.stride_tricks.as_strided(base, (5, 7), strides)
    source = open_source(view)
    assert isinstance(source, FileSource)
    region = (slice(1, 5), slice(2, 7))
    out = np.empty((4, 5), "i4")
    source.read(region, out)
    source.close()
    np.testing.assert_array_equal(out, view[region])


def test_large_reads_go_straight_into_the_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = filled((64, 256, 32), "f4")
    source = open_source(mapped(tmp_path / "data.bin", array, "r", "F"))
    real, calls = os.preadv, []

    def preadv(fd: int, buffers: Any, at: int) -> int:
        calls.append(at)
        return real(fd, buffers, at)

    monkeypatch.setattr(os, "preadv", preadv)

    def no_scratch(*_: Any) -> np.ndarray:
        raise AssertionError("a contiguous run needs no scratch")

    monkeypatch.setattr(source, "borrow", no_scratch)
    out = np.empty((8, 256, 64), "f4").transpose(2, 1, 0)
    region = (slice(0, 64), slice(0, 256), slice(16, 24))
    source.read(region, out)
    source.close()
    np.testing.assert_array_equal(out, array[region])
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("region", "most"),
    [
        ((slice(0, 4096), slice(0, 256)), 65),  # half of each row: one covering span at a time
        ((slice(0, 4096), slice(7, 8)), 65),  # a column: rows are shorter than a call is dear
    ],
)
def test_scattered_reads_take_few_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, region: Region, most: int
) -> None:
    array = filled((4096, 512), "f4")
    source = open_source(mapped(tmp_path / "data.bin", array, "r"))
    real, sizes = os.preadv, []

    def preadv(fd: int, buffers: Any, at: int) -> int:
        sizes.append(len(buffers[0]))
        return real(fd, buffers, at)

    monkeypatch.setattr(os, "preadv", preadv)
    out = np.empty(shape_of(region), "f4")
    source.read(region, out)
    source.close()
    np.testing.assert_array_equal(out, array[region])
    assert len(sizes) <= most
    assert max(sizes) <= file.SCRATCH


def test_partial_transfers_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = filled((50, 3), "f4")
    base = mapped(tmp_path / "data.bin", array)
    read, write = os.preadv, os.pwritev
    monkeypatch.setattr(os, "preadv", lambda fd, b, at: read(fd, [b[0][:7]], at))
    monkeypatch.setattr(os, "pwritev", lambda fd, b, at: write(fd, [b[0][:7]], at))
    source, out = open_source(base), np.empty_like(array)
    source.read(whole(array.shape), out)
    source.close()
    np.testing.assert_array_equal(out, array)
    target = open_target(base)
    sink = target.open(target.describe(array.shape, array.dtype, None))
    sink.write(whole(array.shape), -array)
    sink.commit()
    np.testing.assert_array_equal(base, -array)


def test_a_file_truncated_after_opening_is_a_short_read(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    source = open_source(mapped(path, filled((1000, 1000), "f4"), "r"))
    os.truncate(path, 2_000_000)
    out = np.empty((1000, 1000), "f4")
    with pytest.raises(ReadError, match=r"short read.*2000000 bytes now") as caught:
        source.read(whole((1000, 1000)), out)
    assert caught.value.path == str(path)
    assert caught.value.region == whole((1000, 1000))
    source.read((slice(0, 2), slice(0, 1000)), out[:2])  # what is there can still be read
    source.close()


def test_a_file_truncated_before_opening_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    base = mapped(path, filled((1000, 1000), "f4"))
    os.truncate(path, 2_000_000)
    with pytest.raises(ReadError, match=r"2000000 bytes.*4000024"):
        open_source(base)
    with pytest.raises(WriteError, match=r"2000000 bytes.*4000024"):
        open_target(base)


def test_private_changes_are_seen(tmp_path: Path) -> None:
    base = mapped(tmp_path / "data.bin", filled((10,), "f4"), "c")
    base[3] = -1
    out = np.empty(10, "f4")
    source = open_source(base)
    source.read(whole((10,)), out)
    np.testing.assert_array_equal(out, base)
    assert out[3] == -1


def test_unflushed_changes_are_seen_and_so_are_writes(tmp_path: Path) -> None:
    base = mapped(tmp_path / "data.bin", filled((10,), "f4"))
    base[3] = -1
    out = np.empty(10, "f4")
    source = open_source(base)
    source.read(whole((10,)), out)
    source.close()
    assert out[3] == -1


@pytest.mark.parametrize("replace", [True, False])
def test_a_file_replaced_or_deleted_is_read_from_memory(tmp_path: Path, replace: bool) -> None:
    array = filled((10,), "f4")
    path = tmp_path / "data.bin"
    base = mapped(path, array, "r")
    if replace:
        (tmp_path / "new").write_bytes(b"\0" * 200)
        os.replace(tmp_path / "new", path)
    else:
        path.unlink()
    assert mapped_file(base) is None
    source = open_source(base)
    out = np.empty(10, "f4")
    source.read(whole((10,)), out)
    np.testing.assert_array_equal(out, array)


def test_a_path_with_spaces_and_odd_letters_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a b  (deleted) é\udcff.bin"
    array = filled((4, 5), "f4")
    base = mapped(path, array, "r")
    assert mapped_file(base[2:, ::-1]) == (str(path), OFFSET + 4 * (2 * 5 + 4))


def test_footprints_are_the_file_s(tmp_path: Path) -> None:
    base = mapped(tmp_path / "data.bin", filled((10, 1024), "f4"))
    other = np.memmap(tmp_path / "data.bin", "f4", "r", OFFSET, (10, 1024))
    source, target = open_source(other[:5]), open_target(base[:5])
    shifted, scattered = open_source(other[1:6]), open_target(base[:, ::2])
    assert source.footprint == target.footprint
    assert isinstance(target, FileTarget)
    assert isinstance(scattered, ArrayTarget)
    assert source.footprint is not None
    for another in (shifted.footprint, scattered.footprint):
        assert another is not None
        assert source.footprint.overlaps(another)
        assert source.footprint != another
    source.close()
    shifted.close()


def test_a_read_only_map_is_no_output(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="read-only"):
        open_target(mapped(tmp_path / "data.bin", filled((10,), "f4"), "r"))


def test_descriptors_are_released(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    base = mapped(path, filled((10,), "f4"))
    before = descriptors_of(path)  # the mapping keeps one itself
    source, target = open_source(base), open_target(base)
    assert descriptors_of(path) == before + 1
    sinks = [target.open(target.describe((10,), np.dtype("f4"), None)) for _ in range(2)]
    assert descriptors_of(path) == before + 3
    source.close()
    sinks[0].abort()
    sinks[1].commit()
    assert descriptors_of(path) == before


def test_a_size_limit_is_a_write_error(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(b"")
    sink: Sink = FileSink(str(path), 0, (1 << 16,), (8,), np.dtype("f8"))
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, old[1]))
    try:
        with pytest.raises(WriteError, match=r"\[0:65536\]") as caught:
            sink.write(whole((1 << 16,)), np.ones(1 << 16))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
        sink.abort()
    assert caught.value.errno == errno.EFBIG
