"""TIFF files by tifffile: one that is not compressed as a mapped file, others as a zarr array that decodes them."""

from __future__ import annotations

import importlib
import os
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from typing import Any

import zarr

from chunkflow.errors import ReadError
from chunkflow.stores.identity import Guard
from chunkflow.stores.ndarray import ndarray_source
from chunkflow.stores.paths import tiff_files
from chunkflow.stores.protocol import Source
from chunkflow.stores.zarr.array import ZarrSource


def open_tiff(path: str) -> Source:
    """Source of a TIFF file, of an image in several resolutions the first, or of all that match a pattern.

    Raises
    ------
    ReadError
        Tifffile cannot read them.
    """
    files = tiff_files(path)
    tifffile, several = importlib.import_module("tifffile"), files != [path]
    try:
        with ExitStack() as stack:
            if several:
                store = stack.enter_context(closing(tifffile.imread(files, aszarr=True)))
            else:
                file = stack.enter_context(open(path, "rb"))  # tifffile leaves one open that is damaged
                found = stack.enter_context(tifffile.TiffFile(file))
                with suppress(Exception):  # uncompressed, and in one piece
                    return ndarray_source(tifffile.memmap(path, mode="r"))
                store = found.aszarr(level=0)
            source = TiffSource(path, files, store)
            source.opened = stack.pop_all()
        return source
    except Exception as error:  # of tifffile's, and of its decoders'
        raise ReadError(f"tifffile cannot read {path}: {type(error).__name__}: {error}", path=path) from error


class TiffSource(ZarrSource):
    """A store of tifffile's, which reads and decodes what is asked for."""

    opened: ExitStack

    def __init__(self, path: str, files: list[str], store: Any) -> None:
        name = os.path.abspath(path)
        super().__init__(zarr.open_array(store, mode="r"), Guard.of_files(name, *map(os.path.abspath, files)))
        self.spec = replace(self.spec, name=name)

    def close(self) -> None:
        """See `Source.close`."""
        super().close()
        self.opened.close()
