"""Rates that are measured, kept in a file and used for plans; and files that make no sense."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.devices import machine, numpy_device

import chunkflow as cf
from chunkflow.cli import calibrate, command
from chunkflow.cli.calibrate import tuned
from chunkflow.devices import measured_rates
from chunkflow.devices.cpu.device import NumpyDevice
from chunkflow.devices.rates import cpu
from chunkflow.errors import ArgumentError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(measured_rates.VARIABLE, str(tmp_path / "rates"))
    return tmp_path / "rates"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates of little data, in few runs: they need not be good ones."""
    sizes = {"OLD": 1 << 20, "CODED": 2 << 20, "LARGE": 4 << 20, "PIECES": (1 << 20,)}
    for name, less in (sizes | {"CHUNKS": 16, "LONG": 0.002, "PROFILES": 2}).items():
        monkeypatch.setattr(calibrate, name, less)


def test_what_is_kept_is_what_plans_are_made_with(folder: Path) -> None:
    usual = NumpyDevice().machine
    slow = replace(usual, read=usual.read / 10, multiply=1e9)
    where = measured_rates.keep(slow, "cpu")
    assert where.parent == folder
    assert NumpyDevice().machine == slow
    assert NumpyDevice(machine=usual).machine == usual, "rates that are asked for are not replaced"
    assert measured_rates.forget("cpu") == where
    assert measured_rates.forget("cpu") is None
    assert NumpyDevice().machine == usual
    assert list(folder.iterdir()) == []


def test_devices_and_processors_have_files_of_their_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {measured_rates.path("cpu"), measured_rates.path("NVIDIA H200")}
    monkeypatch.setattr(measured_rates, "cores", lambda: 1000)
    found.add(measured_rates.path("cpu"))
    monkeypatch.setattr(measured_rates, "processor", lambda: "../../another/../one")
    found.add(other := measured_rates.path("cpu"))
    assert len(found) == 4
    assert other is not None
    assert other.parent == folder


def test_without_a_directory_they_lie_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(measured_rates.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert measured_rates.keep(cpu(2), "cpu").parent == tmp_path / "chunkflow"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ("[1]", "no table"),
        ('{"read": "fast"}', "read is 'fast'"),
        ('{"read": -1}', "read is -1"),
        ('{"disk": 1e-300}', "less than a byte"),
        ('{"read": NaN}', "read is nan"),
        ('{"read": true}', "read is True"),
        ('{"threads": 1.5}', "threads is 1.5"),
        ('{"threads": 100000}', "between 1 and 256"),
        ('{"staged": 1}', "unknown entry 'staged'"),
        ('{"handling": 1e308}', "between 0 and 1"),
        ('{"overhead": 1' + 400 * "0" + "}", "too large"),
    ],
)
def test_a_file_without_sense_is_warned_of_and_left_aside(folder: Path, text: str, reason: str) -> None:
    usual = cpu(2)
    where = measured_rates.keep(usual, "cpu")
    where.write_text(text)
    with pytest.warns(UserWarning, match=reason) as caught:
        assert measured_rates.kept(usual, "cpu") == usual
    assert str(where) in str(caught[0].message)
    assert "chunkflow calibrate" in str(caught[0].message)


def test_rates_that_cannot_be_kept_are_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write_text("a file where a directory should be")
    with pytest.raises(ArgumentError, match=measured_rates.VARIABLE):
        measured_rates.keep(cpu(2), "cpu")
    monkeypatch.setenv(measured_rates.VARIABLE, "0")
    with pytest.raises(ArgumentError, match="unset it"):
        measured_rates.keep(cpu(2), "cpu")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("staged", [False, True])
def test_measured_rates_are_rates(staged: bool, tmp_path: Path) -> None:
    device = numpy_device("threaded", staged=staged) if staged else NumpyDevice(machine=cpu(2))
    before = device.machine
    found = tuned(device, 4 << 20, tmp_path)
    assert list(tmp_path.iterdir()) == [], "files are there for a while"
    assert device.machine == before, "measuring changes nothing"
    rates = (*measured_rates.RATES, *measured_rates.SECONDS)
    for name in rates:
        value = getattr(found.machine, name)
        if name in ("fresh", "handling", "load") and staged:
            assert value == getattr(before, name), (
                "nobody waits for a device's memory, and its chunks and files are not tried"
            )
        else:
            assert 0 <= value < math.inf, name
            assert value or name == "handling", name  # the difference of two times may be none
    changed = {n for n in rates if getattr(found.machine, n) != getattr(before, n)}
    assert {"read", "write", "compute", "multiply", "overhead"} <= changed
    assert ("disk" in changed) != bool(found.missing)
    assert sorted(found.runs) == ["a map", "a sum"]
    assert all(analysis.runs[-1].seconds > 0 for analysis in found.runs.values())


@pytest.mark.gpu
def test_a_gpu_is_measured() -> None:
    from chunkflow.devices.cuda.device import CupyDevice

    device = CupyDevice(0)
    found = tuned(device, 256 << 20)
    assert found.machine.upload > 1e9
    assert found.machine.multiply > 1e10
    assert found.machine.threads >= 1


@pytest.mark.usefixtures("small")
def test_the_command_measures_keeps_and_forgets(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["calibrate", "--device", "cpu", "--size", "4MiB"]) == 0
    (where,) = folder.iterdir()
    said = capsys.readouterr().out
    assert str(where) in said
    assert "predicted" in said
    assert json.loads(where.read_text())["read"] > 0
    assert NumpyDevice().machine.read == json.loads(where.read_text())["read"]
    assert command.main(["calibrate", "--device", "cpu", "--forget"]) == 0
    assert not where.exists()
    assert command.main(["calibrate", "--device", "cpu", "--forget"]) == 0
    assert "no rates" in capsys.readouterr().out


def test_the_command_says_that_a_directory_is_not_there(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["calibrate", "--device", "cpu", "--size", "64MiB", "--dir", str(tmp_path / "none")]) == 2
    said = capsys.readouterr().err
    assert str(tmp_path / "none") in said
    assert "--dir" in said
    assert not folder.exists()


def test_a_disk_without_room_is_named_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate.shutil, "disk_usage", lambda where: SimpleNamespace(free=1000))
    monkeypatch.setattr(calibrate, "host_rates", lambda *_: pytest.fail("measured"))
    with pytest.raises(ArgumentError, match=r"has 1.00 kB left, and files of .* --dir"):
        tuned(NumpyDevice(machine=cpu(2)), 4 << 20, tmp_path)


@pytest.mark.usefixtures("small")
def test_files_that_stay_in_memory_say_nothing_of_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "absent", lambda *_: 0.0)
    device = NumpyDevice(machine=cpu(2))
    found = tuned(device, 4 << 20, tmp_path)
    assert found.machine.disk == device.machine.disk
    assert str(tmp_path) in found.missing


@pytest.mark.usefixtures("small")
def test_few_bytes_are_enough_for_every_lane(tmp_path: Path) -> None:
    found = tuned(NumpyDevice(machine=cpu(8)), 1, tmp_path)
    assert found.machine.read > 0


def test_the_command_says_where_none_are_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(measured_rates.VARIABLE, "0")
    assert command.main(["calibrate", "--device", "cpu"]) == 2
    assert measured_rates.VARIABLE in capsys.readouterr().err


def test_plans_follow_the_rates() -> None:
    """A host whose copies are slow is bound by them."""
    usual = machine(staged=True)
    x = np.zeros((4096, 512), "f4")
    bound = []
    for rates in (replace(usual, read=1e15), replace(usual, read=1e6)):
        device = NumpyDevice(staged=True, machine=rates)
        bound.append(cf.explain(cf.sum, x, device=device, budget="1MB").estimate.bound_by)
    assert bound == ["upload", "read"]


@pytest.mark.parametrize("seconds", [[9.0, 1.0, 2.0, 3.0, 1.5], [2.0, 2.0, 2.0, 0.1, 50.0]])
def test_rates_are_those_of_a_usual_run(seconds: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a host read at two thirds of its rate, in the only run whose profile was taken."""
    left = iter(seconds)

    class Fake:
        def __enter__(self) -> Fake:
            return self

        def __exit__(self, *_: object) -> None:
            self.report = SimpleNamespace(seconds=next(left))

    monkeypatch.setattr(calibrate, "Profile", Fake)
    calls: list[None] = []
    assert calibrate.profiled(lambda: calls.append(None), 5).seconds == 2.0
    assert len(calls) == 6
