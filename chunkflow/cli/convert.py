"""``chunkflow copy`` and ``chunkflow convert``, which are one: an array is copied from any format into any other."""

from __future__ import annotations

import argparse
import warnings
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
from chunkflow.errors import CodingWarning

TEXT = """\
The end of DST says its format: .zarr, .npy, .h5, .tif. Attributes and names of dimensions stay from zarr to zarr.
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
        work = (cf.store, lazy if dtype is None else lazy.astype(dtype), _place(options))
    else:
        if options.decode == "raw":
            warnings.simplefilter("ignore", CodingWarning)
        given["out"] = _place(options)
        source = opened(options.source) if matching(options.source) else options.source
        work = (cf.copy, source)
        if dtype is not None:
            work = (cf.map, lambda block: block.astype(dtype), source)
    if options.explain:
        print(cf.explain(*work, **given))
        return 0
    print(described(work[0](*work[1:], **given), options.out))
    return 0


def _place(options: argparse.Namespace) -> cf.NewArray:
    said = {"chunks": options.chunks, "shards": options.shards, "zarr_format": options.zarr_format}
    if options.compressor is not None:
        said["compressors"] = None if options.compressor == "none" else options.compressor
    return cf.NewArray(options.out, format=options.format, **said)


def _dtype(text: str) -> np.dtype:
    try:
        return np.dtype(text)
    except TypeError:
        refuse(f"--dtype {text} is no dtype: give a name of NumPy's, as float32")
