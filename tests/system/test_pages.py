"""Pages of new memory: made where the system can, and nothing that is there is changed."""

from __future__ import annotations

import mmap
import resource
import sys

import numpy as np
import pytest

import chunkflow as cf
from chunkflow.stores import memory
from chunkflow.system import pages
from chunkflow.system.pages import populate

MIB = 1 << 20

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux's system knows how")


@pytest.fixture
def asked(monkeypatch):
    """The arrays whose pages are asked for; they are not made."""
    found = []
    monkeypatch.setattr(memory, "populate", found.append)
    return found


@linux
def test_pages_are_made_by_one_who_fills_the_array_later(monkeypatch):
    monkeypatch.setattr(pages, "LEAST", MIB)
    mapped = mmap.mmap(-1, 16 * MIB)
    mapped.madvise(mmap.MADV_NOHUGEPAGE)
    array = np.frombuffer(mapped, np.uint8)
    populate(array[100:-100])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    array[4096:-4096] = 1
    made = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert made < 1000 or not _knows_how(mapped), "each of 4096 pages was made when it was written to"


def _knows_how(mapped: mmap.mmap) -> bool:
    try:
        mapped.madvise(pages.POPULATE_WRITE)
    except OSError:
        return False
    return True


@linux
@pytest.mark.parametrize(("start", "stop"), [(0, None), (3, None), (5000, -1), (1, 2)])
def test_what_is_in_the_array_stays(monkeypatch, start, stop):
    monkeypatch.setattr(pages, "LEAST", 0)
    monkeypatch.setattr(pages, "PIECE", 3 * mmap.PAGESIZE)
    array = np.arange(200_000)
    populate(array[start:stop])
    assert np.array_equal(array, np.arange(200_000))


def test_a_run_on_the_host_makes_its_pages_as_it_writes(asked):
    assert np.array_equal(cf.map(np.negative, np.arange(6.0)), -np.arange(6.0))
    assert asked == []


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1 << 16,), (64, 1024)])
def test_a_new_result_of_a_gpu_has_its_pages_first_and_an_array_of_the_callers_is_left(asked, shape):
    x = np.arange(1 << 16, dtype=float).reshape(shape)
    result = cf.map(np.negative, x, device="cuda")
    assert [array.shape for array in asked] == [shape]
    assert np.shares_memory(asked[0], result)
    assert np.array_equal(result, -x)
    cf.map(np.negative, x, out=result, device="cuda")
    assert len(asked) == 1
