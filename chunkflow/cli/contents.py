"""What arrays are in files, for ``chunkflow info FILE``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np

from chunkflow.cli.common import described
from chunkflow.errors import ChunkflowError, hidden
from chunkflow.stores import open_source
from chunkflow.stores.cf import NAMES
from chunkflow.stores.cf_times import OF_TIMES
from chunkflow.stores.checks import TimesError
from chunkflow.stores.new_array import labels_of
from chunkflow.stores.protocol import Source, stored_chunks_of
from chunkflow.stores.registry import arrays_in, stored
from chunkflow.stores.times import Counts


def show(files: Sequence[str], *, as_json: bool) -> int:
    """Print the arrays of some files."""
    found: list[dict[str, Any]] = []
    failed = False
    for file in files:
        try:
            for about, line in contents(file):
                found.append(about)
                if not as_json:
                    print(line, flush=True)
        except ChunkflowError as error:
            if len(files) == 1:
                raise
            failed = True
            found.append({"path": hidden(file), "error": hidden(str(error))})
            if not as_json:
                print(f"{hidden(file)}: {hidden(str(error))}", flush=True)
    if as_json:
        print(json.dumps(found, indent=1))
    return 2 if failed else 0


def contents(file: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Of each array in a file what is known of it, and a line that says so. An array that cannot be read says why."""
    paths = arrays_in(file)
    for path in paths:
        try:
            yield _facts(path)
        except ChunkflowError as error:
            if paths == [file]:
                raise
            yield {"path": hidden(path), "error": str(error)}, f"{hidden(path)}: {error}"


def _facts(path: str) -> tuple[dict[str, Any], str]:
    """What is known of an array without reading its elements, and a line that says so."""
    given, times = stored(path), None
    try:
        source = open_source(given)
    except TimesError as error:
        source, times = open_source(Counts(given.path, error.dtype)), error.dtype
    with closing(source):
        spec, chunks = replace(source.spec, dtype=times or source.spec.dtype), stored_chunks_of(source)
        meaning, means = _meaning(source)
    about = {
        "path": hidden(path),
        "dtype": str(spec.dtype),
        "shape": list(spec.shape),
        "bytes": spec.nbytes,
        "chunks": chunks and list(chunks),
        "read": spec.storage.how,
        **meaning,
    }
    line = described(spec, hidden(path)) + (f", chunks {chunks}" if chunks else "") + means
    return about, line + (f", read {spec.storage.how}" if spec.storage.how else "")


def _meaning(source: Source) -> tuple[dict[str, Any], str]:
    """What an array's numbers mean, by its attributes, and the same in words.

    >>> from types import SimpleNamespace
    >>> said = {"units": "K", "scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -1}
    >>> _meaning(SimpleNamespace(attributes=said, spec=SimpleNamespace(dtype=np.dtype("i2"))))[1]
    ', units K, packed as int16 * 0.01 + 273.15, missing values stored as -1'
    """
    labels = labels_of(source)
    attributes = {**(labels.attributes or {}), **getattr(source, "attributes", {})}
    masked = getattr(source, "masked", None)
    is_filled = masked is not None and source.spec.dtype.kind in "iuf" and "_FillValue" not in attributes
    said = {name: _plain(attributes[name]) for name in (*OF_TIMES, *NAMES) if name in attributes}
    dimensions = labels.dimension_names
    level = getattr(source, "level", lambda: None)()
    words = f", dimensions ({', '.join(name or '?' for name in dimensions)})" if dimensions else ""
    if level is not None:
        units = dict.fromkeys(unit for unit in level.units if unit is not None)
        same = len(units) == 1 and None not in level.units
        shown = [unit or "?" for unit in (units if same else level.units)]
        words += f", units {shown[0] if same else '(' + ', '.join(shown) + ')'}" if units else ""
        words += f", scale ({', '.join(f'{n:g}' for n in level.scale)})" if level.scale else ""
    for name in ("units", "calendar"):
        words += f", {name} {said[name]}" if said.get(name) not in (None, "") else ""
    scale, offset = said.get("scale_factor"), said.get("add_offset")
    signs = {("i", "true"): " without signs", ("u", "false"): " with signs"}
    sign = signs.get((source.spec.dtype.kind, str(said.get("_Unsigned", "")).lower()), "")
    if scale is not None or offset is not None or sign:
        words += f", packed as {source.spec.dtype}{sign}"
        words += ("" if scale is None else f" * {scale}") + ("" if offset is None else f" + {offset}")
    found = [text for name in ("_FillValue", "missing_value") if name in said for text in _texts(said[name])]
    missing = [text for text in dict.fromkeys(found) if text != "nan"]
    words += f", missing values stored as {', '.join(missing)}" if missing else ""
    if is_filled and (fill := str(_plain(masked))) != "nan":
        words += f", fill value {fill} (a missing value with --decode cf)"
    about: dict[str, Any] = {"dimensions": dimensions and list(dimensions), "attributes": said}
    if level is not None:
        about |= {"axis_units": list(level.units), "scale": level.scale and list(level.scale)}
    return about | ({"fill_value": _plain(masked)} if is_filled else {}), hidden(words)


def _texts(value: Any) -> list[str]:
    return list(map(str, value)) if isinstance(value, list) else [str(value)]


def _plain(value: Any) -> Any:
    """An attribute as JSON has it, which has no NaN."""
    found = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    return str(found) if isinstance(found, float) and not math.isfinite(found) else found
