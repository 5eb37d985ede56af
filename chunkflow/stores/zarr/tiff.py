"""TIFF files by tifffile: one that is not compressed as a mapped file, others as a zarr array that decodes them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import zarr

from chunkflow.core.grid import Region, Shape
from chunkflow.errors import ReadError
from chunkflow.stores.identity import Guard
from chunkflow.stores.kvstore.protocol import FileError
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
            if len(files) > 1:
                frames = tifffile.TiffSequence(files, imread=Frames(tifffile.imread))
                store = stack.enter_context(closing(frames.aszarr()))
            elif several:
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
    except FileError as error:
        raise ReadError(f"tifffile cannot read {path}: {error}", path=path) from error
    except Exception as error:  # of tifffile's, and of its decoders'
        raise ReadError(
            f"tifffile cannot read {path}, which may be damaged: {type(error).__name__}: {error}", path=path
        ) from error


class Frames:
    """Reads the files of a stack one by one, and refuses what is not as the first that it has read.

    Tifffile would take the bytes of another dtype or shape for those of the first. Files are compared when they are
    read: to look into each of many beforehand takes as long as to read small ones, at each opening.
    """

    def __init__(self, imread: Callable[[str], np.ndarray]) -> None:
        self._imread = imread
        self._first: tuple[str, Shape, np.dtype] | None = None

    def __call__(self, file: str, **_: Any) -> np.ndarray:
        name = os.path.abspath(file)
        try:
            found = self._imread(file)
        except MemoryError:
            raise
        except Exception as error:
            raise FileError(f"{name} is damaged, or no TIFF file: {str(error) or type(error).__name__}") from error
        if self._first is None:
            self._first = name, found.shape, found.dtype
        first, shape, dtype = self._first
        if found.shape == shape and found.dtype == dtype:
            return found
        if found.shape == shape and found.dtype.newbyteorder("=") == dtype.newbyteorder("="):
            return found.astype(dtype)
        raise FileError(
            f"{name} holds {found.dtype} {found.shape}, but the first file, {first}, {dtype} {shape}, and all files of "
            "an array have one dtype and shape: leave it out of the pattern, or convert it; concatenate joins "
            "stacks of different lengths"
        )


class TiffSource(ZarrSource):
    """A store of tifffile's, which reads and decodes what is asked for."""

    opened: ExitStack
    in_order: list[str]
    """Its files, one behind the other."""
    kind = "of"
    fills = False  # TIFF has no missing values: the fill value is tifffile's

    def __init__(self, path: str, files: list[str], store: Any) -> None:
        name = os.path.abspath(path)
        self.in_order = list(map(os.path.abspath, files))
        super().__init__(zarr.open_array(store, mode="r"), Guard.of_files(name, *self.in_order))
        self.spec = replace(self.spec, name=name)

    def where(self, region: Region) -> str:
        """See `Located.where`: of several files the one with the region's first element."""
        return self.in_order[region[0].start] if len(self.in_order) > 1 else self.spec.name

    def close(self) -> None:
        """See `Source.close`."""
        super().close()
        self.opened.close()
