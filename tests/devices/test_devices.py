"""Every device passes the contract suite; the checking modes show what they are for; `resolve` finds devices."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.decoders import DecodingDevice
from support.devices import at_work, numpy_device

from chunkflow import config, devices
from chunkflow.core.machine import Machine
from chunkflow.devices import rates, registry
from chunkflow.devices.cpu.device import NumpyDevice
from chunkflow.devices.protocol import Device, Edge
from chunkflow.devices.race_detector import ClockDevice
from chunkflow.errors import ArgumentTypeError, DeviceError, RaceError
from chunkflow.testing import DeviceContract

STAGED = Machine(read=1e9, upload=1e9, compute=1e9, download=1e9, write=1e9, overhead=1e-5)


class TestNumpy(DeviceContract):
    def make(self) -> Device:
        return NumpyDevice()


class TestEager(DeviceContract):
    def make(self) -> Device:
        return NumpyDevice(mode="eager", staged=True, poison=True, machine=STAGED)


class TestThreaded(DeviceContract):
    def make(self) -> Device:
        return NumpyDevice(mode="threaded", staged=True, poison=True, machine=STAGED)


class TestLazy(DeviceContract):
    def make(self) -> Device:
        return NumpyDevice(mode="lazy", staged=True, poison=True, machine=STAGED)


class TestDecoding(DeviceContract):
    def make(self) -> Device:
        return DecodingDevice(mode="lazy", poison=True)


class TestClockAroundNumpy(TestNumpy):
    def make(self) -> Device:
        return ClockDevice(super().make())


class TestClockAroundEager(TestEager):
    def make(self) -> Device:
        return ClockDevice(super().make())


class TestClockAroundThreaded(TestThreaded):
    def make(self) -> Device:
        return ClockDevice(super().make())


class TestClockAroundLazy(TestLazy):
    def make(self) -> Device:
        return ClockDevice(super().make())


@pytest.mark.gpu
class TestCupy(DeviceContract):
    limits_functions = True
    keeps_host_slots = True

    def make(self) -> Device:
        return devices.resolve("cuda")

    def test_arrays_of_the_host_are_not_its_own(self) -> None:
        assert not self.make().is_array(np.ones(3))

    def test_it_has_no_extended_precision(self) -> None:
        assert not self.make().supports(np.dtype("g"))


@pytest.mark.gpu
class TestClockAroundCupy(TestCupy):
    def make(self) -> Device:
        return ClockDevice(super().make())


# What the checking modes are for


def lazy() -> NumpyDevice:
    return NumpyDevice(mode="lazy")


@pytest.mark.parametrize("waits", [True, False])
def test_a_missing_wait_gives_stale_data_on_a_lazy_device(waits: bool) -> None:
    device = lazy()
    writer, reader, event = device.lane(), device.lane(), device.event()
    data = np.zeros(4)
    writer.call(lambda: data.fill(1))
    writer.record(event)
    if waits:
        reader.wait([event], Edge.UPLOADED)
    found = reader.call(data.copy).result()
    writer.close()
    assert (found == (1 if waits else 0)).all()
    assert (data == 1).all()


def test_a_thread_that_does_not_wait_sees_stale_data_on_a_lazy_device() -> None:
    device = lazy()
    lane, event, data = device.lane(), device.event(), np.zeros(4)
    lane.call(lambda: data.fill(1))
    lane.record(event)
    lane.call(lambda: data.fill(2))
    assert (data == 0).all()
    event.synchronize(Edge.LANDED)
    assert (data == 1).all()  # and no more than lies before the mark has run
    lane.close()
    assert (data == 2).all()


@pytest.mark.parametrize("waits", [True, False])
def test_a_missing_wait_gives_stale_data_on_a_threaded_device(waits: bool) -> None:
    device = NumpyDevice(mode="threaded")
    writer, reader, event = device.lane(), device.lane(), device.event()
    data, go = np.zeros(4), threading.Event()
    writer.call(go.wait)  # stands for a long upload
    writer.call(lambda: data.fill(1))
    writer.record(event)
    if waits:
        reader.wait([event], Edge.UPLOADED)
        go.set()
    found = reader.call(data.copy).result()
    go.set()
    reader.close()
    writer.close()
    assert (found == (1 if waits else 0)).all()


@pytest.mark.parametrize("mode", ["threaded", "lazy"])
def test_a_wait_means_the_mark_of_its_own_time(mode: str) -> None:
    device = NumpyDevice(mode=mode)
    first, second, event = device.lane(), device.lane(), device.event()
    go, seen = threading.Event(), list[str]()
    first.call(lambda: seen.append("before"))
    first.record(event)
    second.wait([event], Edge.UPLOADED)
    # What is recorded later is no concern of the wait above, which would never end if it were.
    first.call(lambda: (go.wait(), seen.append("after")))
    first.record(event)
    assert second.call(seen.copy).result() == ["before"]
    go.set()
    event.synchronize(Edge.UPLOADED)
    assert seen == ["before", "after"]
    first.close()
    second.close()


@pytest.mark.parametrize("mode", ["eager", "threaded", "lazy"])
@pytest.mark.parametrize("waits", [True, False])
def test_the_race_detector_sees_a_missing_wait_in_every_mode(mode: str, waits: bool) -> None:
    device = ClockDevice(NumpyDevice(mode=mode))
    writer, reader, event, owner = device.lane(), device.lane(), device.event(), object()
    writer.call(lambda: None, writes=(owner,))
    writer.record(event)
    if waits:
        reader.wait([event], Edge.UPLOADED)
        reader.call(lambda: None, reads=(owner,))
    else:
        with pytest.raises(RaceError, match="nothing orders it"):
            reader.call(lambda: None, reads=(owner,))
    writer.close()
    reader.close()


@pytest.mark.parametrize("wraps", [False, True])
def test_memory_is_poisoned_when_it_is_given_out_and_when_it_is_freed(wraps: bool) -> None:
    device: Device = NumpyDevice(staged=True, poison=True, machine=STAGED)
    pool = (ClockDevice(device) if wraps else device).pool(1 << 20)
    array = pool.allocate(800).view("f8")
    assert np.isnan(array).all()
    array[...] = 1
    pool.free(array)
    assert np.isnan(array).all()
    assert np.isnan(pool.host_buffers(1, 80)[0].array.view("f8")).all()


def test_a_lane_ends_its_thread() -> None:
    before = at_work()
    lane = NumpyDevice(mode="threaded").lane()
    lane.synchronize()  # by then a thread has taken it
    assert len(at_work()) == len(before) + 1
    lane.close()
    assert at_work() == before


def test_machine_and_mode_must_agree() -> None:
    with pytest.raises(ValueError, match="staged"):
        NumpyDevice(staged=True)
    with pytest.raises(ValueError, match="staged"):
        NumpyDevice(machine=STAGED)


def test_lanes_are_as_many_as_asked_for() -> None:
    device = NumpyDevice(lanes=3)
    assert device.machine.lanes == 3
    assert max(device.machine.depths) >= 3


# What people write


@pytest.fixture
def _no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(sys.modules, "chunkflow.devices.cuda.device", raising=False)
    monkeypatch.setitem(config.config, "device", "auto")
    registry.is_present.cache_clear()
    yield
    registry.is_present.cache_clear()


@pytest.mark.usefixtures("_no_cupy")
class TestResolveWithoutCupy:
    @pytest.mark.parametrize("spec", [None, "auto", "cpu"])
    def test_the_cpu_is_the_default(self, spec: str | None) -> None:
        assert devices.resolve(spec).name == "cpu"

    def test_it_is_the_same_device_each_time(self) -> None:
        assert devices.resolve("cpu") is devices.resolve(None)

    @pytest.mark.parametrize("spec", ["cuda", "cuda:1", 0, 3])
    def test_cuda_says_what_to_install(self, spec: str | int) -> None:
        with pytest.raises(DeviceError, match=r"CuPy.*install chunkflow-stream\[cuda1.*device='cpu'"):
            devices.resolve(spec)

    def test_the_setting_decides_where_nothing_is_said(self) -> None:
        with config.set(device="cuda"):
            with pytest.raises(DeviceError, match="CuPy"):
                devices.resolve()
            assert devices.resolve("cpu").name == "cpu"
        for nothing in ("cpu", ""):
            with config.set(device=nothing):
                assert devices.resolve().name == "cpu"


@pytest.mark.parametrize("spec", ["gpu", "", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "CUDA"])
def test_unknown_devices_are_refused_by_name(spec: str) -> None:
    with pytest.raises(DeviceError, match="unknown device") as caught:
        devices.resolve(spec)
    assert repr(spec) in str(caught.value)


@pytest.mark.parametrize("spec", [-1])
def test_an_ordinal_is_not_negative(spec: int) -> None:
    with pytest.raises(DeviceError):
        devices.resolve(spec)


@pytest.mark.parametrize("spec", [True, False, 1.5, b"cpu", ["cpu"], object()])
def test_other_things_are_no_devices(spec: object) -> None:
    with pytest.raises(ArgumentTypeError, match="device must be"):
        devices.resolve(spec)  # type: ignore[arg-type]


def test_devices_pass_through() -> None:
    device = NumpyDevice(mode="lazy")
    assert devices.resolve(device) is device
    checked = ClockDevice(device)
    assert devices.resolve(checked) is checked


@pytest.mark.gpu
def test_kernels_wait_for_what_the_caller_prepares() -> None:
    """On the default stream: an array that a function closes over may not be there yet when the function is called."""
    cupy = pytest.importorskip("cupy")
    device = devices.resolve("cuda")
    square, found = cupy.full((5000, 5000), 1e-4, "f4"), []
    lane = device.lane(kernels=True)
    try:
        for n in range(10):
            busy = square
            for _ in range(5):  # some tens of milliseconds
                busy = busy @ square
            weights = cupy.where(busy[:3, 0] > 0, np.float32(n), np.float32(-1))
            found.append(lane.call(lambda weights=weights: weights + 1).result())
            lane.synchronize()
            assert found[-1].get().tolist() == [n + 1] * 3
    finally:
        lane.close()


@pytest.mark.gpu
def test_threads_that_time_events_first_have_one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its address is all that C keeps of it: one that another thread replaced would be gone while it is still asked."""
    device: Any = devices.resolve("cuda")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(20):
            monkeypatch.setattr(device, "_clock", None)
            start, events = threading.Barrier(16), []

            def time(start: threading.Barrier = start, events: list[Any] = events) -> None:
                start.wait()
                events.append(device.event(timed=True))

            threads = [threading.Thread(target=time) for _ in range(16)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len({id(event._clock) for event in events}) == 1
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.gpu
def test_what_another_process_takes_of_a_gpu_is_its_own() -> None:
    """Before and after, as much of the card is left to a small budget."""
    pytest.importorskip("pynvml")
    device: Any = devices.resolve("cuda")
    take = "import cupy; held = cupy.zeros(3 << 30, 'u1'); held.sum().get(); print('held', flush=True); input()"
    before = device.taken(), device.free_memory(), device.reserve
    with subprocess.Popen(
        [sys.executable, "-c", take], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert device.free_memory() <= before[1] - (3 << 30)
        assert device.taken() == before[0]
        other.communicate("\n")
    assert device.reserve == before[2]


SHARED = """
import numpy as np, chunkflow as cf
x = np.arange(4e6, dtype="f4").reshape(2000, 2000) % 1000
for i in range(20):
    options = {"budget": "400MB", "device": "cuda"}
    assert cf.median(x, axis=1, **options).shape == (2000,)
    assert cf.sum(x, **options) == x.sum(dtype="f8")
    assert (cf.map(np.sqrt, x, **options) == np.sqrt(x)).all()
    np.testing.assert_allclose(cf.matmul(x[:500], x.T[:, :500], **options), x[:500] @ x.T[:, :500], rtol=1e-4)
print("right")
"""


@pytest.mark.gpu
def test_processes_that_share_a_gpu_keep_small_budgets() -> None:
    """What the others take is counted in no budget, so none is refused."""
    pytest.importorskip("pynvml")
    command = [sys.executable, "-c", SHARED]
    each = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(4)]
    assert [one.communicate()[0] for one in each] == ["right\n"] * 4


@pytest.mark.gpu
def test_resolving_a_gpu() -> None:
    device = devices.resolve("cuda")
    assert device.name == "cuda:0"
    assert devices.resolve(0) is device
    assert devices.resolve("cuda:0") is device
    assert devices.resolve("auto") is device
    with pytest.raises(DeviceError, match="no CUDA device 99"):
        devices.resolve("cuda:99")


def test_the_first_error_of_a_lane_is_the_one_that_is_raised() -> None:
    def fail(words: str) -> None:
        raise ValueError(words)

    lane: Any = numpy_device("threaded", staged=True).lane()
    for words in ("first", "second"):
        lane._enqueue(partial(fail, words))
    with pytest.raises(ValueError, match="first"):
        lane.close()


@pytest.mark.parametrize(
    ("size", "shared", "expected"),
    [
        ("32768K", "0-7", 3 << 20),
        ("8M", "5", 6 << 20),
        ("64K", "0", 1 << 20),
        ("much", "0", 1 << 20),
        (None, "0", 1 << 20),
    ],
)
def test_the_cache_of_a_core_is_most_of_its_share(
    size: str | None, shared: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if size is not None:
        (tmp_path / "size").write_text(f"{size}\n")
    (tmp_path / "shared_cpu_list").write_text(f"{shared}\n")
    monkeypatch.setattr(rates, "Path", lambda _: tmp_path)
    assert rates.cache_per_core() == expected
