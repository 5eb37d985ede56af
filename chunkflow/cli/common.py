"""What the commands share: their parsers, the options of a run, and one line for a user's mistake."""

from __future__ import annotations

import argparse
import difflib
import itertools
import os
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import chunkflow as cf
from chunkflow.core.settings import setting
from chunkflow.core.units import format_bytes, parse_bytes
from chunkflow.errors import (
    ArgumentError,
    ArgumentTypeError,
    BudgetError,
    ChunkflowError,
    DeviceError,
    OutputExistsError,
    PlaceError,
    SourceNotFoundError,
    UnsupportedError,
)
from chunkflow.stores.paths import HDF5, TIFF, hdf5_named
from chunkflow.stores.patterns import matching as matching_paths
from chunkflow.stores.patterns import pattern_of, unmatched

REFUSED = (
    ArgumentError,
    ArgumentTypeError,
    BudgetError,
    DeviceError,
    OutputExistsError,
    PlaceError,
    SourceNotFoundError,
    UnsupportedError,
)
"""Errors about what the user wrote. Others are of a run that failed."""

Commands = Any
"""What ``add_subparsers`` gives. argparse has no public name for it."""


_TRUE = re.compile(r"\b(overwrite|resume)=True")
_VALUE = re.compile(r"\b(budget|device)='?+([-\w:%.]*+)'?+(?! \()")
"""Keywords of Python's, as messages have them, which are options here; a setting has its origin behind it."""

_FORMAT = re.compile(r"or give its format, as chunkflow\.NewArray\(path, format='zarr'\)")
_KINDS = "give a .npy file, a zarr array, or a dataset of an HDF5 file ('file.h5:/name')"

_PATTERN = re.compile(r"chunkflow\.open\(('[^']*')\) is one")
"""How Python opens arrays of files as one, which a pattern does by itself here."""

_WORDS = (
    (_TRUE, r"--\1"),
    (_VALUE, r"--\1 \2"),
    (re.compile(r"chunkflow\.open\(path, decode='(\w+)'\)|\bdecode='(\w+)'"), r"--decode \1\2"),
    (re.compile(r", or pass the [\w.]+ itself, opened for writing, to write into it"), ""),
    (re.compile(r"open it and pass a NumPy array or np\.memmap, .*"), _KINDS),
    (re.compile(r"; chunkflow\.NewArray\(path, attributes=\{\.\.\.\}\) gives the new array others"), ""),
    (
        re.compile(r": in an expression dtype= must say so, with one for each"),
        ", and OUT takes one: return one of them",
    ),
    (_FORMAT, "or use chunkflow copy --format"),
    (re.compile(r"\bchunks='(\w+)'"), r"--chunks \1"),
    (re.compile(r"-1 for a whole one"), "all for a whole one"),
    (re.compile(r"\bcompressors='([\w.]+)'"), r"--compressor \1"),
    (re.compile(r"\. One of your own is known after [\w.]+"), ""),
    (
        re.compile(r"chunkflow\.open\(array\) makes .*"),
        "no command takes those: in Python chunkflow.open(path) does",
    ),
    (re.compile(r"\. Where it holds numbers, pass x\.astype\(float\).*"), ""),
    (_PATTERN, r"\1 is one"),
)
"""What messages say to those who write Python, and what is said here."""


ARRAY = "any array: .npy, zarr, x.h5:/name, TIFF, a URL; or a pattern of files in quotes, as 'step_*.h5:/u'"
"""What a command says of an array that it takes."""

MOST_NAMES = 3
"""Names of many that are listed."""

RESUME = "keep finished blocks, so that the same line goes on if it is killed or fails: give it from the first time"


class Help(argparse.HelpFormatter):
    """Fills paragraphs to the width of the terminal, and keeps lines that are indented: examples and tables."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        kept = {False: lambda lines: textwrap.fill(" ".join(lines), width), True: "\n".join}
        groups = itertools.groupby(text.splitlines(), lambda line: not line or line.startswith(" "))
        return "\n".join(kept[is_kept](list(lines)) for is_kept, lines in groups)


class Parser(argparse.ArgumentParser):
    """Parser whose errors are one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=Help, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The arguments of this parser. What it does not know is refused here, where its options are known."""
        given = list(sys.argv[1:] if args is None else args)
        found, rest = super().parse_known_args(given, namespace)
        if rest:
            self.error(f"unrecognized arguments: {_few(rest)}{unrecognized(rest, given, self._option_string_actions)}")
        return found, rest

    def error(self, message: str) -> NoReturn:
        """Exit with 2."""
        if wrong := _COMMAND.match(message):
            names = re.findall(r"[\w-]+", wrong[2])
            message = f"there is no command {wrong[1]!r}{close_to(wrong[1], names)}: commands are {', '.join(names)}"
        self.exit(2, f"chunkflow: error: {message} (see {self.prog} --help)\n")


_COMMAND = re.compile(r"argument COMMAND: invalid choice: '(.*)' \(choose from (.*)\)")
"""How argparse refuses a command."""

_OPTION = re.compile(r"--?[A-Za-z]")


def close_to(name: str, names: Iterable[str]) -> str:
    """A question in the middle of a sentence, if one of the names is like a misspelt one.

    >>> close_to("stat", ["run", "stats"]), close_to("x", ["run"])
    (' (did you mean stats?)', '')
    """
    close = difflib.get_close_matches(name, names, 1)
    return f" (did you mean {close[0]}?)" if close else ""


def unrecognized(rest: Sequence[str], given: Sequence[str], options: Iterable[str]) -> str:
    """What may be wrong with arguments that a command does not know: the end of a sentence."""
    unknown = [each.partition("=")[0] for each in rest if _OPTION.match(each)]
    if unknown:
        return close_to(unknown[0], options)
    for place, option in enumerate(given):
        numbers = list(itertools.takewhile(_SIDE.fullmatch, given[place + 1 :]))
        if _OPTION.match(option) and len(numbers) > 1:
            return f": numbers are joined by commas, as {option} {','.join(numbers)}"
    files = [each for each in rest if os.path.exists(each)]
    if files:
        folder, end = os.path.dirname(files[0]), os.path.splitext(files[0])[1]
        pattern = pattern_of(folder, end) + ":/name" * (end.lower() in HDF5)
        return f": one array is taken here. Put a pattern in quotes, as '{pattern}': that is one array of all files"
    if any(map(_OPTION.match, given)):
        return ", perhaps since an option stands among the arrays: give options after them"
    return ""


_SIDE = re.compile(r"\d+|all|auto")


def _few(names: Sequence[str]) -> str:
    """Names in a line, the first three of many."""
    return " ".join([*names[:MOST_NAMES], *["..."] * (len(names) > MOST_NAMES)])


def command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], int], help: str, text: str = "", **options: Any
) -> Parser:
    """Add a command. ``run(options)`` returns the exit code; `text` is what its ``--help`` says beside `help`."""
    description = f"{help[0].upper()}{help[1:]}.\n\n{text}".strip()
    parser: Parser = commands.add_parser(name, help=help, description=description, **options)
    parser.set_defaults(run=run)
    add_debug(parser)
    return parser


def add_debug(parser: argparse.ArgumentParser) -> None:
    """Add ``--debug``, which the program and each command have."""
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks of errors")


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add ``--device``."""
    parser.add_argument("--device", help="auto, cpu, cuda or cuda:N (default: the setting device, else auto)")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the options of whatever streams arrays."""
    parser.add_argument(
        "--budget", type=byte_count, help="most device memory, as 4GB, 512MiB or 50%% (default: 80%% of what is free)"
    )
    add_device(parser)


def add_decode(parser: argparse.ArgumentParser) -> None:
    """Add ``--decode``."""
    told = "cf: values of packed netCDF and zarr (scale_factor, _FillValue ...); raw: numbers as they are stored"
    parser.add_argument("--decode", choices=("cf", "raw"), help=told)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the options of whatever writes an array."""
    add_run(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace an output that exists, once the run is done")
    parser.add_argument("--resume", action="store_true", help=RESUME)
    parser.add_argument("--explain", action="store_true", help="print the plan, and run nothing")


def run_options(options: argparse.Namespace) -> dict[str, Any]:
    """Keywords of a run, for the library's functions."""
    return {"budget": options.budget, "device": options.device}


def output_options(options: argparse.Namespace) -> dict[str, Any]:
    """Keywords of a run that writes, for the library's functions."""
    return {
        **run_options(options),
        "overwrite": options.overwrite,
        "resume": options.resume,
        "progress": shows_progress(),
    }


def shows_progress() -> bool | str:
    """Whether a bar is drawn: at a terminal, unless a setting says otherwise."""
    return True if cf.config.sources()["progress"][1] == "default" else setting("progress")


def add_chunks(parser: argparse.ArgumentParser, **options: Any) -> None:
    """Add ``--chunks``."""
    told = "sides of the output's chunks, as 64,64,64; 'all' for a whole axis, 'auto' for any"
    parser.add_argument("--chunks", type=chunks, metavar="N,N,...", help=told, **options)


def chunks(text: str) -> Any:
    """Chunks as the library takes them.

    >>> chunks("64"), chunks("auto,64,all")
    (64, ('auto', 64, -1))
    """
    sides = tuple(_side(each.strip()) for each in text.split(","))
    return sides if len(sides) > 1 else sides[0]


def _side(text: str) -> int | str:
    if text in ("all", "-1"):
        return -1
    if text != "auto" and not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no side of a chunk: give a number, 'all' or 'auto'")
    return text if text == "auto" else int(text)


def lengths(text: str) -> tuple[int, ...]:
    """Sides of a box, all of them numbers.

    >>> lengths("128,64")
    (128, 64)
    """
    sides = chunks(text)
    sides = sides if isinstance(sides, tuple) else (sides,)
    if not all(isinstance(side, int) and side > 0 for side in sides):
        raise argparse.ArgumentTypeError(f"{text!r} must have a number for each axis, as 128,128")
    return sides


def byte_count(text: str) -> str:
    """Bytes, as people write them."""
    try:
        parse_bytes(text, whole=1 << 30)
    except cf.ChunkflowError as error:
        raise argparse.ArgumentTypeError(f"{error}") from None
    return text


def positive(text: str) -> int:
    """An integer from 1 on."""
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def opened(path: str, decode: Any = None) -> Any:
    """The lazy array of a path; of a pattern the arrays of the files, along a new first axis."""
    matching(path)
    return cf.open(path, decode=decode)


def matching(path: str) -> list[str]:
    """Paths of the arrays that a pattern stands for; none of a path. One that matches no file is refused."""
    file, _ = hdf5_named(path) or (path, None)
    found = matching_paths(path)
    is_pattern = any(letter in file for letter in "*?[") and "://" not in path and not path.lower().endswith(TIFF)
    if is_pattern and not found and not os.path.exists(file):
        refuse(f"no file matches the pattern {file}{unmatched(path)}")
    return found


def described(array: Any, where: str) -> str:
    """An array in a line: where it is, its dtype, shape and bytes."""
    nbytes = array.dtype.itemsize
    for n in array.shape:
        nbytes *= n
    return f"{where}: {array.dtype} {tuple(array.shape)}, {format_bytes(nbytes)}"


def said(error: BaseException) -> str:
    """An error in a line, with the notes of a user's function, and with options in the place of Python's keywords."""
    if isinstance(error, OSError) and error.filename is not None and not isinstance(error, ChunkflowError):
        return f"{error.filename}: {error.strerror}"
    interrupted = isinstance(error, KeyboardInterrupt | SystemExit)
    notes = [note.removeprefix("chunkflow: ") for note in getattr(error, "__notes__", ())]
    happened = "terminated" if isinstance(error, SystemExit) else str(error)
    text = worded("; ".join([happened or ("interrupted" if interrupted else "failed"), *notes]))
    text = text.replace("the same call", "the same line")
    if interrupted or isinstance(error, ChunkflowError):
        return text
    return f"{type(error).__name__}: {text} (--debug shows more)"


def failed(error: Exception, options: argparse.Namespace) -> int:
    """Print an error in a line, after its traceback if that is asked for. The exit code."""
    if getattr(options, "debug", False) or os.environ.get("CHUNKFLOW_DEBUG", "0") != "0":
        traceback.print_exception(error)
    print("chunkflow: error:", said(error), file=sys.stderr)
    return 2 if isinstance(error, REFUSED) else 1


def worded(text: str) -> str:
    """A message in a line, with options in the place of Python's keywords.

    >>> worded("x.npy exists: pass overwrite=True to replace it")
    'x.npy exists: pass --overwrite to replace it'
    """
    text = " ".join(text.split())
    for pattern, instead in _WORDS:
        text = pattern.sub(instead, text)
    return re.sub(r" (?=[:,;] )", "", " ".join(text.split()))


def check_writable(path: str, option: str) -> None:
    """Refuse a path that cannot be written, before a run that takes hours."""
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        refuse(f"{option} {path} is a directory: give the path of a file")
    if not os.path.isdir(folder):
        refuse(f"{option} {path} cannot be written: there is no directory {folder}")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        refuse(f"{option} {path} cannot be written: permission denied")


def refuse(message: str) -> NoReturn:
    """Refuse what the user wrote."""
    raise ArgumentError(message)
