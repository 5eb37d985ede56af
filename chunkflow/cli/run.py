"""``chunkflow run`` computes an expression or a function of arrays; ``chunkflow explain`` shows its plan."""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import re
import string
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

import chunkflow as cf
from chunkflow.api.operation import is_operation
from chunkflow.cli.common import (
    Commands,
    add_chunks,
    add_decode,
    add_output,
    add_run,
    byte_count,
    check_writable,
    command,
    described,
    opened,
    output_options,
    positive,
    refuse,
    run_options,
    shows_progress,
)
from chunkflow.core.units import format_bytes
from chunkflow.engine.budget import DEFAULT
from chunkflow.graph.nodes import Lazy

TEXT = """\
FN is an expression or module:function.

An expression, as "np.sqrt(a**2 + b**2)", has the names a, b, c ... for the inputs in their order, and x for the first;
np is NumPy, cf is chunkflow. Python evaluates it: it may do whatever your own code may, so never take it from others.

A function is called with each block, a NumPy or CuPy array, as by cf.map; with --depth blocks have so many elements of
their neighbours around them, as by cf.map_overlap. With --lazy it is called once, with lazy arrays. NumPy's functions
and chunkflow's, as chunkflow:mean, always get lazy arrays. Modules of the current directory are found.
"""

RUN = """\
OUT is a path that ends in .zarr, .npy, .tif or .h5, or file.h5:/name; - prints a small result.

  chunkflow run "np.sqrt(a**2 + b**2)" u.zarr v.zarr speed.zarr --budget 4GB
  chunkflow run "a.mean(axis=0)" speed.zarr mean.npy
  chunkflow run "np.histogram(a, bins=10, range=(0, 5))" speed.zarr -
  chunkflow run filters:smooth speed.zarr smooth.zarr --depth 2 --boundary nearest --resume"""

EXPLAIN = """\
The arguments are those of `chunkflow run`, so a line can be edited. Nothing is written. A function of blocks is called
with a small one.

  chunkflow explain "np.sqrt(a**2 + b**2)" u.zarr v.zarr speed.zarr --budget 4GB
  chunkflow explain "(a**2).mean()" u.zarr - --workers 256 --partition 64GB"""

MOST_PRINTED = 1 << 20
"""Elements of the largest result that is printed."""

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
"""A function of a module, as Python writes it."""


def add(commands: Commands) -> None:
    """Add the commands."""
    parser = command(commands, "run", run, "compute an expression or a function of arrays", f"{TEXT}\n{RUN}")
    _add_arguments(parser)
    add_chunks(parser)
    add_output(parser)
    told = "write when each stage was busy: a page (.html), or a trace for ui.perfetto.dev (.json)"
    parser.add_argument("--trace", metavar="FILE", help=told)
    parser.add_argument("--report", action="store_true", help="print seconds, bytes and GB/s of each stage, and advice")

    told = "show the plan of `run`: passes, blocks, bytes, memory and seconds"
    parser = command(commands, "explain", explain, told, f"{TEXT}\n{EXPLAIN}")
    _add_arguments(parser)
    add_chunks(parser)
    add_run(parser)
    parser.add_argument("--workers", type=positive, metavar="N", help="show the tasks for so many workers of dask")
    parser.add_argument(
        "--partition", type=byte_count, metavar="BYTES", help="bytes of a worker's task, as 64GB; with --workers"
    )


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("fn", metavar="FN", help="an expression, or module:function")
    parser.add_argument("inputs", metavar="INPUT", nargs="+", help="arrays: .npy, zarr, x.h5:/name, TIFF, or URLs")
    parser.add_argument("out", metavar="OUT", help="where the result goes; - prints it")
    add_decode(parser)
    parser.add_argument("--lazy", action="store_true", help="call module:function once, with lazy arrays")
    told = "elements of neighbours around each block, for module:function: one number, or one for each axis, as 0,1,1"
    parser.add_argument("--depth", type=depth_of, metavar="N", help=told)
    told = "beyond the edges: none (the default), nearest, reflect, mirror, periodic, or a number"
    parser.add_argument("--boundary", type=boundary_of, metavar="KIND", help=f"with --depth, {told}")


def run(options: argparse.Namespace) -> int:
    """Compute the result, and store or print it."""
    if options.explain:
        return explain(options)
    if options.trace:
        check_writable(options.trace, "--trace")
        if not options.trace.lower().endswith((".json", ".html")):
            refuse(f"--trace {options.trace} must end in .json, for a trace, or in .html, for a page")
    unused = [f"--{name}" for name in ("overwrite", "resume", "chunks") if getattr(options, name)]
    if options.out == "-" and unused:
        refuse(f"{unused[0]} is of an output in a file, and OUT is -, which prints the result: name a file")
    with cf.Profile() as profile:
        result = evaluated(options)
        if options.out == "-":
            print(_printed(result, options))
        else:
            done = _stored(result, options)
            print(described(done, options.out), end="")
    report = profile.report
    if options.out != "-":
        print(f", in {report.seconds:.3g} s; peak memory {format_bytes(report.peak)}")
    if options.report:
        advice = f"\n\n{report.advice()}" if report.seen else ""
        print(f"{report}{advice}", file=sys.stderr if options.out == "-" else sys.stdout)
    if options.trace:
        (profile.html if options.trace.lower().endswith(".html") else profile.trace)(options.trace)
    return 0


def explain(options: argparse.Namespace) -> int:
    """Print the plan."""
    given = run_options(options)
    for name in ("workers", "partition"):
        if (value := getattr(options, name, None)) is not None:
            given[name] = value
    if "partition" in given and "workers" not in given:
        refuse("--partition is the size of a worker's task: give --workers too")
    result = evaluated(options)
    if not any(isinstance(each, Lazy) for each in _several(result)):
        print("the result was computed at once: its length depends on the values")
        return 0
    several = isinstance(result, list | tuple)
    if "workers" in given or several or options.out == "-":
        print(cf.explain(result, **given))
    else:
        print(
            cf.explain(
                cf.store,
                result,
                options.out,
                chunks=options.chunks,
                overwrite=getattr(options, "overwrite", True),
                **given,
            )
        )
    return 0


def evaluated(options: argparse.Namespace) -> Any:
    """The result of FN: a lazy array or several, or a value where it had to be computed at once."""
    arrays = [opened(path, options.decode) for path in options.inputs]
    if options.boundary is not None and options.depth is None:
        refuse("--boundary says what lies beyond the edges for --depth: give that too")
    with cf.Budget(options.budget or DEFAULT):  # of what is computed at once, as the mask of a[a > 3]
        if _FUNCTION.fullmatch(options.fn):
            function = _imported(options.fn)
            whole = options.lazy or is_operation(function) or _is_numpy(function)
            if options.depth is not None and not whole:
                around = {} if options.boundary is None else {"boundary": options.boundary}
                return cf.map_overlap(function, *arrays, depth=options.depth, chunks=options.chunks, **around)
            if options.depth is None:
                return function(*arrays) if whole else cf.map(function, *arrays, chunks=options.chunks)
        if options.depth is not None:
            refuse(f"--depth is for a function that is called with each block, and {options.fn} is none")
        return _expression(options.fn, arrays)


def depth_of(text: str) -> int | tuple[int, ...]:
    """A number, or one for each axis."""
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number, and no numbers as 0,1,1")
    sides = tuple(map(int, text.split(",")))
    return sides if len(sides) > 1 else sides[0]


def boundary_of(text: str) -> str | float:
    """A number, or the name of a kind."""
    try:
        return float(text)
    except ValueError:
        return text


def _expression(text: str, arrays: Sequence[Any]) -> Any:
    names = dict(zip(string.ascii_lowercase, arrays, strict=False))
    try:
        found = eval(text, {"np": np, "cf": cf, **names, "x": names.get("x", arrays[0])})
    except (Exception, SystemExit) as error:
        if isinstance(error, cf.ChunkflowError):
            raise
        inputs = ", ".join(list(names)[: len(arrays)])
        also = f"; the inputs are {inputs}" if isinstance(error, NameError) else ""
        if also and _DOTTED.fullmatch(text):
            also = f": write {':'.join(text.rsplit('.', 1))} for the function of the module{also}"
        refuse(f"cannot evaluate {text!r}: {type(error).__name__}: {error}{also}")
    if isinstance(found, str):
        refuse(f"{text!r} is a text: write the expression without quotes of its own, as {found!r}")
    if callable(found) and not hasattr(found, "shape"):
        alone = text.partition(":")[2].strip() if text.startswith("lambda") else ""
        way = f"its expression alone, as {alone}" if alone else f"it with its arguments, as {text}()"
        refuse(f"{text!r} is a function, and not called: write {way}")
    named = {node.id for node in ast.walk(ast.parse(text.strip(), mode="eval")) if isinstance(node, ast.Name)}
    for name in list(names)[: len(arrays)]:
        if name not in named and not (name == "a" and "x" in named):
            refuse(f"input {name} is not in the expression {text!r}: leave it out, or name it")
    return found


def _imported(text: str) -> Any:
    name, _, function = text.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(name)
        for part in function.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        refuse(f"cannot find {text}: {error}")
    if not callable(found):
        refuse(f"{text} is no function: its type is {type(found).__name__}")
    return found


def _is_numpy(function: Any) -> bool:
    return isinstance(function, np.ufunc) or str(getattr(function, "__module__", "")).partition(".")[0] == "numpy"


def _stored(result: Any, options: argparse.Namespace) -> Any:
    if len(_several(result)) > 1:
        refuse(f"{options.fn} gives {len(result)} arrays, and OUT takes one: pick it, as ({options.fn})[0]")
    if isinstance(result, Lazy):
        return cf.store(result, options.out, chunks=options.chunks, **output_options(options))
    return cf.copy(np.asarray(result), options.out, chunks=options.chunks, **output_options(options))


def _printed(result: Any, options: argparse.Namespace) -> str:
    several = _several(result)
    for each in several:
        if np.size(each) > MOST_PRINTED:
            refuse(f"the result has the shape {each.shape}, which is too much to print: name a file as OUT")
    done = cf.compute(*several, progress=shows_progress(), **run_options(options))
    return "\n".join(map(str, done if len(several) > 1 else [done]))


def _several(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, tuple | list) else (result,)
