"""New TIFF files: all pages are described at the start, and the elements follow one another, as in any other file.

Source: "TIFF Revision 6.0", 1992, sections 2, 3, 8 and 19; and BigTIFF's format, for larger files.
"""

from __future__ import annotations

import json
import math
import os
import struct
import sys
from typing import NamedTuple

import numpy as np

from chunkflow.core.grid import Shape
from chunkflow.core.spec import ArraySpec
from chunkflow.core.unknown import is_known_dtype
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.stores.file.new_file import NewFileTarget
from chunkflow.stores.new_array import NewArray

BEGINNINGS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
"""How TIFF files begin."""

SHORT, LONG, LONG8, ASCII = (3, "H"), (4, "I"), (16, "Q"), (2, "s")
"""Kinds of values: their number in a tag, and `struct`'s letter."""

SAMPLES = {"u": 1, "i": 2, "f": 3, "c": 6}
"""What the tag SampleFormat says of a kind of dtypes."""

MOST_PAGES = 1 << 16
"""Each takes some 200 bytes of the description, which is made in memory."""

ALIGNED = 64


class TagLayout(NamedTuple):
    """How numbers lie in a file: the mark of its kind, and those of an offset, of a count of tags, and of a tag."""

    start: str
    mark: tuple[int, ...]
    offset: tuple[int, str]
    number: str
    tag: str


CLASSIC = TagLayout("HI", (42,), LONG, "H", "HHI4s")
BIG = TagLayout("HHHQ", (43, 8, 0), LONG8, "Q", "HHQ8s")


def header(shape: Shape, dtype: np.dtype) -> bytes:
    """What stands before the elements of an array: the last two axes are those of a page, and one image are all pages.

    >>> header((3, 5), np.dtype("u1"))[:4] in BEGINNINGS
    True
    """
    height, width = (1, 1, *shape)[-2:]
    pages, nbytes = math.prod(shape[:-2]), height * width * dtype.itemsize
    said = json.dumps({"shape": shape}).encode() + b"\0"  # by which tifffile knows the axes
    layout = CLASSIC if pages * (nbytes + 256) + len(said) + 256 < 1 << 32 else BIG
    order = "<" if sys.byteorder == "little" else ">"
    start, last = struct.calcsize(order + layout.start) + 2, struct.calcsize(order + layout.offset[1])

    def directory(page: int, at: int, text: int, elements: int) -> bytes:
        """The tags of a page, which stand `at` a place, and those of the next one behind them."""
        tags = [
            (256, LONG, 1, width),
            (257, LONG, 1, height),
            (258, SHORT, 1, 8 * dtype.itemsize),
            (259, SHORT, 1, 1),  # not compressed
            (262, SHORT, 1, 1),  # larger numbers are brighter
            *([(270, ASCII, len(said), text)] if page == 0 else []),
            (273, layout.offset, 1, elements + page * nbytes),
            (277, SHORT, 1, 1),
            (278, LONG, 1, height),
            (279, layout.offset, 1, nbytes),
            (339, SHORT, 1, SAMPLES[dtype.kind]),
        ]
        found = struct.pack(order + layout.number, len(tags))
        for name, (kind, letter), count, value in tags:
            packed = struct.pack(order + (layout.offset[1] if letter == "s" else letter), value)
            found += struct.pack(order + layout.tag, name, kind, count, packed)
        following = at + len(found) + last
        return found + struct.pack(order + layout.offset[1], 0 if page == pages - 1 else following)

    sizes = [len(directory(page, 0, 0, 0)) for page in (0, 1)]
    text = start + sizes[0] + (pages - 1) * sizes[1]
    elements = -(-(text + len(said)) // ALIGNED) * ALIGNED
    first = struct.pack(order + layout.start, *layout.mark, start)
    parts, at = [b"II" if order == "<" else b"MM", first], start
    for page in range(pages):
        parts.append(directory(page, at, text, elements))
        at += sizes[page > 0]
    return b"".join([*parts, said]).ljust(elements, b"\0")


class TiffTarget(NewFileTarget):
    """A TIFF file that the run creates, of one page for each plane of the last two axes."""

    kind = "a TIFF file"

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False, said: NewArray | None = None) -> None:
        super().__init__(path, overwrite=overwrite, said=said)
        self.takes_order = False

    def replaces(self, path: str) -> bool:
        with open(path, "rb") as file:
            return file.read(4) in {b"", *BEGINNINGS}

    def header(self, spec: ArraySpec) -> bytes:
        return header(spec.shape, spec.dtype)

    def describe(self, shape: Shape, dtype: np.dtype, chunks: Shape | None) -> ArraySpec:
        spec = super().describe(shape, dtype, chunks)
        most = 16 if spec.dtype.kind == "c" else 8
        if is_known_dtype(spec.dtype) and (spec.dtype.kind not in SAMPLES or spec.dtype.itemsize > most):
            black_and_white = spec.dtype.kind == "b"
            way = "x.astype('u1') * 255, which programs show black and white" if black_and_white else "astype('u1')"
            raise ArgumentTypeError(
                f"{self.name}: TIFF has no {spec.dtype}: give a result of integers, or of floats of at most 64 bits, "
                f"as by {way}"
            )
        pages = math.prod(spec.shape[:-2])
        if not spec.size or pages > MOST_PAGES or max(spec.shape, default=1) >= 1 << 32:
            raise ArgumentError(
                f"{self.name}: an array of shape {spec.shape} is {pages} pages of {spec.shape[-2:]}, and a TIFF file "
                f"is written with 1 to {MOST_PAGES}, none of them empty: write a .zarr"
            )
        return spec
