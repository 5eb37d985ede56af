"""A plugin of pytest that writes which tests pass, and how long each takes: ``-p mutants.record``."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

_passed: dict[str, float] = {}
_failed: set[str] = set()


def pytest_runtest_logreport(report: Any) -> None:
    """Seconds of a function's tests; a test that does not pass takes its function out."""
    name = report.nodeid.partition("[")[0]
    _passed[name] = _passed.get(name, 0.0) + report.duration
    if report.failed:
        _failed.add(name)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write them, in the process that starts the others."""
    if not hasattr(session.config, "workerinput"):
        with open(os.environ["MUTANTS_RECORD"], "w") as file:
            json.dump({name: seconds for name, seconds in _passed.items() if name not in _failed}, file)
