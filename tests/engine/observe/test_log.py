"""What runs tell Python's logging."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import chunkflow as cf

CPU = {"device": "cpu"}


def test_a_run_says_what_it_does_and_took(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "chunkflow"):
        cf.sum(np.ones(1000), budget="1MB", **CPU)
    first, last = (record.getMessage() for record in caplog.records)
    assert first == "run of 1 blocks on cpu within 1.00 MB: reads 8.00 kB, writes 8 B"
    assert last.startswith("run ended after ")
    assert {record.levelno for record in caplog.records} == {logging.INFO}


def test_plans_are_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "chunkflow"):
        cf.sum(np.ones(1000), **CPU)
    (plan,) = [record for record in caplog.records if record.levelno == logging.DEBUG]
    assert "model" in plan.getMessage()


def test_a_failed_run_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    def fail(block: Any) -> Any:
        raise KeyError("lost")

    with caplog.at_level(logging.INFO, "chunkflow"), pytest.raises(KeyError):
        cf.map(fail, np.ones(1000), dtype="f8", workspace=0, **CPU)
    assert [record.levelno for record in caplog.records] == [logging.INFO, logging.ERROR]
    assert "KeyError: 'lost'" in caplog.records[-1].getMessage()


def test_nothing_is_told_unasked(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    with caplog.at_level(logging.WARNING, "chunkflow"):  # as where nobody has set anything
        cf.sum(np.ones(1000), **CPU)
    assert not caplog.records
    assert capsys.readouterr().err == ""


def test_a_run_does_not_load_logging() -> None:
    code = (
        "import sys, numpy as np, chunkflow as cf; before = 'logging' in sys.modules; cf.sum(np.ones(9), device='cpu');"
        "print(before, 'logging' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = done.stdout.split()
    assert before == after
