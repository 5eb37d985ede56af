"""``chunkflow rechunk`` copies an array into a zarr array with other chunks."""

from __future__ import annotations

import argparse
import warnings

import chunkflow as cf
from chunkflow.cli.common import (
    ARRAY,
    Commands,
    add_chunks,
    add_decode,
    add_output,
    command,
    described,
    matching,
    opened,
    output_options,
    run_options,
)
from chunkflow.cli.convert import among_coordinates, coded_in, labelled
from chunkflow.errors import CodingWarning

TEXT = """\
No chunk is read or written twice. Where a block of whole chunks of both does not fit the budget, there are two passes,
through a temporary array of the same size beside DST. --explain says which. Coordinates of SRC are copied beside a DST
in a group.

  chunkflow rechunk time.zarr space.zarr --chunks all,64,64 --budget 4GB"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "rechunk", run, "copy an array into a zarr array with other chunks", TEXT)
    parser.add_argument("source", metavar="SRC", help=ARRAY)
    parser.add_argument("out", metavar="DST", help="path of the zarr array")
    add_chunks(parser, required=True)
    add_decode(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Rechunk, or print the plan."""
    if options.decode == "cf":  # numbers are computed on the way
        lazy = opened(options.source, "cf")
        work = (cf.store, lazy, labelled(cf.NewArray(options.out), options.source, coded_in(lazy)))
        if options.explain:
            print(cf.explain(*work, chunks=options.chunks, **run_options(options)))
            return 0
        with among_coordinates(options.source, cf.NewArray(options.out), options.overwrite or options.resume):
            done = cf.store(*work[1:], chunks=options.chunks, **output_options(options))
        print(f"{described(done, options.out)}, chunks {done.chunks}")
        return 0
    if options.decode == "raw":
        warnings.simplefilter("ignore", CodingWarning)
    source = opened(options.source) if matching(options.source) else options.source
    if options.explain:
        print(cf.rechunk_plan(source, options.chunks, **run_options(options)))
        return 0
    with among_coordinates(options.source, cf.NewArray(options.out), options.overwrite or options.resume):
        done = cf.rechunk(source, options.chunks, options.out, **output_options(options))
    print(f"{described(done, options.out)}, chunks {done.chunks}")
    return 0
