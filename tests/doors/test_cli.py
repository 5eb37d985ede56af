"""The command line: the demo at a small size, what it refuses, and its exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

import chunkflow as cf
from chunkflow.cli import command, demo

SMALL = ("--shape", "20", "24", "28", "--device", "cpu")


def test_it_is_a_module_too() -> None:
    done = subprocess.run([sys.executable, "-m", "chunkflow", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"chunkflow {cf.__version__}\n"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        command.main(["--version"])
    assert capsys.readouterr().out == f"chunkflow {cf.__version__}\n"


def test_module_runs_as_a_script() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "chunkflow.cli", "demo", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert "--budget" in shown


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = tmp_path / "demo"
    assert command.main(["demo", *SMALL, "--dir", str(where)]) == 0
    shown = capsys.readouterr().out
    for expected in (
        "20 x 24 x 28",
        "overlap efficiency",
        "of the budget's",
        "agree with NumPy",
        "speed.zarr",
        "Memory: the budget bounds",
        "Try next:",
    ):
        assert expected in shown
    u, v, w, speed = (zarr.open_array(where / f"{name}.zarr", mode="r")[:] for name in ("u", "v", "w", "speed"))
    assert speed.shape == (20, 24, 28)
    np.testing.assert_array_equal(speed, np.sqrt(u * u + v * v + w * w))


def test_demo_again(tmp_path: Path) -> None:
    assert command.main(["demo", *SMALL, "--dir", str(tmp_path)]) == 0
    assert command.main(["demo", "--size", "16", "--device", "cpu", "--dir", str(tmp_path)]) == 0
    assert zarr.open_array(tmp_path / "speed.zarr", mode="r").shape == (16, 16, 16)


def test_demo_with_a_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["demo", *SMALL, "--dir", str(tmp_path), "--budget", "64MB"]) == 0
    assert "64.00 MB" in capsys.readouterr().out


def test_demo_touches_nobody_elses_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "u.zarr").write_text("precious")
    assert command.main(["demo", *SMALL, "--dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("chunkflow: error: ")
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["u.zarr"]
    assert (tmp_path / "u.zarr").read_text() == "precious"


def test_demo_refuses_a_file_for_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert command.main(["demo", *SMALL, "--dir", str(tmp_path / "file")]) == 2


def status_of(line: list[str]) -> object:
    """The exit status of a line, also where its options are refused."""
    try:
        return command.main(line)
    except SystemExit as ended:
        return ended.code


@pytest.mark.parametrize("option", [["--budget", "much"], ["--device", "tpu"]])
def test_a_wrong_option_is_refused_before_anything_is_made(option: list[str], tmp_path: Path) -> None:
    assert status_of(["demo", "--size", "8", "--dir", str(tmp_path / "demo"), *option]) == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("budget", ["much", "-1", "0%", "1"])
def test_a_bad_budget_is_one_line(budget: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["demo", *SMALL, "--dir", str(tmp_path), f"--budget={budget}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_wrong_result_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "_check", lambda *_: False)
    assert command.main(["demo", *SMALL, "--dir", str(tmp_path)]) == 1
    assert "DO NOT AGREE" in capsys.readouterr().out


def test_check_sees_a_single_wrong_element() -> None:
    shape = (4, 4, 4)
    fields = [np.ones(shape, "f4")] * 3
    good = demo.speed(*fields)
    assert demo._check(fields, good, shape)
    bad = good.copy()
    bad[3, 3, 3] += 1e-3  # every sample region ends at the far corner, for it is larger than the array
    assert not demo._check(fields, bad, shape)


def test_field_is_the_same_however_it_is_read() -> None:
    field = demo.Velocity((9, 10, 11), component=1)
    everything = field[0:9, 0:10, 0:11]
    part = field[3:5, 0:10, 7:11]
    assert part.dtype == np.float32
    # Not to the bit: a product of matrices may round otherwise at another size.
    np.testing.assert_allclose(part, everything[3:5, :, 7:], rtol=0, atol=1e-6)


def test_field_is_free_of_divergence() -> None:
    n = 64
    slopes = []
    for axis in range(3):
        field = demo.Velocity((n, n, n), component=axis)
        field._noise = np.zeros_like(field._noise)
        slopes.append(np.gradient(field[0:n, 0:n, 0:n].astype("f8"), axis=axis)[2:-2, 2:-2, 2:-2])
    assert np.abs(sum(slopes)).max() < 0.05 * np.abs(slopes[0]).max()


def test_without_a_command_it_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0
    assert "demo" in capsys.readouterr().out
