from __future__ import annotations

import errno
import mmap
import os
import resource
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.positions import at_positions, full_disk, no_space

from chunkflow.core.grid import Region, shape_of, whole
from chunkflow.errors import ArgumentError, ReadError, WriteError
from chunkflow.stores import Sink, Source, Target, open_source, open_target
from chunkflow.stores.file import memmap as mapped_module
from chunkflow.stores.file import strided, strided_sink
from chunkflow.stores.file.memmap import mapped_file, mapped_space
from chunkflow.stores.file.strided import FileSource, Strided
from chunkflow.stores.file.strided_sink import FileSink, FileTarget, reserve
from chunkflow.stores.memory import ArraySource, ArrayTarget
from chunkflow.testing import ForeignReader, SinkContract, SourceContract, filled, laid_out

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")

OFFSET = 24


def mapped(path: Path, array: np.ndarray, mode: Any = "r+", order: Any = "C") -> np.memmap:
    """Map a file that holds `array` behind a header and before a trailer."""
    path.write_bytes(b"h" * OFFSET + array.tobytes(order) + b"t" * 8)
    return np.memmap(path, array.dtype, mode, OFFSET, array.shape, order)


def descriptors_of(path: Path) -> int:
    return [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")].count(str(path))


@pytest.fixture
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs so short that small arrays are read and written run by run."""
    monkeypatch.setattr(strided, "RUN", 8)
    monkeypatch.setattr("chunkflow.stores.file.strided_sink._WORTHWHILE", 0)
    at_positions(monkeypatch)


class TestMemmapSource(SourceContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        source = open_source(mapped(tmp_path / "data.bin", array, "r"))
        assert isinstance(source, FileSource) == bool(array.size)
        return source


class TestFortranMemmapSource(SourceContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        return open_source(mapped(tmp_path / "data.bin", array, "r", "F"))


@pytest.mark.usefixtures("short_runs")
class TestShortRunsSource(SourceContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        return open_source(mapped(tmp_path / "data.bin", array, "r", "F"))


class TestPrivateMemmapSource(SourceContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        source = open_source(mapped(tmp_path / "data.bin", array, "c"))
        assert isinstance(source, ArraySource)
        return source


class TestMemmapSink(SinkContract):
    name, order = "data.bin", "C"

    def make(self, tmp_path: Path, array: np.ndarray) -> Target:
        self.base = mapped(tmp_path / self.name, np.zeros_like(array), "r+", self.order)
        target = open_target(self.base)
        assert isinstance(target, FileTarget) == bool(array.size)
        return target

    def foreign_readers(self) -> Sequence[ForeignReader]:
        def read(path: str) -> np.ndarray:
            elements = np.fromfile(path, self.base.dtype, self.base.size, offset=OFFSET)
            return elements.reshape(self.base.shape, order=self.order)

        return [ForeignReader("np.fromfile", read)]

    def properties(self, tmp_path: Path) -> Any:
        """What lies before and behind the elements."""
        found = (tmp_path / self.name).read_bytes()
        return found[:OFFSET], found[OFFSET + self.base.nbytes :]

    def fail_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        full_disk(monkeypatch)


class TestFortranMemmapSink(TestMemmapSink):
    order = "F"


@pytest.mark.usefixtures("short_runs")
class TestShortRunsSink(TestMemmapSink):
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
def test_any_view_of_a_memmap_is_read(
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
            patch.setattr(strided, "RUN", 8)
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
        if data.draw(st.booleans()):
            at_positions(patch)
        patch.setattr("chunkflow.stores.file.strided_sink._WORTHWHILE", data.draw(st.sampled_from([0, 1 << 20])))
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

    def no_mapping(*_: Any) -> np.ndarray:
        raise AssertionError("a contiguous run needs no mapping")

    monkeypatch.setattr(source, "mapped", no_mapping)
    out = np.empty((8, 256, 64), "f4").transpose(2, 1, 0)
    region = (slice(0, 64), slice(0, 256), slice(16, 24))
    source.read(region, out)
    source.close()
    np.testing.assert_array_equal(out, array[region])
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("region", "calls"),
    [
        ((slice(0, 64), slice(0, 1 << 16)), 64),  # half of each row: as much as a system call is worth
        ((slice(0, 64), slice(0, 1 << 15)), 0),
        ((slice(0, 64), slice(7, 8)), 0),
    ],
)
def test_short_runs_are_copied_from_a_mapping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, region: Region, calls: int
) -> None:
    array = filled((64, 1 << 17), "f4")
    source = open_source(mapped(tmp_path / "data.bin", array, "r"))
    real, seen = os.preadv, []

    def preadv(fd: int, buffers: Any, at: int) -> int:
        seen.append(at)
        return real(fd, buffers, at)

    monkeypatch.setattr(os, "preadv", preadv)
    out = np.empty(shape_of(region), "f4")
    source.read(region, out)
    source.close()
    np.testing.assert_array_equal(out, array[region])
    assert len(seen) == calls


def test_short_runs_of_a_file_that_was_truncated_are_a_short_read(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    source = open_source(mapped(path, filled((1000, 1000), "f4"), "r"))
    column = (slice(0, 1000), slice(3, 4))
    out = np.empty((1000, 1), "f4")
    source.read(column, out)  # the mapping is there now
    os.truncate(path, 2_000_000)
    with pytest.raises(ReadError, match=r"short read.*2000000 bytes now"):
        source.read(column, out)
    source.close()


def holes(path: Path, shape: tuple[int, ...]) -> np.memmap:
    """A memmap of a new file, of which nothing is on the disk yet."""
    return np.memmap(path, "f4", "w+", shape=shape)


@pytest.fixture
def in_place(tmp_path: Path) -> None:
    """Skip where files are not known to be written again where they are, or get no blocks beforehand."""
    with open(tmp_path / "probe", "wb") as stream:
        kind = strided_sink._file_system(stream.fileno())
        try:
            os.posix_fallocate(stream.fileno(), 0, 4096)
        except OSError:
            kind = ""
    if kind not in {*strided_sink.IN_PLACE, "tmpfs"}:
        pytest.skip(f"the file system is {kind or 'unknown'}")


def is_mapped(sink: Sink) -> bool:
    """Whether a sink writes through a mapping; it is closed."""
    assert isinstance(sink, FileSink)
    sink.write(whole(sink.spec.shape), np.ones(sink.spec.shape, sink.dtype))
    sink.close()
    return sink._maps


def opened(array: np.ndarray) -> Sink:
    target = open_target(array)
    return target.open(target.describe(array.shape, array.dtype, None))


@pytest.mark.usefixtures("in_place")
def test_a_new_file_is_given_its_blocks_and_then_mapped(tmp_path: Path) -> None:
    out = holes(tmp_path / "y.bin", (512, 1024))
    path = tmp_path / "y.bin"
    assert path.stat().st_blocks * 512 < path.stat().st_size
    assert is_mapped(opened(out))
    assert path.stat().st_blocks * 512 >= path.stat().st_size == out.nbytes
    np.testing.assert_array_equal(out, 1)


@pytest.mark.usefixtures("in_place")
def test_a_file_in_memory_is_mapped_and_one_on_the_disk_is_not(tmp_path: Path) -> None:
    out = mapped(tmp_path / "y.bin", filled((512, 1024), "f4"))
    assert is_mapped(opened(out))
    del out
    with open(tmp_path / "y.bin", "r+b") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            os.preadv(stream.fileno(), [bytearray(1)], 4096, os.RWF_NOWAIT)
            pytest.skip("this file system keeps every page")
        except BlockingIOError:
            pass
        except OSError:
            pytest.skip("this file system can't tell")
    again = np.memmap(tmp_path / "y.bin", "f4", "r+", OFFSET, (512, 1024))
    assert not is_mapped(opened(again))
    np.testing.assert_array_equal(again, 1)


@pytest.mark.usefixtures("in_place")
def test_only_the_part_that_is_written_is_given_blocks(tmp_path: Path) -> None:
    path = tmp_path / "y.bin"
    whole_file = np.memmap(path, "f4", "w+", shape=(1 << 14, 1024))  # 64 MB
    assert is_mapped(opened(whole_file[64:128]))
    assert path.stat().st_blocks * 512 < 1_000_000
    np.testing.assert_array_equal(whole_file[64:128], 1)


@pytest.mark.parametrize("how", ["no room", "refused"])
def test_a_disk_without_room_is_not_filled_by_asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    out = holes(tmp_path / "y.bin", (512, 1024))
    real = os.fstatvfs
    if how == "refused":
        monkeypatch.setattr(os, "posix_fallocate", no_space)
    else:
        monkeypatch.setattr(os, "posix_fallocate", None)  # it is not even called
        few = os.statvfs_result([*real(0)[:2], 100, 100, 100, *real(0)[5:]])
        monkeypatch.setattr(os, "fstatvfs", lambda fd: few)
    assert not is_mapped(opened(out)), "written at positions, where want of room is an error"
    np.testing.assert_array_equal(out, 1)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs tmpfs")
def test_a_file_in_memory_for_good_is_mapped() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        out = mapped(Path(folder) / "y.bin", filled((512, 1024), "f4"))
        with open(Path(folder) / "y.bin", "rb") as stream:
            if strided_sink._file_system(stream.fileno()) != "tmpfs":
                pytest.skip("no tmpfs")
        assert is_mapped(opened(out))


def test_what_may_be_written_elsewhere_is_not_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = mapped(tmp_path / "y.bin", filled((512, 1024), "f4"))
    monkeypatch.setattr(strided_sink, "_file_system", lambda fd: "btrfs")
    assert not is_mapped(opened(out))


@pytest.mark.usefixtures("in_place")
def test_blocks_behind_the_end_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "y.bin"
    out = holes(path, (512, 1024))
    with open(path, "r+b") as stream:
        os.posix_fallocate(stream.fileno(), out.nbytes, out.nbytes)
        os.truncate(path, out.nbytes)
        assert os.lseek(stream.fileno(), 0, os.SEEK_HOLE) == 0
    assert is_mapped(opened(out)), "after its own part has been given blocks"
    assert path.stat().st_blocks * 512 >= out.nbytes


@pytest.mark.parametrize("order", ["C", "F"])
def test_blocks_that_lie_otherwise_are_gathered_before_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: Any
) -> None:
    out = holes(tmp_path / "y.bin", (4000, 16))
    at_positions(monkeypatch)
    real, calls = os.pwritev, []

    def pwritev(fd: int, buffers: Any, at: int) -> int:
        calls.append(at)
        return real(fd, buffers, at)

    sink = opened(out)
    monkeypatch.setattr(os, "pwritev", pwritev)
    block = np.asarray(filled((4000, 16), "f4"), order=order)
    sink.write(whole((4000, 16)), block)
    sink.abort()
    assert len(calls) == 1
    np.testing.assert_array_equal(out, block)


@pytest.mark.usefixtures("in_place")
def test_a_file_truncated_while_it_is_written_is_a_write_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chunkflow.stores.file.strided_sink.FEW_CORES", 0)
    out = mapped(tmp_path / "y.bin", filled((512, 1024), "f4"))
    sink = opened(out)
    os.truncate(tmp_path / "y.bin", 1_000_000)
    with pytest.raises(WriteError, match="1000000 bytes now"):
        sink.write(whole((512, 1024)), np.ones((512, 1024), "f4"))
    sink.abort()


def test_partial_transfers_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_positions(monkeypatch)
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


def test_where_nothing_more_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_positions(monkeypatch)
    base = mapped(tmp_path / "data.bin", filled((50, 3), "f4"))
    write = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, b, at: write(fd, [b[0][:7]], at) if at % 12 == 0 else 0)
    target = open_target(base[10:])  # its first row lies at 144: behind 24 bytes and ten rows
    sink = target.open(target.describe((40, 3), base.dtype, None))
    with pytest.raises(WriteError, match="at offset 151"):
        sink.write(whole((40, 3)), np.zeros((40, 3), "f4"))
    sink.abort()


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


def test_a_mapping_is_looked_up_once_and_again_when_its_file_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []

    def counted(address: int) -> Any:
        looked.append(address)
        return line(address)

    line = mapped_module._line
    monkeypatch.setattr(mapped_module, "_line", counted)
    base = mapped(tmp_path / "a.bin", filled((4, 5), "f4"), "r")
    assert mapped_file(base) == (str(tmp_path / "a.bin"), OFFSET)
    assert mapped_file(base[1:]) == (str(tmp_path / "a.bin"), OFFSET + 4 * 5)
    assert len(looked) == 1
    (tmp_path / "a.bin").rename(tmp_path / "b.bin")
    assert mapped_file(base) == (str(tmp_path / "b.bin"), OFFSET)
    assert len(looked) == 2
    (tmp_path / "a.bin").write_bytes(bytes(200))
    assert mapped_file(base[2:]) == (str(tmp_path / "b.bin"), OFFSET + 4 * 10)
    assert len(looked) == 2


@pytest.mark.skipif(not hasattr(mmap.mmap, "madvise"), reason="needs madvise")
def test_arrays_of_a_mapping_that_has_several_lines_are_found(tmp_path: Path) -> None:
    page, path = mmap.PAGESIZE, tmp_path / "parts.bin"
    path.write_bytes(bytes(8 * page))
    with path.open("r+b") as opened:
        whole = np.frombuffer(mmap.mmap(opened.fileno(), 0), "u1")
    whole.base.obj.madvise(mmap.MADV_RANDOM, 2 * page, 2 * page)
    for start, stop in ((0, 1), (2, 4), (5, 8), (0, 2)):
        part = whole[start * page : stop * page]
        assert mapped_file(part) == (str(path), start * page)
        found = mapped_space(part)
        assert found is not None
        assert found[1] == start * page


def test_a_mapping_whose_size_was_changed_is_found(tmp_path: Path) -> None:
    path, size = tmp_path / "grown.bin", 4 * mmap.PAGESIZE
    path.write_bytes(bytes(size))
    with path.open("r+b") as opened:
        mapping = mmap.mmap(opened.fileno(), 0)
    assert mapped_file(np.frombuffer(mapping, "u1")) == (str(path), 0)
    mapping.resize(64 * size)
    assert mapped_file(np.frombuffer(mapping, "u1")[size:]) == (str(path), size)


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
    sink: Sink = FileSink(Strided(str(path), 0, (1 << 16,), (8,), np.dtype("f8")))
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


@pytest.mark.usefixtures("in_place")
@pytest.mark.parametrize("wide", [True, False])
def test_long_runs_of_a_new_file_go_to_positions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wide: bool) -> None:
    monkeypatch.setattr(strided_sink, "_file_system", lambda descriptor: "ext4")  # not in memory for good
    monkeypatch.setattr("chunkflow.stores.file.strided_sink.FEW_CORES", 0)
    real, calls = os.pwritev, []

    def pwritev(fd: int, buffers: Any, at: int) -> int:
        calls.append(at)
        return real(fd, buffers, at)

    monkeypatch.setattr(os, "pwritev", pwritev)
    shape = (4, 1 << 18)
    target = open_target(tmp_path / "y.npy")
    sink = target.open(target.describe(shape, np.dtype("f4"), None))
    block = filled(shape, "f4")
    if wide:
        sink.write(whole(shape), block)
    else:
        for start in range(0, shape[1], 1 << 10):
            part = (slice(0, 4), slice(start, start + (1 << 10)))
            sink.write(part, block[part])
    sink.commit()
    assert bool(calls) is wide
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), block)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs tmpfs")
@pytest.mark.parametrize("new", [True, False])
def test_in_memory_for_good_long_runs_go_through_a_mapping(new: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chunkflow.stores.file.strided_sink.FEW_CORES", 0)
    shape = (512, 1024)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "y.npy"
        target = open_target(path if new else holes(path, shape))
        sink: Any = target.open(target.describe(shape, np.dtype("f4"), None))
        inner = sink._file if new else sink
        if strided_sink._file_system(inner.fd) != "tmpfs":
            pytest.skip("no tmpfs")
        monkeypatch.setattr(os, "pwritev", lambda *_: pytest.fail("written at a position"))
        sink.write(whole(shape), filled(shape, "f4"))
        np.testing.assert_array_equal(sink.commit(), filled(shape, "f4"))


def test_a_file_has_its_size_even_where_no_block_can_be_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(b"")
    at_positions(monkeypatch)
    assert reserve(str(tmp_path / "x"), 1000) is False
    assert (tmp_path / "x").stat().st_size == 1000


def test_what_takes_too_long_to_tell_counts_as_an_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = mapped(tmp_path / "x.bin", filled((60, 70), "u1"))
    one, other = (open_source(base[:, start::2]).footprint for start in (0, 1))
    assert one is not None
    assert not one.overlaps(other)
    monkeypatch.setattr("chunkflow.stores.footprint._MAX_WORK", 0)
    assert one.overlaps(other)
