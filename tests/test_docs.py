"""Pages with examples do what they say."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
NEEDS = {"dask.md": ["dask"], "xarray.md": ["xarray"], "libraries.md": ["torch", "jax"]}


@pytest.mark.parametrize("page", sorted(p.name for p in DOCS.glob("*.md") if ">>> " in p.read_text()))
def test_examples_of_a_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NEEDS[page]:
        pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHUNKFLOW_DEVICE", "cpu")
    failed, tried = doctest.testfile(str(DOCS / page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert tried
    assert not failed
