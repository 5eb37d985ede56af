"""What notebooks show of arrays, plans and budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import chunkflow as cf
from chunkflow.core.drawing import LINES, svg

CPU = {"device": "cpu"}


def cells(html: str) -> dict[str, str]:
    """The rows of a table of two columns. It parses as XML, so what is shown is text and no markup."""
    found = ET.fromstring(html)
    rows = [[cell.text or "" for cell in row] for row in found.iter("tr")]
    return {row[0]: row[1] for row in rows}


def test_a_source_shows_its_chunks(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "x.zarr", shape=(60, 40, 20), chunks=(20, 20, 20), dtype="f4")
    seen = cells(cf.open(tmp_path / "x.zarr")._repr_html_())
    assert seen["array"] == str(tmp_path / "x.zarr")
    assert (seen["shape"], seen["dtype"], seen["chunks"]) == ("(60, 40, 20)", "float32", "(20, 20, 20)")
    assert seen["bytes"] == "192.00 kB"
    assert "zstd" in seen["stored"]


def test_an_expression_shows_its_sources_and_passes() -> None:
    x, y = cf.open(np.ones((6, 4))), cf.open(np.ones(4))
    seen = cells(((x - x.mean()) * y).max(axis=0)._repr_html_())
    assert seen["passes"] == str(len(cf.explain(((x - x.mean()) * y).max(axis=0), **CPU))) == "2"
    assert seen["sources"].count("ndarray") == 2
    assert seen["shape"] == "(4,)"


def test_no_function_of_the_user_is_called() -> None:
    def fails(block: Any) -> Any:
        raise AssertionError("it was called")

    seen = cells(cf.open(np.ones((6, 4))).map(fails)._repr_html_())
    assert seen["dtype"] == "known when a block has been computed"


def test_names_are_no_markup(tmp_path: Path) -> None:
    np.save(tmp_path / "<i>&.npy", np.ones(3))
    x = cf.open(tmp_path / "<i>&.npy")
    assert cells(x._repr_html_())["array"].endswith("<i>&.npy")
    assert cf.explain(x.sum(), **CPU)._repr_html_().count("<") == 2


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 10**9)), max_size=5))
def test_a_drawing_of_any_shape(sides: list[tuple[int, int]]) -> None:
    shape, chunks = (tuple(side[i] for side in sides) for i in (0, 1))
    drawn = svg(shape, chunks)
    if not shape or not all(shape[-3:]):
        assert drawn == ""
        return
    found = ET.fromstring(drawn)
    width, height = (float(found.attrib[name]) for name in ("width", "height"))
    numbers = [
        float(line.attrib[f"{axis}{end}"]) for line in found for axis in "xy" for end in "12" if "x1" in line.attrib
    ]
    assert 0 <= min(numbers) <= max(numbers) <= max(width, height)
    assert sorted(text.text or "" for text in found if text.tag.endswith("text")) == sorted(map(str, shape[-3:]))
    assert len(numbers) / 4 <= 6 * (LINES + 1)


@pytest.mark.parametrize(
    ("shape", "chunks", "borders"), [((8,), (2,), 2 + 5), ((4, 6), (2, 3), 3 + 3), ((4, 6), None, 4)]
)
def test_borders_of_chunks_are_lines(shape: Any, chunks: Any, borders: int) -> None:
    assert svg(shape, chunks).count("<line") == borders


def test_a_budget_shows_its_peak() -> None:
    with cf.Budget("10MB") as budget:
        cf.sum(np.ones(1000), **CPU)
    seen = cells(budget._repr_html_())
    assert seen["budget"] == "10MB"
    assert seen["limit on cpu"] == "10.00 MB"
    assert seen["peak"] != "0 B"
