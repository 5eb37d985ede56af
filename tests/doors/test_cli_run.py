"""`chunkflow run` and `explain`: results are NumPy's, and what the user got wrong is one line."""

from __future__ import annotations

import itertools
import json
import re
import signal
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import chunkflow as cf
from chunkflow.cli import main, run
from chunkflow.engine.block_runner import BlockRunner
from chunkflow.errors import FileOrderWarning
from chunkflow.stores.patterns import warn_of_order

A = np.random.default_rng(0).random((8, 12, 16)).astype("f4")
B = A[::-1].copy()

MODULE = """
import os
import numpy as np
def plus(block):
    return block + 1
def broken(block):
    raise ZeroDivisionError("no way")
def fragile(block):
    if os.path.exists("stop") and (block == 7).any():
        raise OSError("gone")
    return block + 1
def behind(block):
    return np.roll(block, 1, 0)
def anomaly(x):
    return x - x.mean()
NUMBER = 3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with two arrays and a module, which the process is in."""
    monkeypatch.setitem(cf.config.config, "device", "cpu")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "filters", raising=False)
    np.save("a.npy", A)
    zarr.create_array("b.zarr", data=B, chunks=(4, 12, 16))
    Path("filters.py").write_text(MODULE)
    return tmp_path


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of the last error."""
    told = capsys.readouterr().err
    assert told.startswith("chunkflow: error: ")
    assert told.count("\n") == 1
    return told


@pytest.mark.parametrize("out", ["c.npy", "c.zarr", "c.h5", "c.h5:/run/c"])
def test_an_expression_is_stored(out: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "np.sqrt(a**2 + b**2)", "a.npy", "b.zarr", out, "--budget", "64MB"]) == 0
    assert capsys.readouterr().out.startswith(f"{out}: float32 (8, 12, 16), 6.14 kB, in ")
    if out.endswith("npy"):
        found = np.load(out)
    elif out.endswith("zarr"):
        found = np.asarray(zarr.open_array(out, mode="r")[...])
    else:
        with h5py.File("c.h5") as file:
            found = file[out.partition(":")[2] or "data"][...]
    np.testing.assert_allclose(found, np.sqrt(A**2 + B**2), rtol=1e-6)


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        ("a.mean(dtype='f8')", A.mean(dtype="f8")),
        ("x.max() - b.min()", A.max() - B.min()),
        ("(a > b).sum()", (A > B).sum()),
        ("numpy:amax", A.max()),
        ("chunkflow:min", A.min()),
    ],
)
def test_a_small_result_is_printed(fn: str, expected: float, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = ["a.npy", "b.zarr"] if "b" in fn else ["a.npy"]
    assert main(["run", fn, *inputs, "-"]) == 0
    assert float(capsys.readouterr().out) == pytest.approx(float(expected), rel=1e-6)


def test_several_results_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "np.histogram(a, bins=2, range=(0, 1))", "a.npy", "-"]) == 0
    counts, edges = np.histogram(A, bins=2, range=(0, 1))
    assert capsys.readouterr().out == f"{counts}\n{edges}\n"


def test_what_is_computed_at_once_is_stored_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "cf.unique(a > 0.5)", "a.npy", "u.npy"]) == 0
    np.testing.assert_array_equal(np.load("u.npy"), [False, True])
    capsys.readouterr()
    assert main(["explain", "cf.unique(a > 0.5)", "a.npy", "-"]) == 0
    assert "computed at once" in capsys.readouterr().out


def test_a_function_gets_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "filters:plus", "a.npy", "p.zarr", "--chunks", "4,4,all", "--report"]) == 0
    stored = zarr.open_array("p.zarr", mode="r")
    assert stored.chunks == (4, 4, 16)
    np.testing.assert_array_equal(stored[...], A + 1)
    assert "overlap efficiency" in capsys.readouterr().out


def test_a_function_gets_neighbours_if_that_is_asked_for() -> None:
    x = A
    assert main(["run", "filters:behind", "a.npy", "n.npy", "--depth", "1", "--boundary", "periodic"]) == 0
    np.testing.assert_array_equal(np.load("n.npy"), np.roll(x, 1, 0))
    depth = ",".join(["1", *"0" * (x.ndim - 1)])
    assert main(["run", "filters:behind", "a.npy", "m.npy", "--depth", depth, "--boundary", "7"]) == 0
    np.testing.assert_array_equal(np.load("m.npy"), np.concatenate((np.full_like(x[:1], 7), x[:-1])))


def test_a_function_gets_lazy_arrays_if_that_is_asked_for() -> None:
    assert main(["run", "filters:anomaly", "a.npy", "d.npy", "--lazy"]) == 0
    np.testing.assert_allclose(np.load("d.npy"), A - A.mean(), atol=1e-6)


def test_chunks_of_an_expression() -> None:
    assert main(["run", "a + 1", "a.npy", "p.zarr", "--chunks", "4,12,8"]) == 0
    assert zarr.open_array("p.zarr", mode="r").chunks == (4, 12, 8)


def test_overwrite(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "a + 1", "a.npy", "p.npy"]) == 0
    assert main(["run", "a + 2", "a.npy", "p.npy"]) == 2
    assert "p.npy exists: pass --overwrite" in error_of(capsys)
    assert main(["run", "a + 2", "a.npy", "p.npy", "--overwrite"]) == 0
    np.testing.assert_array_equal(np.load("p.npy"), A + 2)


def test_resume_goes_on_with_a_run_that_failed(capsys: pytest.CaptureFixture[str]) -> None:
    x = np.zeros((6, 4, 4), "f4")
    x[4] = 7
    zarr.create_array("x.zarr", data=x, chunks=(1, 4, 4))
    Path("stop").touch()
    line = ["run", "filters:fragile", "x.zarr", "p.zarr", "--chunks", "1,4,4"]
    assert main([*line, "--resume"]) == 1
    assert "gone" in error_of(capsys)
    Path("stop").unlink()
    assert main(line) == 2
    assert "give --resume to the same line" in error_of(capsys)
    assert main([*line, "--resume"]) == 0
    np.testing.assert_array_equal(zarr.open_array("p.zarr", mode="r")[...], x + 1)


@pytest.mark.parametrize("verb", [["run", "--explain"], ["explain"]])
@pytest.mark.parametrize("fn", ["np.sqrt(a)", "filters:plus"])
def test_a_plan_is_printed_and_nothing_is_written(
    verb: list[str], fn: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name for path in folder.iterdir()}
    assert main([*verb, fn, "a.npy", "p.zarr", "--budget", "8MB"]) == 0
    told = capsys.readouterr().out
    assert "1 pass: 6.14 kB read" in told
    assert "of 8.00 MB" in told
    assert {path.name for path in folder.iterdir()} - {"__pycache__"} == before


def test_a_plan_for_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "a.mean()", "a.npy", "-", "--workers", "2", "--partition", "2kB"]) == 0
    assert "tasks on 2 workers" in capsys.readouterr().out
    assert main(["explain", "a.mean()", "a.npy", "-", "--partition", "2kB"]) == 2
    assert "--workers" in error_of(capsys)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (["np.sqr(a)", "a.npy", "c.npy"], "no attribute 'sqr'"),
        (["a +", "a.npy", "c.npy"], "SyntaxError"),
        (["a + c", "a.npy", "b.zarr", "c.npy"], "name 'c' is not defined"),
        (["int('x')", "a.npy", "c.npy"], "cannot evaluate"),
        (["a", "none.npy", "c.npy"], "there is no array under"),
        (["a", "a.npy", "c.what"], "cannot tell the format"),
        (["a", "a.npy", "none/c.npy"], "there is no directory"),
        (["a", "a.npy", "c.npy", "--budget", "9999999TB"], "less than 2**63"),
        (["a", "a.npy", "c.npy", "--budget", "much"], "cannot read 'much' as bytes"),
        (["a.mean()", "a.npy", "-", "--budget", "1kB"], "raise --budget to at least"),
        (["a", "a.npy", "c.npy", "--device", "tpu"], "unknown device"),
        (["np.modf(a)", "a.npy", "c.npy"], "gives 2 arrays"),
        (["filters:none", "a.npy", "c.npy"], "cannot find filters:none"),
        (["nowhere:none", "a.npy", "c.npy"], "cannot find nowhere:none"),
        (["filters:NUMBER", "a.npy", "c.npy"], "no function"),
        (["filters:behind", "a.npy", "-", "--boundary", "nearest"], "for --depth: give that too"),
        (["a + 1", "a.npy", "-", "--depth", "1"], "called with each block, and a + 1 is none"),
        (["lambda x: x + 1", "a.npy", "c.npy"], "write its expression alone, as x + 1"),
        (["a + 1", "a.npy", "b.zarr", "c.npy"], "input b is not in the expression"),
        (["a + 1", "a.npy", "-", "--overwrite"], "--overwrite is of an output in a file"),
        (["'x+1'", "a.npy", "c.npy"], "is a text: write the expression without quotes of its own, as 'x+1'"),
        (["a", "a.npy", "c.npy", "--budget=-4MB"], "argument --budget: '-4MB' is negative"),
        (["a.men()", "a.npy", "c.npy"], "did you mean mean?"),
        (["exit(3)", "a.npy", "c.npy"], "cannot evaluate 'exit(3)': SystemExit: 3"),
        (["a.mean", "a.npy", "c.npy"], "a function, and not called: write it with its arguments, as a.mean()"),
        (["a + q", "a.npy", "b.zarr", "c.npy"], "name 'q' is not defined; the inputs are a, b"),
        (["a", "a.npy", "c.npy", "--trace", "none/t.json"], "--trace none/t.json cannot be written: there is no"),
        (["a", "a.npy", "c.npy", "--trace", "."], "--trace . is a directory"),
        (["a", "none*.npy", "c.npy"], "no file matches the pattern none*.npy"),
        (["a", ".", "c.npy"], "is a directory, and no zarr array: './a.npy' is one of its arrays; './*.npy' is one"),
        (["filters.behind", "a.npy", "-"], "write filters:behind for the function of the module"),
        (["a", "a.npy", "b.zarr/.."], "is a directory: give the path of an array, as '"),
        (["a", "a.npy", "d.npy", "--trace", "t.txt"], "--trace t.txt must end in .json, for a trace, or in .html"),
    ],
)
def test_mistakes_are_a_line(line: list[str], told: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(SystemExit):  # of an option's value
        assert main(["run", *line]) == 2
    assert told in error_of(capsys)
    assert not list(folder.glob("c.*"))


def test_messages_name_options_and_no_calls_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "a", "a.npy", "c.what"]) == 2
    assert "NewArray" not in error_of(capsys)
    assert main(["run", "a", "a.npy", "b.zarr"]) == 2
    assert error_of(capsys).endswith(
        "b.zarr exists: pass --overwrite to replace it once the run has succeeded. "
        "If a call with --resume stored it, that call has finished\n"
    )


def test_ctrl_c_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "evaluated", interrupted)
    assert main(["run", "a", "a.npy", "c.npy"]) == 130
    assert capsys.readouterr().err == "chunkflow: interrupted\n"


def test_ctrl_c_says_what_is_kept_and_that_the_same_line_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compute, calls = BlockRunner._compute, itertools.count()

    def interrupted(*args: Any) -> Any:
        if next(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return compute(*args)

    x = np.arange(40000.0).reshape(400, 100)
    np.save("large.npy", x)
    line = ["run", "a + 1", "large.npy", "c.npy", "--resume", "--budget", "60kB", "--device", "cpu"]
    with monkeypatch.context() as patch:
        patch.setattr(BlockRunner, "_compute", interrupted)
        assert main(line) == 130
    found = re.search(
        r"^chunkflow: interrupted; (\d+) of (\d+) blocks of this pass are kept, and the same line goes on with them$",
        capsys.readouterr().err,
        re.MULTILINE,
    )
    assert found is not None
    assert 1 <= int(found[1]) < int(found[2])
    assert main(line) == 0
    np.testing.assert_array_equal(np.load("c.npy"), x + 1)


def test_options_among_the_arrays(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "a + 1", "a.npy", "--budget", "64MB", "c.npy"]) == 0
    with pytest.raises(SystemExit, match="2"):
        main(["run", "a + b", "a.npy", "b.zarr", "--budget", "64MB", "d.npy"])
    assert "give options after them" in capsys.readouterr().err


def test_a_large_result_is_not_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(run, "MOST_PRINTED", 100)
    assert main(["run", "a", "a.npy", "-"]) == 2
    assert "(8, 12, 16)" in error_of(capsys)


def test_a_function_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "filters:broken", "a.npy", "c.npy"]) == 1
    told = error_of(capsys)
    assert "ZeroDivisionError: no way" in told
    assert "in block (0, 0, 0)" in told
    assert main(["run", "filters:broken", "a.npy", "c.npy", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_traceback_by_the_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CHUNKFLOW_DEBUG", "1")
    assert main(["run", "np.sqr(a)", "a.npy", "-"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_trace_and_advice_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "a + 1", "a.npy", "c.npy", "--trace", "trace.json", "--report"]) == 0
    assert {event["ph"] for event in json.loads(Path("trace.json").read_text())["traceEvents"]} == {"M", "X", "C"}
    assert "bound by" in capsys.readouterr().out
    assert main(["run", "a + 1", "a.npy", "-", "--trace", "page.html"]) == 0
    assert Path("page.html").read_text().startswith("<!")
    with cf.Profile() as profile, pytest.raises(cf.errors.ArgumentError, match=r"profile\.html\(path\) writes one"):
        profile.trace("other.html")


def test_the_plan_is_that_of_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "a + 1", "a.npy", "plan.zarr"]) == 0
    told = capsys.readouterr().out
    assert "plan.zarr: float" in told
    assert "in host memory" not in told
    assert not Path("plan.zarr").exists()


def test_a_depth_is_a_number_or_several(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "filters:behind", "a.npy", "-", "--depth", "deep"])
    assert "'deep' is no number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (["stat", "a.npy"], "there is no command 'stat' (did you mean stats?): commands are demo, info"),
        (["frobnicate"], "there is no command 'frobnicate': commands are"),
        (["stats", "a.npy", "--bugdet", "1GB"], "unrecognized arguments: --bugdet 1GB (did you mean --budget?)"),
        (["stats", "a.npy", "--frobnicate"], "unrecognized arguments: --frobnicate (see chunkflow stats --help)"),
        (["rechunk", "a.npy", "c.zarr", "--chunks", "8", "16", "all"], "joined by commas, as --chunks 8,16,all"),
        (["rechunk", "--chunks", "8", "16", "all", "a.npy", "c.zarr"], "joined by commas, as --chunks 8,16,all"),
        (["stats", *(f"{i}.tif" for i in range(9))], "1.tif 2.tif 3.tif ...: one array is taken here. Put a pattern"),
        (["copy", *(f"{i}.tif" for i in range(9)), "c.npy"], "in quotes, as '*.tif': that is one array of all files"),
        (["stats", "s/0.h5", "s/1.h5"], "in quotes, as 's/*.h5:/name'"),
        (["stats", "s[1]/0.h5", "s[1]/1.h5"], "in quotes, as 's[[]1]/*.h5:/name'"),
        (["stats", "a.npy", "nothing"], "unrecognized arguments: nothing (see chunkflow stats --help)"),
        (["copy", "a.npy", "--device", "cpu", "c.npy", "d.npy"], "d.npy, perhaps since an option stands among"),
    ],
)
def test_wrong_lines_say_what_was_meant(line: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("s").mkdir()
    Path("s[1]").mkdir()
    for name in (*(f"{i}.tif" for i in range(9)), "s/0.h5", "s/1.h5", "s[1]/0.h5", "s[1]/1.h5"):
        Path(name).touch()
    with pytest.raises(SystemExit) as ended:
        main(line)
    assert ended.value.code == 2
    assert told in error_of(capsys)


@pytest.mark.parametrize("pattern", ["step_*.h5:/fields/u", "step_*.npy", "step_*.zarr"])
def test_a_pattern_is_one_array(pattern: str, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(3):
        cf.copy(A + i, f"step_{i}{pattern[6:]}")
    wanted = np.stack([A, A + 1, A + 2])
    assert main(["stats", pattern]) == 0
    assert capsys.readouterr().out.startswith(f"{pattern}: float32 {wanted.shape}")
    for line in (["run", "a * 1"], ["copy"], ["rechunk"], ["copy", "--dtype", "f8"], ["copy", "--decode", "cf"]):
        command, *rest = line
        more = ["--chunks", "1,all,all,all"] if command == "rechunk" else []
        fn, rest = (rest, []) if command == "run" else ([], rest)
        assert main([command, *fn, pattern, "c.zarr", "--overwrite", *rest, *more]) == 0
        np.testing.assert_array_equal(cf.open("c.zarr").compute(), wanted)
    assert main(["convert", pattern, "c.h5:/fields/v"]) == 0
    np.testing.assert_array_equal(cf.open("c.h5:/fields/v").compute(), wanted)
    capsys.readouterr()
    assert main(["info", pattern]) == 0
    assert capsys.readouterr().out.count("float32") == 3


def test_a_directory_of_files_is_opened_by_a_pattern(capsys: pytest.CaptureFixture[str]) -> None:
    Path("steps").mkdir()
    cf.copy(A, "steps/0.h5:/u")
    assert main(["stats", "steps"]) == 2
    assert "'steps/0.h5:/u' is one of its arrays; 'steps/*.h5:/u' is one array of all ('0.h5')" in error_of(capsys)


@pytest.mark.parametrize(
    ("fn", "names"),
    [
        ("a - 1", ["y", "x"]),
        ("numpy:negative", ["y", "x"]),
        ("a.T", ["x", "y"]),
        ("a.mean(axis=0)", ["x"]),
        ("a[:, 1:] - a[:, :-1]", ["y", "x"]),
        ("a @ a", ["y", "x"]),
        ("a @ a.T", None),
    ],
)
@pytest.mark.parametrize("version", [2, 3])
def test_results_have_the_names_of_dimensions_that_they_keep(
    fn: str, names: list[str] | None, version: Any, tmp_path: Path
) -> None:
    """Of a square array, whose axes the shape does not tell apart."""
    source, out = cf.NewArray(tmp_path / "in.zarr", dimension_names=("y", "x")), str(tmp_path / "out.zarr")
    cf.copy(np.arange(64.0).reshape(8, 8), source, device="cpu")
    zarr.open_group(out, mode="w", zarr_format=version)
    assert main(["run", fn, str(tmp_path / "in.zarr"), f"{out}/r", "--decode", "cf", "--device", "cpu"]) == 0
    array = zarr.open_array(f"{out}/r", mode="r")
    found = array.attrs.get("_ARRAY_DIMENSIONS") if version == 2 else array.metadata.dimension_names  # type: ignore[union-attr]
    assert (found and list(found)) == names


@pytest.mark.skipif(sys.platform == "win32", reason="it has no such signals")
@pytest.mark.parametrize(
    ("number", "code", "word", "begun"),
    [
        (signal.SIGINT, 130, "interrupted", []),
        (signal.SIGTERM, -15, "terminated", []),
        (signal.SIGTERM, -15, "terminated", ["nohup"]),
    ],
)
def test_a_run_that_is_ended_says_what_is_kept(
    number: int, code: int, word: str, begun: list[str], tmp_path: Path
) -> None:
    """SIGTERM, by which schedulers end a job, said nothing; where Ctrl-C is ignored it left files, too."""
    (tmp_path / "slow.py").write_text(
        "import os, time, pathlib\n"
        "def fn(block):\n"
        "    if pathlib.Path('slowly').exists():\n"
        "        pathlib.Path('begun').touch()\n"
        "        time.sleep(0.05)\n"
        "    return block + 1\n"
    )
    np.save(tmp_path / "x.npy", np.zeros((64, 4096)))
    (tmp_path / "slowly").touch()
    if begun:
        ignored = (
            "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
        )
        begun = [sys.executable, "-c", ignored]
    line = [*begun, sys.executable, "-m", "chunkflow", "run", "slow:fn", "x.npy", "y.zarr"]
    line += ["--chunks", "1,4096", "--resume", "--device", "cpu", "--budget", "2MB"]
    with subprocess.Popen(line, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not _written(tmp_path):
            time.sleep(0.02)
        process.send_signal(number)
        said = process.communicate()[1]
    assert process.returncode == code
    assert re.search(rf"chunkflow: {word}; \d+ of 64 blocks.* are kept, and the same line goes on with them", said)
    (tmp_path / "slowly").unlink()
    assert subprocess.run(line, cwd=tmp_path, check=False).returncode == 0
    assert (zarr.open_array(tmp_path / "y.zarr")[...] == 1).all()


def _written(folder: Path) -> bool:
    """Whether a few blocks are there."""
    return len(list(folder.rglob("c/*/0"))) > 3


def test_a_block_function_of_several_results_is_told_what_fits_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("pair.py").write_text("def both(block):\n    return block, -block\n")
    monkeypatch.syspath_prepend(".")
    cf.copy(A, "a.zarr", device="cpu")
    assert main(["run", "pair:both", "a.zarr", "pair.zarr", "--device", "cpu"]) == 1
    told = capsys.readouterr().err
    assert "fn returned a tuple of 2 arrays, and OUT takes one: return one of them" in told
    assert "dtype=" not in told


@pytest.mark.parametrize("ending", [".npy", ".h5:/u", ".zarr", ".tif"])
def test_files_whose_numbers_have_another_order_are_warned_of(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if ending == ".tif":
        pytest.importorskip("tifffile")
    monkeypatch.chdir(tmp_path)
    for i in (0, 1, 2, 10):
        cf.copy(np.full((4, 4), i, "u1"), f"f{i}{ending}", device="cpu")
        cf.copy(np.full((4, 4), i, "u1"), f"g{i:02}{ending}", device="cpu")
    file = ending.partition(":")[0]
    told = (
        rf"f\*{re.escape(ending)} are taken .*, f10{file} before f2{file}, though .* zeros in front.*chunkflow\.stack"
    )
    for how in ({}, {"decode": "raw"}, {"missing": "fill"}):
        with pytest.warns(FileOrderWarning, match=told):
            found = cf.open(f"f*{ending}", **how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert found[:, 0, 0].compute(device="cpu").tolist() == [0, 1, 10, 2]
    in_time = cf.stack([cf.open(f"f{i}{ending}") for i in (0, 1, 2, 10)])  # the way out that is told
    assert in_time[:, 0, 0].compute(device="cpu").tolist() == [0, 1, 2, 10]
    assert cf.open(f"g*{ending}")[:, 0, 0].compute(device="cpu").tolist() == [0, 1, 2, 10]
    capsys.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["stats", f"f*{ending}"]) == 0
    assert capsys.readouterr().err.count(f"f10{file} before f2{file}") == 1


@pytest.mark.parametrize(
    ("names", "turned"),
    [
        (["a", "a1", "a10"], None),
        (["t0.25", "t0.5"], None),  # decimals
        (["a01", "a1"], None),
        (["c10_t1", "c9_t10"], "c10_t1 before c9_t10"),
        (["r10/f", "r9/f"], "r10/f before r9/f"),
        (["x1", "x1b10", "x1b9"], "x1b10 before x1b9"),
    ],
)
def test_which_orders_are_warned_of(names: list[str], turned: str | None) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warn_of_order("*", names)
    assert [str(each.message).split("text, ")[1].partition(",")[0] for each in seen] == ([turned] if turned else [])
