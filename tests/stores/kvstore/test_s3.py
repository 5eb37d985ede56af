"""Arrays in an object store: a server of the tests' own, that speaks S3's protocol."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.foreign import S3_READERS
from support.urlsinks import UrlSinkContract
from support.urlsinks import bucket as objects

import chunkflow as cf
from chunkflow.errors import ResumeError
from chunkflow.stores import Source, Target, open_source, open_target
from chunkflow.testing import ForeignReader, SinkContract, SourceContract, filled

pytest.importorskip("s3fs")
moto = pytest.importorskip("moto.server")


# Sessions are the file system's, which keeps them until Python ends.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    import s3fs

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        }.items():
            patch.setenv(name, value)
        s3fs.S3FileSystem().mkdir("tests")
        yield "s3://tests"
    server.stop()


def test_an_object_is_put_only_where_there_is_none(bucket: str, tmp_path: Path) -> None:
    there = objects(f"{bucket}{tmp_path}/only.zarr")
    assert there.create("maker", b"one")
    assert not there.create("maker", b"other")
    found = there.get("maker")
    assert found is not None
    assert found.tobytes() == b"one"


def test_a_run_that_ended_early_is_gone_on_with(bucket: str, tmp_path: Path) -> None:
    calls, x, url = list[int](), filled((40, 50), "f4"), f"{bucket}{tmp_path}/resumed.zarr"

    def fn(block: np.ndarray) -> np.ndarray:
        calls.append(0)
        if len(calls) == 15:
            raise StoppedError
        return -block

    call: dict[str, Any] = {"out": url, "chunks": (2, 50), "resume": True, "name": "minus", "device": "cpu"}
    with pytest.raises(StoppedError):
        cf.map(fn, x, **call)
    with pytest.raises(ResumeError, match="resume=True"):
        cf.map(fn, x, **call | {"resume": False, "name": None})
    np.testing.assert_array_equal(cf.map(fn, x, **call)[...], -x)
    assert len(calls) < 15 + 15
    assert {name.split("/")[0] for name in objects(url).names()} == {"c", "zarr.json"}


def test_a_run_over_objects_is_gone_on_with_while_they_are_the_same(bucket: str, tmp_path: Path) -> None:
    calls, x, url = list[int](), filled((40, 50), "f4"), f"{bucket}{tmp_path}/source.zarr"
    zarr.create_array(url, data=x, chunks=(2, 50))

    def fn(block: np.ndarray) -> np.ndarray:
        calls.append(0)
        if len(calls) == 15:
            raise StoppedError
        return -block

    call: dict[str, Any] = {"out": tmp_path / "y.npy", "chunks": (2, 50), "resume": True, "name": "minus"}
    with pytest.raises(StoppedError):
        cf.map(fn, url, device="cpu", **call)
    array = zarr.open_array(url)
    array[-2:] = 1
    with pytest.raises(ResumeError, match=r"source\.zarr\): its elements are others"):
        cf.map(fn, url, device="cpu", **call)
    array[-2:] = x[-2:]
    cf.clean(tmp_path)
    calls.clear()
    with pytest.raises(StoppedError):
        cf.map(fn, url, device="cpu", **call)
    np.testing.assert_array_equal(cf.map(fn, url, device="cpu", **call), -x)
    assert len(calls) < 15 + 15


class StoppedError(Exception):
    """What ends a run early."""


def chunks(array: np.ndarray) -> tuple[int, ...]:
    return tuple(max(1, n // 2) for n in array.shape)


class InBucket:
    @pytest.fixture(autouse=True)
    def in_bucket(self, bucket: str) -> None:
        self.bucket = bucket


class TestS3Source(InBucket, SourceContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        url = f"{self.bucket}{tmp_path}/x.zarr"
        made = zarr.create_array(url, shape=array.shape, dtype=array.dtype, chunks=chunks(array), overwrite=True)
        made[...] = array
        return open_source(url)


@pytest.mark.thorough  # what a URL's sink shows too
class TestS3Sink(InBucket, SinkContract):
    name = "y.zarr"

    def at(self, tmp_path: Path) -> str:
        return f"{self.bucket}{tmp_path}/{self.name}"

    def foreign_readers(self) -> Sequence[ForeignReader]:
        return S3_READERS

    def make(self, tmp_path: Path, array: np.ndarray) -> Target:
        return open_target(
            zarr.create_array(
                self.at(tmp_path), shape=array.shape, dtype=array.dtype, chunks=chunks(array), overwrite=True
            )
        )


class TestS3UrlSink(InBucket, UrlSinkContract):
    name = "run.zarr/speed"

    def foreign_readers(self) -> Sequence[ForeignReader]:
        return S3_READERS

    def root(self, tmp_path: Path) -> str:
        return f"{self.bucket}{tmp_path}"


def test_from_a_bucket_to_a_bucket(bucket: str) -> None:
    x = filled((40, 50), "f4")
    made = zarr.create_array(f"{bucket}/x.zarr", shape=x.shape, dtype="f4", chunks=(10, 50), shards=(20, 50))
    made[...] = x
    out = zarr.create_array(f"{bucket}/y.zarr", shape=x.shape, dtype="f4", chunks=(10, 25))
    cf.map(np.negative, f"{bucket}/x.zarr", out=out, device="cpu")
    np.testing.assert_array_equal(out[...], -x)
    assert open_target(out).describe(x.shape, out.dtype, None).storage.how.startswith("directly: ")
    made = cf.map(np.abs, out, out=f"{bucket}/new/z.zarr", device="cpu")
    np.testing.assert_array_equal(zarr.open_array(f"{bucket}/new/z.zarr", mode="r")[...], np.abs(x))
    assert not made.read_only
    np.testing.assert_allclose(cf.mean(f"{bucket}/y.zarr", axis=0, device="cpu"), -x.mean(axis=0), rtol=1e-6)


def test_what_is_not_there(bucket: str) -> None:
    for name in (f"{bucket}/z.zarr", "s3://nowhere/x.zarr"):
        with pytest.raises(cf.errors.SourceNotFoundError, match="no zarr array"):
            cf.sum(name, device="cpu")
