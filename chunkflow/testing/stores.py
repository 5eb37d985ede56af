"""Contract suites that every store passes.

A store's test subclasses a suite, says in `make` how to get at the store, and inherits every test:

    class TestMyStore(SourceContract):
        def make(self, tmp_path, array):
            return MySource(save(tmp_path, array))

A format that others have too is held to what they make of it: `SourceContract.foreign_writers` names programs that
write it, `SinkContract.foreign_readers` programs that read it.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chunkflow.core.grid import Grid, Region, Shape, permuted, shape_of, whole
from chunkflow.core.spec import ArraySpec, ByteRun
from chunkflow.errors import ArgumentError, ArgumentTypeError, ChunkflowError, OutputExistsError, ReadError, WriteError
from chunkflow.stores import Sink, Source, Target, open_source, open_target
from chunkflow.stores.identity import Identity
from chunkflow.stores.protocol import guards_of, run_of
from chunkflow.testing.arrays import filled, laid_out
from chunkflow.testing.foreign import ForeignReader, ForeignWriter, has

_LAYOUTS = ("C", "F", "strided", "reversed")
_THREADS = 4
_modest = settings(
    # Most examples make files: fewer of them, in proportion to what the profile asks for.
    max_examples=max(5, settings().max_examples // 4),
    deadline=None,
    # Every example makes a directory of its own, and an inherited test has one executor per store.
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.differing_executors,
        HealthCheck.too_slow,
    ],
)
_shapes = st.lists(st.integers(1, 9), max_size=4).map(tuple)


@st.composite
def _regions(draw: st.DrawFn, shape: Shape) -> Region:
    starts = [draw(st.integers(0, n - 1)) for n in shape]
    return tuple(slice(a, draw(st.integers(a + 1, n))) for a, n in zip(starts, shape, strict=True))


def _fresh(tmp_path: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=tmp_path))


def _part(array: np.ndarray, region: Region) -> np.ndarray:
    return np.asarray(array[region])


def _foreign(dtypes: Sequence[str]) -> list[np.ndarray]:
    """Arrays that other programs write and read: of each dtype, and of several shapes."""
    return [filled((23, 17), dtype) for dtype in dtypes] + [filled(n, dtypes[0]) for n in ((2, 5, 3), (1,), ())]


def _replaced(path: str) -> None:
    """Put an equal file or folder in the place of one."""
    (shutil.copytree if os.path.isdir(path) else shutil.copy2)(path, f"{path}.copy")
    os.rename(path, f"{path}.old")
    os.rename(f"{path}.copy", path)


def _touched(path: str) -> None:
    """Let a file look as if it had been written long ago."""
    os.utime(path, (1, 1))


def _removed(path: str) -> None:
    os.rename(path, f"{path}.old")


def _concurrently(work: Any, items: list[Any]) -> None:
    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(work, items):
            pass


def moved_by(run: ByteRun, dtype: np.dtype, shape: Shape) -> np.ndarray:
    """The elements that a run of bytes tells of."""
    left, at, rows = math.prod(shape) * dtype.itemsize, 0, []
    while left > 0:
        plane, row = divmod(at, run.height)
        start = row * run.pitch if run.rows is None else int(run.rows[row])
        place, nbytes = run.position + plane * run.plane + start, min(run.width, left)
        rows.append(ctypes.string_at(place, nbytes) if run.fd is None else os.pread(run.fd, nbytes, place))
        left, at = left - nbytes, at + 1
    found = np.frombuffer(b"".join(rows), f"u{run.swap}" if run.swap else "u1")
    return (found.byteswap() if run.swap else found).view(dtype).reshape(shape)


class SourceContract:
    """What every `Source` does. Subclasses override `make`, and `foreign_writers` if there are any.

    `make` should store the array as others write the format, and not by the format's own target.

    Attributes
    ----------
    dtypes : tuple of str
        Dtypes of the arrays that are stored, in either byte order.
    """

    dtypes: ClassVar[tuple[str, ...]] = ("f4", "?", "c16", "i2", "f2", ">f8", ">c8")

    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        """Source of a copy of `array`, stored somewhere below `tmp_path` if anywhere."""
        raise NotImplementedError

    def foreign_writers(self) -> Sequence[ForeignWriter]:
        """Other programs that write the format. What they write is opened by its path, and compared."""
        return ()

    def check(self, source: Source, array: np.ndarray, region: Region, layout: str = "C") -> None:
        """Compare a region with NumPy's own."""
        out = laid_out(shape_of(region), source.spec.dtype, layout)
        source.read(region, out)
        np.testing.assert_array_equal(out, _part(array, region))
        if out.size and (run := run_of(source, region)) is not None:  # what compiled loops would move
            inverse = np.argsort(source.spec.order)
            moved = moved_by(run, source.spec.dtype, permuted(out.shape, source.spec.order)).transpose(inverse)
            np.testing.assert_array_equal(moved, _part(array, region))

    def test_what_other_programs_write_is_read(self, tmp_path: Path) -> None:
        writers = self.foreign_writers()
        if not writers:
            pytest.skip("no other program writes it")
        for writer in writers:
            for array in _foreign(self.dtypes):
                if not has(writer, array.dtype):
                    continue
                with closing(open_source(writer.write(array, _fresh(tmp_path)))) as source:
                    native = array.dtype.newbyteorder("=")
                    assert (source.spec.shape, source.spec.dtype) == (array.shape, native), writer.name
                    out = np.empty(array.shape, native)
                    source.read(whole(array.shape), out)
                    np.testing.assert_array_equal(out, array, f"{array.dtype} by {writer.name}")

    @pytest.mark.parametrize("dtype", ["f4", ">i2", "?"])
    def test_spec(self, tmp_path: Path, dtype: str) -> None:
        array = filled((6, 5, 4), dtype)
        with closing(self.make(tmp_path, array)) as source:
            spec = source.spec
            assert spec.shape == array.shape
            assert spec.dtype == array.dtype.newbyteorder("=")
            assert spec.dtype.isnative
            assert sorted(spec.order) == [0, 1, 2]
            assert spec.name
            assert spec.chunks is None or (len(spec.chunks) == 3 and min(spec.chunks) > 0)

    @given(data=st.data())
    @_modest
    def test_random_regions_equal_numpy(self, tmp_path: Path, data: st.DataObject) -> None:
        array = filled(data.draw(_shapes), data.draw(st.sampled_from(self.dtypes)))
        with closing(self.make(_fresh(tmp_path), array)) as source:
            for _ in range(5):
                region = data.draw(_regions(array.shape))
                self.check(source, array, region, data.draw(st.sampled_from(_LAYOUTS)))

    @pytest.mark.parametrize("layout", _LAYOUTS)
    @pytest.mark.parametrize("shape", [(9, 7, 8), (130, 65), (1,), (1, 1, 1), (), (0,), (3, 0, 2)])
    def test_the_whole_array_at_once(self, tmp_path: Path, shape: Shape, layout: str) -> None:
        array = filled(shape, "f4")
        with closing(self.make(tmp_path, array)) as source:
            self.check(source, array, whole(shape), layout)

    def test_a_single_element(self, tmp_path: Path) -> None:
        array = filled((6, 5), "f8")
        with closing(self.make(tmp_path, array)) as source:
            self.check(source, array, (slice(5, 6), slice(4, 5)))

    def test_several_threads_read_at_once(self, tmp_path: Path) -> None:
        array = filled((24, 18, 7), "i4")
        with closing(self.make(tmp_path, array)) as source:
            grid = Grid(array.shape, (5, 4, 7))
            regions = [grid.region(index) for index in grid.walk((0, 1, 2))]
            _concurrently(lambda region: self.check(source, array, region), 4 * regions)

    def test_views_are_read_only_and_where_promised(self, tmp_path: Path) -> None:
        array = filled((6, 5), "f4")
        with closing(self.make(tmp_path, array)) as source:
            for region in ((slice(1, 4), slice(0, 5)), (slice(1, 4), slice(1, 3))):
                view = source.view(region)
                assert (view is not None) == source.spec.storage.in_memory
                if view is not None:
                    np.testing.assert_array_equal(view, array[region])
                    assert view.dtype == source.spec.dtype
                    assert not view.flags.writeable

    def test_a_footprint_equals_itself(self, tmp_path: Path) -> None:
        with closing(self.make(tmp_path, filled((6, 5), "f4"))) as source:
            if source.footprint is not None:
                assert source.footprint.overlaps(source.footprint)
                assert source.footprint == source.footprint

    @pytest.mark.parametrize("change", [_replaced, _touched, _removed])
    def test_a_change_of_its_files_is_noticed(self, tmp_path: Path, change: Callable[[str], None]) -> None:
        with closing(self.make(tmp_path, filled((6, 5), "f4"))) as source:
            places = {place for guard in guards_of([source]) for place in guard.places if os.path.exists(place)}
        if not places:
            pytest.skip("it has no files")
        for place in places:
            with closing(self.make(where := _fresh(tmp_path), filled((6, 5), "f4"))) as source:
                (guard,) = guards_of([source])
                guard.check()
                assert Identity.from_json(json.loads(json.dumps(guard.identity.to_json()))) == guard.identity
                changed = os.path.join(where, os.path.relpath(place, tmp_path))
                loose = guard.identity == guard.identity.loosened() or os.path.isdir(changed)  # only replaced or not
                change(changed)
                if change is _touched and loose:
                    guard.check()
                    continue
                with pytest.raises(ReadError, match="was changed while it was read"):
                    guard.check()
                assert not guard.identity.matches()

    def test_closing_twice_is_fine(self, tmp_path: Path) -> None:
        source = self.make(tmp_path, filled((6, 5), "f4"))
        source.close()
        source.close()


class SinkContract:
    """What every `Target` and its `Sink` do. Subclasses override `make`, and `fail_writes` if they can.

    Where others read the format too, they override `foreign_readers`, and say under which `name` the array lies. Where
    an array that exists has properties besides its values, `properties`.

    Attributes
    ----------
    dtypes : tuple of str
        Dtypes of the results that are written.
    existing : bool
        Whether the target is an array that exists before the run.
    name : str
        Path of the array in its directory, for `foreign_readers`.
    """

    dtypes: ClassVar[tuple[str, ...]] = ("f4", "?", "c16", "i2", "f2")
    existing: ClassVar[bool] = True
    name: ClassVar[str] = ""

    def make(self, tmp_path: Path, array: np.ndarray) -> Target:
        """Target for a result like `array`, which does not hold its values yet."""
        raise NotImplementedError

    def at(self, tmp_path: Path) -> str:
        """Path of the array."""
        return str(tmp_path / self.name)

    def foreign_readers(self) -> Sequence[ForeignReader]:
        """Other programs that read the format. They are given `at(tmp_path)`, and what they find is compared."""
        return ()

    def properties(self, tmp_path: Path) -> Any:
        """What others say of an array that exists, besides its values: a run leaves it as it is."""

    def leave(self, result: Any) -> None:
        """Close what `commit` returned, where other programs could not open the file before."""

    def fail_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let writes of sinks that are open already fail."""
        pytest.skip("writes to this store cannot fail")

    def names(self, tmp_path: Path) -> list[str]:
        """What lies where the target is made."""
        return sorted(os.listdir(tmp_path))

    def open(self, tmp_path: Path, array: np.ndarray, chunks: Shape | None = None) -> Sink:
        """Sink for a result like `array`."""
        target = self.make(tmp_path, array)
        return target.open(target.describe(array.shape, array.dtype, chunks))

    def values(self, result: Any) -> np.ndarray:
        """Elements of what `commit` returned."""
        return np.asarray(result[whole(result.shape)])

    def write(self, sink: Sink, array: np.ndarray, layout: str = "C") -> None:
        """Write the whole of `array` in one go."""
        if array.size:
            block = laid_out(array.shape, sink.spec.dtype, layout)
            block[...] = array
            sink.write(whole(array.shape), block)

    @given(data=st.data())
    @_modest
    def test_random_tilings_written_by_threads(self, tmp_path: Path, data: st.DataObject) -> None:
        array = filled(data.draw(_shapes), data.draw(st.sampled_from(self.dtypes)))
        wish = data.draw(st.none() | st.tuples(*(st.integers(1, n + 1) for n in array.shape)))
        sink = self.open(_fresh(tmp_path), array, wish)
        layout = data.draw(st.sampled_from(_LAYOUTS))
        regions = data.draw(st.permutations(list(_tiling(data, sink.spec))))

        def write(region: Region) -> None:
            block = laid_out(shape_of(region), sink.spec.dtype, layout)
            block[...] = _part(array, region)
            sink.write(region, block)
            # It may be a staging buffer that is filled again at once, or a user's read-only view.
            np.testing.assert_array_equal(block, _part(array, region))
            block[...] = 0

        _concurrently(write, regions)
        np.testing.assert_array_equal(self.values(sink.commit()), array)

    @pytest.mark.parametrize("layout", _LAYOUTS)
    @pytest.mark.parametrize("shape", [(9, 7, 8), (130, 65), (1, 1), (), (0,), (3, 0, 2)])
    def test_the_whole_array_at_once(self, tmp_path: Path, shape: Shape, layout: str) -> None:
        array = filled(shape, "f4")
        sink = self.open(tmp_path, array)
        self.write(sink, array, layout)
        result = sink.commit()
        assert tuple(result.shape) == shape
        np.testing.assert_array_equal(self.values(result), array)

    def write_by_chunks(self, sink: Sink, array: np.ndarray) -> None:
        """Write `array` in blocks of the store's chunks."""
        if array.size:
            grid = Grid(array.shape, sink.spec.chunks or tuple(-(-n // 2) for n in array.shape))
            for region in (grid.region(index) for index in grid.walk(tuple(range(array.ndim)))):
                sink.write(region, np.array(array[region], sink.spec.dtype, order="C"))

    def check_foreign(self, tmp_path: Path, array: np.ndarray) -> None:
        """Compare what each of the other programs reads."""
        for reader in self.foreign_readers():
            if has(reader, array.dtype):
                found = reader.read(self.at(tmp_path))
                assert found.shape == array.shape, reader.name
                assert found.dtype.newbyteorder("=") == array.dtype, reader.name
                np.testing.assert_array_equal(found, array, f"{array.dtype} by {reader.name}")

    def test_other_programs_read_what_is_written(self, tmp_path: Path) -> None:
        if not self.foreign_readers():
            pytest.skip("no other program reads it")
        for array in _foreign(self.dtypes):
            there = _fresh(tmp_path)
            sink = self.open(there, array)
            before = self.properties(there) if self.existing else None
            self.write_by_chunks(sink, array)
            result = sink.commit()
            assert before == (self.properties(there) if self.existing else None)
            self.leave(result)
            self.check_foreign(there, array)

    def test_spec(self, tmp_path: Path) -> None:
        array = filled((6, 5), "f4")
        target = self.make(tmp_path, array)
        spec = target.describe(array.shape, array.dtype, None)
        assert (spec.shape, spec.dtype) == (array.shape, array.dtype)
        assert spec.name
        assert target.name

    def test_an_array_that_does_not_suit_is_refused(self, tmp_path: Path) -> None:
        target = self.make(tmp_path, filled((6, 5), "f4"))
        if not self.existing:
            assert target.describe((5, 6), np.dtype("f4"), None).shape == (5, 6), "the target is made to suit"
            return
        with pytest.raises(ArgumentError, match=r"\(6, 5\)"):
            target.describe((5, 6), np.dtype("f4"), None)
        with pytest.raises(ArgumentTypeError, match="complex64"):
            target.describe((6, 5), np.dtype("c8"), None)

    def test_an_abort_leaves_nothing_behind(self, tmp_path: Path) -> None:
        array = filled((6, 5), "f4")
        target = self.make(tmp_path, array)
        before = self.names(tmp_path)
        sink = target.open(target.describe(array.shape, array.dtype, None))
        self.write(sink, array)
        sink.abort()
        sink.abort()
        assert self.names(tmp_path) == before

    def test_a_failed_write_is_a_write_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        array = filled((6, 5), "f4")
        target = self.make(tmp_path, array)
        before = self.names(tmp_path)
        sink = target.open(target.describe(array.shape, array.dtype, None))
        with monkeypatch.context() as patch:
            self.fail_writes(patch)
            with pytest.raises(WriteError) as caught:
                self.write(sink, array)
        assert caught.value.region == whole(array.shape)
        assert sink.spec.name in str(caught.value)
        sink.abort()
        assert self.names(tmp_path) == before


class PathSinkContract(SinkContract):
    """What every sink does that creates its array at a path. Subclasses say under which `name`.

    Attributes
    ----------
    name : str
        Path of the result in its directory.
    beside : tuple of str
        Names of further files in that directory, where an array has several.
    checksums : bool
        Whether new arrays have checksums by default.
    """

    existing = False
    beside: ClassVar[tuple[str, ...]] = ()
    checksums: ClassVar[bool] = False

    def test_a_flipped_bit_is_noticed(self, tmp_path: Path) -> None:
        if not self.checksums:
            pytest.skip("what it creates has no checksums")
        array = filled((23, 17), "f4")
        self.store(tmp_path, array)
        files = [path for path in (tmp_path / self.name).rglob("*") if path.is_file() and path.suffix != ".json"]
        assert files
        for path in files:
            raw = path.read_bytes()
            for at in range(0, len(raw), -(-len(raw) // 32)):
                path.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << at % 8]) + raw[at + 1 :])
                with closing(open_source(self.at(tmp_path))) as source, pytest.raises(ReadError, match=path.name):
                    source.read(whole(array.shape), np.empty(array.shape, "f4"))
            path.write_bytes(raw)

    @property
    def entries(self) -> list[str]:
        """Names in the directory that has the finished array and nothing else."""
        return sorted([self.name.split("/")[0], *self.beside])

    def make(self, tmp_path: Path, array: np.ndarray, *, overwrite: bool = False) -> Target:
        """Target of that name in `tmp_path`."""
        return open_target(self.at(tmp_path), overwrite=overwrite)

    def check_unseen(self, tmp_path: Path) -> None:
        """Nobody finds an array before it is complete."""
        assert not (tmp_path / self.name).exists()
        assert all(name.startswith(".") for name in self.names(tmp_path))

    def put_stranger(self, tmp_path: Path) -> Callable[[], bytes]:
        """Put something else where the result will be; a function that reads it."""
        path = tmp_path / self.name / "photo.jpg"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"dear")
        return path.read_bytes

    def put_other(self, tmp_path: Path, array: np.ndarray) -> None:
        """Put an array where the result will be, as somebody else does meanwhile, who knows nothing of runs."""
        other = tmp_path.with_name(f"{tmp_path.name}-other")
        other.mkdir()
        self.store(other, array)
        for name in self.names(other):
            os.rename(other / name, tmp_path / name)

    def store(self, tmp_path: Path, array: np.ndarray) -> None:
        """Put `array` where the target will be."""
        sink = self.open(tmp_path, array)
        self.write(sink, array)
        sink.commit()

    def stored(self, tmp_path: Path) -> np.ndarray:
        """What lies where the target will be."""
        with closing(open_source(self.at(tmp_path))) as source:
            out = np.empty(source.spec.shape, source.spec.dtype)
            source.read(whole(out.shape), out)
        return out

    def test_it_appears_when_it_is_complete(self, tmp_path: Path) -> None:
        array = filled((6, 5), "f4")
        target = self.make(tmp_path, array)
        spec = target.describe(array.shape, array.dtype, None)
        assert not self.names(tmp_path)
        sink = target.open(spec)
        self.write(sink, array)
        self.check_unseen(tmp_path)
        sink.commit()
        assert self.names(tmp_path) == self.entries
        np.testing.assert_array_equal(self.stored(tmp_path), array)

    def test_a_result_in_fortran_order(self, tmp_path: Path) -> None:
        """A run asks for it where its sources lie so. The store may keep another order; the array is the same."""
        array = filled((3, 4, 5), "f4")
        target = self.make(tmp_path, array)
        spec = target.describe(array.shape, array.dtype, None)
        if spec.chunks is not None or not getattr(target, "takes_order", False):
            pytest.skip("no run asks for it")
        sink = target.open(replace(spec, order=(2, 1, 0)))
        self.write(sink, array, "F")
        np.testing.assert_array_equal(self.values(sink.commit()), array)
        np.testing.assert_array_equal(self.stored(tmp_path), array)

    def test_an_existing_path_is_refused_and_kept(self, tmp_path: Path) -> None:
        old = filled((3, 4), "i2")
        self.store(tmp_path, old)
        with pytest.raises(OutputExistsError, match="overwrite=True") as caught:
            self.make(tmp_path, old)
        assert self.at(tmp_path) in str(caught.value)
        np.testing.assert_array_equal(self.stored(tmp_path), old)

    def test_a_path_that_appears_during_the_run_is_kept(self, tmp_path: Path) -> None:
        old, new = filled((3, 4), "i2"), filled((6, 5), "f4")
        sink = self.open(tmp_path, new)
        self.write(sink, new)
        self.put_other(tmp_path, old)
        with pytest.raises(OutputExistsError):
            sink.commit()
        np.testing.assert_array_equal(self.stored(tmp_path), old)
        assert self.names(tmp_path) == self.entries

    @pytest.mark.parametrize("succeeds", [True, False])
    def test_overwriting_keeps_the_old_array_until_the_end(self, tmp_path: Path, succeeds: bool) -> None:
        old, new = filled((3, 4), "i2"), filled((6, 5), "f4")
        self.store(tmp_path, old)
        target = self.make(tmp_path, new, overwrite=True)
        sink = target.open(target.describe(new.shape, new.dtype, None))
        self.write(sink, new)
        np.testing.assert_array_equal(self.stored(tmp_path), old)
        if succeeds:
            np.testing.assert_array_equal(self.values(sink.commit()), new)
        else:
            sink.abort()
        np.testing.assert_array_equal(self.stored(tmp_path), new if succeeds else old)
        assert self.names(tmp_path) == self.entries

    def test_other_programs_read_what_replaced_an_array(self, tmp_path: Path) -> None:
        if not self.foreign_readers():
            pytest.skip("no other program reads it")
        for old, new in ((filled((3, 4), "i2"), filled((6, 5), "f4")), (filled((7,), "f4"), filled((7,), "f4") + 1)):
            there = _fresh(tmp_path)
            first = self.open(there, old)
            self.write(first, old)
            self.leave(first.commit())
            target = self.make(there, new, overwrite=True)
            sink = target.open(target.describe(new.shape, new.dtype, None))
            self.write_by_chunks(sink, new)
            self.leave(sink.commit())
            self.check_foreign(there, new)

    def test_what_is_no_array_is_never_overwritten(self, tmp_path: Path) -> None:
        read = self.put_stranger(tmp_path)
        with pytest.raises(ArgumentError, match="not overwritten"):
            self.make(tmp_path, filled((3,), "f4"), overwrite=True)
        assert read() == b"dear"

    def test_files_in_no_known_format_are_never_overwritten(self, tmp_path: Path) -> None:
        """Files beside them neither."""
        if "/" in self.name or "://" in self.at(tmp_path):
            pytest.skip("the result is no file in that directory")
        for name in self.entries:
            (tmp_path / name).write_bytes(b"dear")
        with pytest.raises(ChunkflowError):
            self.make(tmp_path, filled((3,), "f4"), overwrite=True)
        assert {name: (tmp_path / name).read_bytes() for name in self.names(tmp_path)} == dict.fromkeys(
            self.entries, b"dear"
        )

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_files_that_were_beside_it_before_are_kept(self, tmp_path: Path, overwrite: bool) -> None:
        """They belong to no array that is replaced."""
        if not self.beside:
            pytest.skip("the array has no files beside it")
        array = filled((6, 5), "f4")
        for name in self.beside:
            there = _fresh(tmp_path)
            (there / name).write_bytes(b"dear")
            with pytest.raises(OutputExistsError, match="exists") as caught:
                self.make(there, array, overwrite=overwrite)
            assert str(there / name) in str(caught.value)
            (there / name).unlink()
            target = self.make(there, array, overwrite=overwrite)
            sink = target.open(target.describe(array.shape, array.dtype, None))
            self.write(sink, array)
            (there / name).write_bytes(b"dear")  # meanwhile
            with pytest.raises(OutputExistsError, match="exists"):
                sink.commit()
            assert (there / name).read_bytes() == b"dear"

    def test_a_link_to_nothing_is_followed(self, tmp_path: Path) -> None:
        """What is written through it is read through it, and by the name that it leads to."""
        if "/" in self.name or "://" in self.at(tmp_path):
            pytest.skip("the result has no file that a link could lead to")
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / self.name).symlink_to(tmp_path / "elsewhere" / self.name)
        array = filled((6, 5), "f4")
        for times in (1, -1):
            target = self.make(tmp_path, array, overwrite=times < 0)
            sink = target.open(target.describe(array.shape, array.dtype, None))
            self.write(sink, times * array)
            np.testing.assert_array_equal(self.values(sink.commit()), times * array)
            np.testing.assert_array_equal(self.stored(tmp_path), times * array)
            np.testing.assert_array_equal(self.stored(tmp_path / "elsewhere"), times * array)
        assert (tmp_path / self.name).is_symlink()
        assert self.names(tmp_path) == sorted(["elsewhere", self.name])

    def test_what_is_left_of_its_files_is_no_foreign_error(self, tmp_path: Path) -> None:
        """A file that is empty, cut or in disorder is a `ReadError`, say, or can still be read."""
        array = filled((6, 5), "f4")
        self.store(tmp_path, array)
        for name in filter(lambda name: (tmp_path / name).is_file(), self.entries):
            path = tmp_path / name
            whole_file = path.read_bytes()
            for damaged in (b"", whole_file[: len(whole_file) // 2], whole_file[::-1], b"[]", b'{"shape": [-3]}'):
                path.write_bytes(damaged)
                with suppress(ChunkflowError):
                    self.stored(tmp_path)
            path.write_bytes(whole_file)

    def test_a_missing_directory_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ArgumentError, match="no directory") as caught:
            open_target(tmp_path / "missing" / self.name)
        assert str(tmp_path / "missing") in str(caught.value)


def _tiling(data: st.DataObject, spec: ArraySpec) -> Iterator[Region]:
    """Regions that cover an array, cut along the chunks of its store."""
    units = spec.chunks or (1,) * len(spec.shape)
    block = tuple(unit * data.draw(st.integers(1, -(-n // unit))) for n, unit in zip(spec.shape, units, strict=True))
    grid = Grid(spec.shape, block)
    return (grid.region(index) for index in grid.walk(spec.order))
