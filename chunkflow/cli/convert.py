"""``chunkflow copy`` and ``chunkflow convert``, which are one: an array is copied from any format into any other."""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Container, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np

import chunkflow as cf
from chunkflow.cli.common import (
    ARRAY,
    Commands,
    add_chunks,
    add_decode,
    add_output,
    command,
    described,
    lengths,
    matching,
    opened,
    output_options,
    refuse,
)
from chunkflow.errors import ChunkflowError, CodingWarning, LossWarning
from chunkflow.stores import Source, format_of, open_source, open_target, spec_of
from chunkflow.stores.cf import NAMES
from chunkflow.stores.cf_times import OF_TIMES
from chunkflow.stores.new_array import labels_for, labels_of
from chunkflow.stores.paths import hdf5_parts
from chunkflow.stores.registry import arrays_in
from chunkflow.system.deferred import at
from chunkflow.system.users_line import users_line

TEXT = """\
The end of DST says its format: .zarr, .npy, .h5, .tif. Attributes and names of dimensions stay among zarr, HDF5 and
netCDF. Where DST names a member of a group (OUT.zarr/t2m, OUT.nc:t2m), coordinates of its dimensions are copied beside.
A dataset of an HDF5 file is file.h5:/name; file.h5 alone is its only dataset as SRC, and /data as DST. tifffile reads
TIFF, also many files of one stack ("frames/*.tif"), and xarray netCDF 3 (file.nc:name), where they are installed.

  chunkflow copy wind.npy wind.zarr --chunks 64,64,64 --compressor zstd
  chunkflow convert run.h5:/fields/u u.zarr --shards 256,256,256 --chunks 64,64,64 --dtype float32
  chunkflow copy packed.nc:/t2m t2m.zarr --decode cf"""


def add(commands: Commands) -> None:
    """Add the command."""
    told = "copy an array, also into another format, with other chunks or of another dtype"
    parser = command(commands, "copy", run, told, TEXT, aliases=["convert"])
    parser.add_argument("source", metavar="SRC", help=ARRAY)
    parser.add_argument("out", metavar="DST", help="path of the copy; it must not exist without --overwrite")
    parser.add_argument("--format", choices=("zarr", "npy", "hdf5"), help="format of DST, if its end does not say it")
    add_chunks(parser)
    parser.add_argument("--shards", type=lengths, metavar="N,N,...", help="sides of zarr's shards, beside --chunks")
    parser.add_argument("--compressor", help="zstd, blosc, lz4, gzip ..., or none (default: zstd in zarr)")
    told = "add a checksum to each chunk (zarr 3 has one without asking, unless --compressor is given)"
    parser.add_argument("--checksum", action="store_true", help=told)
    parser.add_argument("--zarr-format", type=int, choices=(2, 3), help="of a new zarr array")
    parser.add_argument("--dtype", help="dtype of the copy, as float32; numbers are cast as by astype")
    add_decode(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Copy, or print the plan."""
    dtype = None if options.dtype is None else _dtype(options.dtype)
    given = {"checksum": True if options.checksum else None, **output_options(options)}
    work: tuple[Any, ...]
    if options.decode == "cf":
        lazy = opened(options.source, "cf")
        if lazy.dtype.kind in "Mm" and dtype is None and format_of(_place(options)) not in ("zarr", "hdf5"):
            refuse(f"{options.source} holds times, which .zarr, .h5 and .nc have: --decode raw copies their numbers")
        if dtype is not None:
            lazy = lazy.astype(dtype) if lazy.dtype.kind in "Mm" else cf.map(partial(_cast, dtype=dtype), lazy)
        work = (cf.store, lazy, labelled(_place(options), options.source, coded_in(lazy)))
    else:
        if options.decode == "raw":
            warnings.simplefilter("ignore", CodingWarning)
        given["out"] = _place(options)
        source = opened(options.source) if matching(options.source) else options.source
        work = (cf.copy, source)
        if dtype is not None:
            given["out"] = labelled(_place(options), options.source)
            work = (cf.map, partial(_cast, dtype=dtype), source)
    if options.explain:
        print(cf.explain(*work, **given))
        return 0
    with among_coordinates(options.source, _place(options), options.overwrite or options.resume):
        made = work[0](*work[1:], **given)
    print(described(made, options.out))
    return 0


def _place(options: argparse.Namespace) -> cf.NewArray:
    said = {"chunks": options.chunks, "shards": options.shards, "zarr_format": options.zarr_format}
    if options.compressor is not None:
        said["compressors"] = None if options.compressor == "none" else options.compressor
    return cf.NewArray(options.out, format=options.format, **said)


def labelled(place: cf.NewArray, path: str, without: Container[str] = ()) -> cf.NewArray:
    """An output with the attributes of a source, but for those that hold no more, and the names of its dimensions."""
    if matching(path):  # a stack of files, each of which has its own
        return place
    with _opened(path) as source:
        return place.with_labels(labels_for(open_target(place, overwrite=True), source, without))


def coded_in(decoded: Any) -> set[str]:
    """Attributes that say how the numbers were stored of which an array was decoded."""
    return {*NAMES, *(OF_TIMES if decoded.dtype.kind in "Mm" else ())}


@contextmanager
def _opened(path: str) -> Iterator[Source]:
    """The source at a path; what its numbers mean was said before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CodingWarning)
        source = open_source(path)
    with closing(source):
        yield source


@contextmanager
def among_coordinates(source: str, place: cf.NewArray, overwrite: bool) -> Iterator[None]:
    """A context in which a copy is made in a group, with the coordinates of the source's dimensions beside it.

    They are copied as they are stored; what is there already stays. Of zarr groups that are made for it the metadata
    are consolidated at the end: other programs look for these.
    """
    target = open_target(place, overwrite=overwrite)  # what is refused leaves nothing behind
    is_local = "://" not in str(place.path) and format_of(place) == "zarr"
    above = reversed(getattr(target, "groups", [])) if is_local else ()
    new = [group for group in above if not os.path.lexists(group)]  # the innermost first
    _copy_coordinates(source, place)
    yield
    for group in new:
        at("chunkflow.stores.zarr.groups:consolidate_at")(group)


def _copy_coordinates(source: str, place: cf.NewArray) -> None:
    for path, out in _coordinates(source, str(place.path)):
        with warnings.catch_warnings(), suppress(ChunkflowError):  # texts, and what else is no array of numbers
            warnings.simplefilter("ignore", CodingWarning)
            if len(spec_of(path).shape) == 1:
                cf.copy(path, cf.NewArray(out, zarr_format=place.zarr_format), device="cpu")


def _coordinates(source: str, out: str) -> Iterator[tuple[str, str]]:
    """Paths of the coordinates of a source's dimensions, and of their copies."""
    if matching(source) or (here := _group(source)) is None or (there := _group(out)) is None:
        return
    with _opened(source) as opened:
        names = labels_of(opened).dimension_names or ()
    # A dimension of netCDF without a variable is a dataset of HDF5 that holds nothing.
    listed = None if hdf5_parts(source) is None else set(arrays_in(here[0].rstrip("/").removesuffix(":")))
    for name in names:
        if listed is not None and f"{here[0]}{name}" not in listed:
            continue
        if name not in (None, here[1], there[1]):
            yield f"{here[0]}{name}", f"{there[0]}{name}"


def _group(path: str) -> tuple[str, str] | None:
    """Where the neighbours of an array begin, and its name; None if it is in no group."""
    if (parts := hdf5_parts(path)) is not None:
        if parts[1] is None:  # its only dataset, which is named by the file alone
            return None
        group, _, name = parts[1].strip("/").rpartition("/")
        return f"{parts[0]}:/{group}{'/' if group else ''}", name
    above, _, name = path.rstrip("/").rpartition("/")
    return (f"{above}/", name) if ".zarr" in above else None


def _dtype(text: str) -> np.dtype:
    try:
        return np.dtype(text)
    except TypeError:
        refuse(f"--dtype {text} is no dtype: give a name of NumPy's, as float32")


def _cast(block: Any, dtype: np.dtype) -> Any:
    """A block as numbers of a dtype. Those that an integer cannot stand for are refused; what is cut off is said."""
    if dtype.kind not in "iu" or block.dtype.kind not in "iuf" or not block.size:
        return block.astype(dtype)
    limits = np.iinfo(dtype)
    if block.dtype.kind == "f" and bool((block != block).any()):
        refuse(f"--dtype {dtype} has no NaN, and there are some: choose a floating point dtype")
    least, most = block.min().item(), block.max().item()
    if least < limits.min or most == np.inf or int(most) > limits.max:
        refuse(f"--dtype {dtype} has numbers from {limits.min} to {limits.max}, and there are {least} to {most}")
    found = block.astype(dtype)
    if block.dtype.kind == "f" and bool((found != block).any()):
        warnings.warn(
            f"--dtype {dtype} cuts off what is behind the decimal point", LossWarning, stacklevel=users_line()
        )
    return found
