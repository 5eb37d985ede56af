"""``chunkflow rechunk`` copies an array into a zarr array with other chunks."""

from __future__ import annotations

import argparse

import chunkflow as cf
from chunkflow.cli.common import Commands, add_chunks, add_output, command, described, output_options, run_options

TEXT = """\
No chunk is read or written twice. Where a block of whole chunks of both does not fit the budget, there are two passes,
through a temporary array of the same size beside DST. --explain says which.

  chunkflow rechunk time.zarr space.zarr --chunks all,64,64 --budget 4GB"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "rechunk", run, "copy an array into a zarr array with other chunks", TEXT)
    parser.add_argument("source", metavar="SRC", help="any array: .npy, zarr, x.h5:/name, or a URL")
    parser.add_argument("out", metavar="DST", help="path of the zarr array")
    add_chunks(parser, required=True)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Rechunk, or print the plan."""
    if options.explain:
        print(cf.rechunk_plan(options.source, options.chunks, **run_options(options)))
        return 0
    done = cf.rechunk(options.source, options.chunks, options.out, **output_options(options))
    print(f"{described(done, options.out)}, chunks {done.chunks}")
    return 0
