"""The program ``chunkflow``: parses its arguments and runs a command, each of which is a module here.

A module has ``add(commands)``, which adds its parser and says which function runs it.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import chunkflow as cf
from chunkflow.cli import calibrate, completion, convert, demo, doctor, info, leftovers, rechunk, run, stats, verify
from chunkflow.cli.common import Parser, add_debug, failed, said, worded
from chunkflow.system import interrupts

COMMANDS = (demo, info, doctor, run, stats, convert, rechunk, verify, leftovers, calibrate, completion)
"""Modules of commands, in the order of the help."""

EXITS = """\
exit codes: 0 success; 1 a run failed, or what was checked is not right; 2 wrong arguments; 130 Ctrl-C

`chunkflow COMMAND --help` says more of a command. Begin with `chunkflow demo`."""


def parser() -> argparse.ArgumentParser:
    """The parser of the program."""
    made = Parser(
        prog="chunkflow",
        description="Stream arrays larger than the device's memory through a function, under a byte budget.",
        epilog=EXITS,
    )
    made.add_argument("--version", action="version", version=f"chunkflow {cf.__version__}")
    add_debug(made)
    commands = made.add_subparsers(metavar="COMMAND", title="commands")
    for module in COMMANDS:
        module.add(commands)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default with the arguments of the process.

    Returns the exit code: 0; 1 where a run failed, or what was checked is not right; 2 for wrong arguments; 130 after
    Ctrl-C. Wrong options end in a `SystemExit`, as argparse has it.
    """
    options = argparse.Namespace()
    interrupts.farewell = lambda error: print("chunkflow:", said(error), file=sys.stderr, flush=True)
    try:
        program = parser()
        options = program.parse_args(arguments)
        if not hasattr(options, "run"):
            program.print_help()
            return 0
        with warnings.catch_warnings():
            warnings.showwarning = _once()
            code: int = options.run(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as error:
        print("chunkflow:", said(error), file=sys.stderr)
        return 130  # 128 + SIGINT, as shells have it
    except BrokenPipeError:  # of `chunkflow ... | head`
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())  # Python flushes it once more at its end
        return 141  # 128 + SIGPIPE
    except Exception as error:
        return failed(error, options)


def _once() -> Callable[..., None]:
    """What prints a warning, each once: several passes may find the same."""
    said: set[str] = set()

    def warn(message: Warning | str, *_: Any) -> None:
        text = worded(str(message))
        if text not in said:
            said.add(text)
            print("chunkflow: warning:", text, file=sys.stderr)

    return warn


if __name__ == "__main__":
    sys.exit(main())
