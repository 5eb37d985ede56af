"""What a profile keeps of spans and memory, and the files that show it."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chunkflow as cf
from chunkflow.engine.observe.timeline import SAMPLES, Timeline

BLOCKS = 6


@pytest.fixture
def profile(tmp_path: Path) -> cf.Profile:
    """Of a map from file to file, in six blocks."""
    np.save(tmp_path / "x.npy", np.arange(BLOCKS * 1000.0).reshape(BLOCKS, 1000))
    with cf.Profile() as found:
        cf.map(np.sqrt, tmp_path / "x.npy", out=tmp_path / "y.npy", chunks=(1, -1), device="cpu", budget="1MB")
    return found


def written(profile: cf.Profile, path: Path) -> list[dict[str, Any]]:
    profile.trace(path)
    return list(json.loads(path.read_text())["traceEvents"])


def test_each_block_is_read_computed_and_written(profile: cf.Profile, tmp_path: Path) -> None:
    spans = [event for event in written(profile, tmp_path / "run.json") if event["ph"] == "X" and event["tid"]]
    for stage in ("read", "compute", "write"):
        mine = [event for event in spans if event["name"].startswith(stage)]
        assert sorted(event["args"]["block"] for event in mine) == list(range(BLOCKS))
        (there,) = [found for found in profile.report.stages if found.name == stage]
        assert sum(event["args"]["bytes"] for event in mine) == there.nbytes


def test_spans_of_a_row_do_not_overlap(profile: cf.Profile, tmp_path: Path) -> None:
    rows: dict[int, list[tuple[float, float]]] = {}
    for event in written(profile, tmp_path / "run.json"):
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            rows.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    assert len(rows) >= 4
    for spans in rows.values():
        spans.sort()
        assert all(before[1] <= after[0] + 0.01 for before, after in itertools.pairwise(spans))


def test_rows_are_named_and_memory_is_a_curve(profile: cf.Profile, tmp_path: Path) -> None:
    events = written(profile, tmp_path / "run.json")
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {event["tid"] for event in events if event["ph"] == "X"} <= set(names)
    assert names[0] == "run"
    curve = [event["args"]["bytes"] for event in events if event["ph"] == "C"]
    assert len(curve) == BLOCKS
    assert 0 < max(curve) <= profile.report.peak <= profile.passes[0].plan.budget == 1_000_000


def test_no_more_spans_are_kept_than_there_is_room_for() -> None:
    line = Timeline(most=3)
    for i in range(5):
        line.add("read", i, i + 0.5, 10, block=i, lane=None, run=0, thread=0)
    assert [span.block for span in line] == [0, 1, 2]
    assert line.dropped == 2


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=40), st.integers(1, 3))
def test_the_largest_sample_of_memory_stays(samples: list[int], times: int) -> None:
    line, found = Timeline(), samples * (times * SAMPLES // len(samples) + 1)
    for when, nbytes in enumerate(found):
        line.hold(when, nbytes)
    assert max(nbytes for _, nbytes in line.memory) == max(samples)
    assert len(line.memory) < SAMPLES
    assert [when for when, _ in line.memory] == sorted(when for when, _ in line.memory)


def test_a_page_stands_alone(profile: cf.Profile, tmp_path: Path) -> None:
    profile.html(tmp_path / "run.html")
    text = (tmp_path / "run.html").read_text()
    assert "{{" not in text
    assert not [word for word in ("src=", "href=", "@import", "url(") if word in text]
    data = json.loads(text.partition('type="application/json">')[2].partition("</script>")[0])
    assert len(data["spans"]) == len(profile.timeline) == 3 * BLOCKS
    assert data["budget"] == 1_000_000


def test_names_of_arrays_are_no_markup(tmp_path: Path) -> None:
    path = tmp_path / "<b>x&.npy"
    np.save(path, np.ones(8))
    with cf.Profile() as profile:
        cf.sum(path, device="cpu")
    profile.html(tmp_path / "run.html")
    text = (tmp_path / "run.html").read_text()
    assert "<b>x" not in text
    assert "&lt;b&gt;x&amp;.npy" in text


@pytest.mark.parametrize("runs", [0, 1])
def test_of_little_too(runs: int, tmp_path: Path) -> None:
    with cf.Profile() as profile:
        for _ in range(runs):
            cf.sum(np.ones(3), device="cpu")
    profile.html(tmp_path / "run.html")
    assert written(profile, tmp_path / "run.json")
    assert f"{runs} run" in profile._repr_html_()


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs Chromium")
def test_a_browser_runs_the_page(profile: cf.Profile, tmp_path: Path) -> None:
    profile.html(tmp_path / "run.html")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/browser", "--dump-dom"]
    page = ["chromium", *options, f"file://{tmp_path}/run.html"]
    seen = subprocess.run(page, capture_output=True, text=True, check=True, timeout=120).stdout
    assert "of a budget of 1 MB." in seen
    assert seen.count('<span><i style="background:#') == 3, "the key has the stages that there were"


def test_a_picture_has_a_bar_for_each_span(profile: cf.Profile) -> None:
    pytest.importorskip("matplotlib")
    figure = profile.plot()
    assert figure._repr_png_().startswith(b"\x89PNG"), "a notebook shows it"
    above, below = figure.axes
    assert sum(len(bars.get_paths()) for bars in above.collections) == 3 * BLOCKS
    assert above.get_yticklabels()[0].get_text() == "read 0"
    assert len(below.lines) == 3
