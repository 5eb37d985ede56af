"""What killed runs leave is found, with its size, and removed, finished or undone; two runs never write one output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr

import chunkflow as cf
from chunkflow.cli import command
from chunkflow.errors import OutputBusyError, OutputExistsError, SourceNotFoundError
from chunkflow.stores.publication import settle

X = np.arange(3000.0).reshape(50, 60)

HEAD = """
import os, signal, sys
import numpy as np
import chunkflow as cf
from chunkflow.api.fourier import transform
from chunkflow.stores.publication import move, patch
X = np.arange(3000.0).reshape(50, 60)
os.chdir(sys.argv[1])
def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)
calls = []
def works():
    calls.append(0)
    return len(calls) > 1  # the first is the trial
def dying(x):
    return die() if works() else x
"""


def started(script: str, folder: Path) -> subprocess.Popen[str]:
    """A process that runs a script in a directory."""
    return subprocess.Popen(
        [sys.executable, "-c", HEAD + script, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def killed(script: str, folder: Path) -> None:
    """A process that kills itself in the middle of a script."""
    with started(script, folder) as process:
        assert process.wait(60) == -9


def visible(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if not name.startswith("."))


OUTPUTS = ("y.npy", "y.zarr", "g.zarr/s/y", "y.h5:/a/y", f"{'x' * 251}.npy")
RUNS = "".join(f"if not os.fork(): cf.map(dying, X, out={out!r}, device='cpu')\n" for out in OUTPUTS)


def test_killed_runs_are_found_and_removed_by_the_next_run_or_when_that_is_asked(tmp_path: Path) -> None:
    killed(f"{RUNS}for _ in range({len(OUTPUTS)}): os.wait()\ndie()", tmp_path)
    assert not visible(tmp_path)
    found = cf.leftovers(tmp_path)
    assert {left.output for left in found} == {str(tmp_path / out.partition(":")[0]) for out in OUTPUTS}
    assert not any(left.is_begun for left in found)
    assert not cf.recover(tmp_path)
    for out in OUTPUTS[:3]:
        assert (cf.copy(X, tmp_path / out, device="cpu")[...] == X).all()
    assert len(cf.leftovers(tmp_path)) == 2
    assert len(cf.leftovers(tmp_path / OUTPUTS[-1])) == 1
    assert len(cf.clean(tmp_path)) == 2
    assert sorted(os.listdir(tmp_path)) == visible(tmp_path)


def test_intermediate_results_are_found(tmp_path: Path) -> None:
    script = "transform.remove_directory = die\n"  # once the second pass has read the first one's result
    killed(script + "cf.fft.fftn(X, out='y.npy', budget='40kB', device='cpu')", tmp_path)
    assert str(tmp_path / "y.npy.fft") in {left.output for left in cf.leftovers(tmp_path / "y.npy")}
    assert sum(left.nbytes for left in cf.clean(tmp_path / "y.npy")) >= X.nbytes
    assert sorted(os.listdir(tmp_path)) == visible(tmp_path)


def test_what_was_begun_is_recovered(tmp_path: Path) -> None:
    """Two outputs, one of which has its name; and a file of HDF5 that is half changed."""
    np.save(tmp_path / "b.npy", 0 * X)
    with h5py.File(tmp_path / "u.h5", "w") as file:
        file["old"] = X
    outs = ("a.npy", "b.npy")
    killed(f"move.exchange = die\ncf.map(lambda x: (x, x), X, out={outs}, overwrite=True, device='cpu')", tmp_path)
    killed("patch._put, real = lambda *a: (real(*a), die()), patch._put\ncf.copy(X + 1, 'u.h5:/new')", tmp_path)
    assert [left.is_begun for left in cf.leftovers(tmp_path)] == [True] * 3
    assert len(cf.recover(tmp_path / "b.npy")) == 1
    assert all((np.load(tmp_path / out) == X).all() for out in outs)
    assert len(cf.recover(tmp_path)) == 1
    with h5py.File(tmp_path / "u.h5") as file:
        assert (file["old"][...] == X).all()
        assert (file["new"][...] == X + 1).all()
    assert sorted(os.listdir(tmp_path)) == visible(tmp_path)


def test_a_chunk_that_was_being_written_is_found_when_it_is_old(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "x.zarr", data=X)
    path = tmp_path / "x.zarr" / "c" / "0" / "0.17-18.partial"
    path.write_bytes(bytes(5000))
    assert not cf.leftovers(tmp_path)
    old = os.stat(path).st_mtime - settle.STALE - 1
    os.utime(path, (old, old))
    (left,) = cf.clean(tmp_path)
    assert left.output == str(path.with_name("0"))
    assert not path.exists()


@pytest.mark.parametrize("out", ["y.npy", "g.zarr/y", "y.h5"])
def test_a_second_run_on_one_output_is_refused_and_the_first_is_named(out: str, tmp_path: Path) -> None:
    script = "def hold(x):\n    works() and (print('here', flush=True), sys.stdin.readline())\n    return x\n"
    with started(f"{script}cf.map(hold, X, out={out!r}, dtype='f8', device='cpu')", tmp_path) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(OutputBusyError, match=f"is being written by process {process.pid} on "):
            cf.copy(X, tmp_path / out, device="cpu")
        assert not cf.leftovers(tmp_path)
        process.communicate("\n" * 99, timeout=60)
    assert process.returncode == 0
    with pytest.raises(OutputExistsError):
        cf.copy(X, tmp_path / out, device="cpu")


def test_a_terminated_run_leaves_nothing_and_ends_by_the_signal(tmp_path: Path) -> None:
    script = "def end(x):\n    works() and os.kill(os.getpid(), signal.SIGTERM)\n    return x\n"
    with started(f"{script}cf.map(end, X, out='y.npy', dtype='f8', device='cpu')", tmp_path) as process:
        assert process.wait(60) == -15
    assert not os.listdir(tmp_path)


def test_the_command_says_what_there_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed("cf.map(dying, X, out='y.npy', device='cpu')", tmp_path)
    for arguments, said, number in (
        (["recover"], "nothing is to be finished or undone", 2),
        (["clean", "--dry-run"], "to be removed", 2),
        (["clean"], "removed", 0),
        (["clean"], "nothing is left", 0),
    ):
        assert command.main([*arguments, str(tmp_path)]) == 0
        assert said in capsys.readouterr().out
        assert len(os.listdir(tmp_path)) == number
    assert command.main(["clean", str(tmp_path / "a" / "b")]) == 2
    assert "no directory" in capsys.readouterr().err
    with pytest.raises(SourceNotFoundError, match="no directory"):
        cf.leftovers(tmp_path / "a" / "b")


def test_a_path_that_does_not_exist_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It may be misspelt. Of an output nothing may be there yet, so it is no mistake if its folder is there."""
    assert command.main(["clean", str(tmp_path / "none.h5:/u")]) == 0
    assert capsys.readouterr().out == f"nothing is left: there is no {tmp_path / 'none.h5'}\n"
    assert command.main(["clean", str(tmp_path / "none" / "x.zarr")]) == 2
    assert "there is no directory" in capsys.readouterr().err
