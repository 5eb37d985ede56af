from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from chunkflow.system import host


def test_the_machine_says_what_it_has_left() -> None:
    found = host.available_memory()
    assert found is None or found > 0


@pytest.mark.parametrize(
    ("limit", "expected"), [("max", 1024 << 10), ("900000", 900000 - 500000 + 1000 + 50), ("100", 0)]
)
def test_the_tighter_of_machine_and_control_group_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, expected: int
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 4096 kB\nMemAvailable:    1024 kB\n")
    (tmp_path / "memory.max").write_text(limit + "\n")
    (tmp_path / "memory.current").write_text("500000\n")
    (tmp_path / "memory.stat").write_text("anon 7\ninactive_file 1000\nactive_file 50\n")
    monkeypatch.setattr(host, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(host, "_CGROUP", tmp_path)
    assert host.available_memory() == expected


def test_without_proc_the_system_s_own_figure_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(host, "_CGROUP", tmp_path)
    found = host.available_memory()
    assert found is None or found > 0


@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries have rules of their own")
def test_freed_memory_is_kept_for_the_next_of_its_size():
    """A block of 1 MiB is mapped anew each time; after `keep_freed` it has its pages."""
    code = """
        import resource
        from chunkflow.system.host import keep_freed

        def faults():
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(20):
                np.ones(1 << 20, "u1")
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

        import numpy as np
        first = faults()
        keep_freed(4 << 20)
        faults()
        print(first, faults())
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    seen = subprocess.check_output([sys.executable, "-c", textwrap.dedent(code)], text=True, env=env)
    first, after = map(int, seen.split())
    assert after < 20 <= first
