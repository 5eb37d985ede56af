"""What arrays are in files, for ``chunkflow info FILE``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from chunkflow.cli.common import described
from chunkflow.errors import ChunkflowError, hidden
from chunkflow.stores import open_source
from chunkflow.stores.checks import TimesError
from chunkflow.stores.protocol import stored_chunks_of
from chunkflow.stores.registry import arrays_in, stored
from chunkflow.stores.times import Counts


def show(files: Sequence[str], *, as_json: bool) -> int:
    """Print the arrays of some files."""
    if as_json:
        print(json.dumps([about for file in files for about, _ in contents(file)], indent=1))
    else:
        for file in files:
            for _, line in contents(file):
                print(line, flush=True)
    return 0


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
    about = {
        "path": hidden(path),
        "dtype": str(spec.dtype),
        "shape": list(spec.shape),
        "bytes": spec.nbytes,
        "chunks": chunks and list(chunks),
        "read": spec.storage.how,
    }
    line = described(spec, hidden(path)) + (f", chunks {chunks}" if chunks else "")
    return about, line + (f", read {spec.storage.how}" if spec.storage.how else "")
