"""What is said where memory runs out: how much was asked for, of which block, and what the device has left.

The devices are the CPU with memory of its own, which others take while a run is at work, and whose errors name bytes
as CuPy's do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.devices import numpy_device

import chunkflow as cf
from chunkflow.devices.cpu.device import NumpyDevice, NumpyPool
from chunkflow.devices.cuda import hints
from chunkflow.engine.block_runner import BlockRunner

X = np.arange(20_000, dtype="f4").reshape(400, 50)
ONE_TB = 10**12


def asked(nbytes: int) -> MemoryError:
    return MemoryError(f"Out of memory allocating {nbytes:,} bytes (allocated so far: 512 bytes).")


def scarce(staged: bool, free: Callable[[], int]) -> NumpyDevice:
    device: Any = numpy_device("eager", staged=staged, lanes=1)
    device.free_memory, device.bytes_asked = free, hints.bytes_asked
    return device  # type: ignore[no-any-return]


def after(blocks: int, error: Callable[[], BaseException]) -> Callable[[Any], Any]:
    """A function that fails for want of memory once it has had so many blocks."""
    calls: list[int] = []

    def fn(block: Any) -> Any:
        calls.append(1)
        if len(calls) > blocks:
            raise error()
        return block + 1

    return fn


@pytest.mark.parametrize("staged", [True, False])
def test_memory_that_others_take_in_mid_run_is_missed_by_name(staged: bool) -> None:
    device = scarce(staged, lambda: 600)
    how: dict[str, Any] = {"chunks": (4, 50), "budget": 40_000, "device": device, "dtype": "f4", "workspace": 8}
    with pytest.raises(cf.BudgetError, match=r"asked for 3\.00 kB \(3000 bytes\)") as caught:
        cf.map(after(30, lambda: asked(3000)), X, **how)
    notes = "\n".join(caught.value.__notes__)
    assert "in block (30, 0), region [120:124, 0:50]" in notes
    assert "600 B are free on cpu now. Others may have taken the rest" in notes
    (fits,) = re.findall(r"budget= of at most (\d+)", notes)
    assert 600 <= int(fits) < 40_000
    assert caught.value.limit == 40_000


def test_so_it_is_where_a_result_finds_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, empty = iter(range(1000)), BlockRunner._empty

    def refused(self: BlockRunner, *args: Any) -> Any:
        if next(calls) == 20:
            raise asked(800)
        return empty(self, *args)

    monkeypatch.setattr(BlockRunner, "_empty", refused)
    how: dict[str, Any] = {"chunks": (4, 50), "budget": 40_000, "device": scarce(True, lambda: 600), "workspace": 8}
    greedy = after(0, lambda: asked(800))
    with pytest.raises(cf.BudgetError, match=r"cpu has no memory for 800 B \(800 bytes\).*600 B are free") as caught:
        cf.map(lambda b: greedy(b) if b.size > 100 else b + 1, X, dtype="f4", **how)
    assert isinstance(caught.value.__cause__, MemoryError)
    assert any("in block (20, 0)" in note for note in caught.value.__notes__)
    assert caught.value.needed == 800


def test_blocks_that_find_no_room_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: NumpyPool, nbytes: int) -> Any:
        raise asked(nbytes)

    monkeypatch.setattr(NumpyPool, "allocate", refused)
    for run in (
        lambda device: cf.sum(X, budget=40_000, device=device),
        lambda device: list(cf.chunks(X, chunks=(4, -1), budget=40_000, device=device)),
    ):
        with pytest.raises(cf.BudgetError, match=r"cpu has no memory for .*, and 600 B are free on cpu now"):
            run(scarce(True, lambda: 600))


def test_where_nothing_is_missing_nobody_is_blamed() -> None:
    with pytest.raises(cf.BudgetError, match=r"even on the smallest part \[0:1, 0:1\]") as caught:
        cf.map(
            after(0, lambda: asked(3000)),
            X,
            budget=40_000,
            chunks=(4, 50),
            device=scarce(True, lambda: 1 << 40),
            dtype="f4",
            workspace=8,
        )
    assert not any("Others" in note for note in caught.value.__notes__)


def test_a_function_that_needs_more_than_there_is_for_one_element_says_how_much() -> None:
    def fn(block: Any) -> Any:
        raise asked(ONE_TB)

    with pytest.raises(cf.BudgetError) as caught:
        cf.map(fn, X, budget="1GB", device=scarce(True, lambda: 2 << 30))
    assert str(caught.value) == (
        "fn runs out of memory on a block of (1, 1), the smallest that there is. It asked for 1.00 TB (1000000000000 "
        "bytes). The budget is 1.00 GB (1000000000 bytes): raise budget= to more than 1000000000000, or let fn "
        "allocate less"
    )
    assert (caught.value.needed, caught.value.limit) == (ONE_TB, 10**9)


def test_an_error_that_names_no_bytes_is_quoted() -> None:
    def fn(block: Any) -> Any:
        raise MemoryError("no room at all.")

    with pytest.raises(cf.BudgetError, match=r"there is\. The error was: no room at all\. The budget is 1\.00 MB"):
        cf.map(fn, X, budget="1MB", device="cpu")


# -- What a device has to say ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "run",
    [
        lambda fn, **o: cf.map(fn, X, **o),
        lambda fn, **o: cf.map(fn, X, dtype="f4", workspace=0, **o),
        lambda fn, **o: cf.map_overlap(fn, X, depth=1, **o),
        lambda fn, **o: cf.reduction(X, lambda b, axis, keepdims: fn(b), np.max, **o),
        lambda fn, **o: cf.map(fn, cf.open(X) + 1).compute(**o),
    ],
    ids=["trial", "block", "stencil", "fold", "expression"],
)
def test_an_error_of_fn_keeps_its_class_and_gets_the_devices_note(run: Callable[..., Any]) -> None:
    device: Any = numpy_device("eager", staged=True)
    device.hint = lambda error: f"chunkflow: {type(error).__name__} of this device"

    def fn(block: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    with pytest.raises(TypeError, match="Implicit") as caught:
        run(fn, device=device)
    assert type(caught.value) is TypeError
    notes = caught.value.__notes__
    assert notes[:2] == [notes[0], "chunkflow: TypeError of this device"]
    assert notes[0].startswith("chunkflow: in block (0, 0), region [0:")


def test_a_result_of_another_kind_gets_it_too() -> None:
    device: Any = numpy_device("eager", staged=True)
    device.hint = lambda error: "chunkflow: a hint"
    with pytest.raises(cf.errors.ResultTypeError, match="fn returned a list") as caught:
        cf.map(lambda block: [1.0], X, device=device)
    assert "chunkflow: a hint" in caught.value.__notes__


def test_a_loops_own_error_stays_what_it_is() -> None:
    def loop() -> None:
        with cf.chunks(X, chunks=(4, -1), budget=40_000, device=scarce(True, lambda: 600)) as stream:
            for _ in stream:
                raise MemoryError("of the loop")

    with pytest.raises(MemoryError, match="of the loop") as caught:
        loop()
    assert not isinstance(caught.value, cf.BudgetError)
