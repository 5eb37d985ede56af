"""What is said of a function that fails on CuPy's arrays: which they are, and what takes them. Does not load CuPy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from types import TracebackType

from chunkflow.errors import ResultTypeError

ARRAYS = ("cupy", "cupyx")
"""Packages in whose frames an error is about the kind of array."""

ASKED = re.compile(r"allocating ([\d,]+) bytes")
"""How CuPy's pools name the bytes that they were asked for."""


def hint(error: BaseException, device: str, has_twin: Callable[[str, str], bool]) -> str:
    """A note for an error of the user's function; empty if the error has nothing to do with CuPy's arrays.

    `has_twin` tells whether a module of CuPy's has a function of this name.

    >>> wrong = TypeError("Implicit conversion to a NumPy array is not allowed.")
    >>> hint(wrong, "cuda:0", lambda module, name: False)
    "chunkflow: blocks are CuPy arrays on cuda:0, and results must be too. With device='cpu' they are NumPy arrays"
    """
    if isinstance(error, MemoryError) or not _is_about_arrays(error):
        return ""
    twins = (f"cupyx.{module}.{name}" for module, name in _calls(error, "scipy") if has_twin(f"cupyx.{module}", name))
    twin = next(twins, None)
    other = "" if twin is None else f" {twin} is the twin of {twin.removeprefix('cupyx.')}."
    return (
        f"chunkflow: blocks are CuPy arrays on {device}, and results must be too.{other} "
        "With device='cpu' they are NumPy arrays"
    )


def bytes_asked(error: BaseException) -> int | None:
    """Bytes that could not be allocated, as the error says.

    >>> bytes_asked(MemoryError("Out of memory allocating 1,000,000,512 bytes (allocated so far: 512 bytes)."))
    1000000512
    """
    found = ASKED.search(str(error))
    return int(found[1].replace(",", "")) if found else None


def _is_about_arrays(error: BaseException) -> bool:
    text = str(error)
    of_array = isinstance(error, AttributeError) and type(error.obj).__module__.partition(".")[0] in ARRAYS
    named = "cupy" in text.lower() or "Implicit conversion to a NumPy array" in text
    return isinstance(error, ResultTypeError) or of_array or named or any(_modules(error, ARRAYS))


def _modules(error: BaseException, packages: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Modules of these packages, and functions in them, that an error went through."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] in packages:
            yield module, trace.tb_frame.f_code.co_name
        trace = trace.tb_next


def _calls(error: BaseException, package: str) -> Iterator[tuple[str, str]]:
    """Public functions of a package that an error went through, by the public module and name."""
    for module, name in _modules(error, (package,)):
        if not name.startswith(("_", "<")):
            yield ".".join(module.split(".")[:2]), name
