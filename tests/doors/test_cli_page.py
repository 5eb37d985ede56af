"""The page on the command line does what it says: each of its lines runs, one after the other."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

import chunkflow as cf
from chunkflow.cli import command, doctor, main

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text()
LINES = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S) for line in block.splitlines()]


def test_lines_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(cf.config.config, "device", "cpu")
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "filters", raising=False)
    monkeypatch.setattr(doctor, "NBYTES", 4 << 20)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    Path("filters.py").write_text(code)
    for line in LINES:
        program, *arguments = shlex.split(line)
        assert program == "chunkflow"
        assert main(arguments) == 0, line
    u, v = (zarr.open_array(f"chunkflow-demo/{name}.zarr", mode="r")[...] for name in "uv")
    np.testing.assert_allclose(np.load("uv.npy"), np.sqrt(u**2 + v**2), rtol=1e-6)
    assert zarr.open_array("columns.zarr", mode="r").chunks == (64, 8, 8)
    assert zarr.open_array("small.zarr", mode="r").dtype == "f2"


def test_all_commands_are_on_the_page() -> None:
    (commands,) = command.parser()._subparsers._group_actions  # type: ignore[union-attr]
    rows = "\n".join(line for line in PAGE.splitlines() if line.startswith("| "))
    assert [name for name in commands.choices if f"`{name}`" not in rows] == []  # type: ignore[union-attr]
