"""What is said of functions that fail on CuPy's arrays. Frames and arrays of other libraries are made up here."""

from __future__ import annotations

from typing import Any

import pytest

from chunkflow.devices.cuda.hints import bytes_asked, hint
from chunkflow.errors import ResultTypeError

SAID = "chunkflow: blocks are CuPy arrays on cuda:0, and results must be too."
NUMPY = "With device='cpu' they are NumPy arrays"
TWINS = {("cupyx.scipy.ndimage", "median_filter"), ("cupyx.scipy.signal", "medfilt2d")}


def raised(error: BaseException, *frames: tuple[str, str]) -> BaseException:
    """An error that went through functions of these modules and names, the outermost first."""

    def fail(*args: Any) -> None:
        raise error

    call: Any = fail
    for module, name in reversed(frames):
        scope = {"__name__": module, "inner": call}
        exec(f"def {name}(*args): return inner(*args)", scope)
        call = scope[name]
    with pytest.raises(type(error)) as caught:
        call()
    return caught.value


class Array:
    """Passes for CuPy's."""


Array.__module__ = "cupy"

CASES: dict[str, tuple[BaseException, str]] = {
    "implicit conversion": (raised(TypeError("Implicit conversion to a NumPy array is not allowed.")), ""),
    "no implementation": (raised(TypeError("no implementation found on types: [<class 'cupy.ndarray'>]")), ""),
    "inside of CuPy": (raised(ValueError("unsupported dtype >f4"), ("cupy._core.core", "astype")), ""),
    "an attribute": (raised(AttributeError("'ndarray' object has no attribute 'ctypes'", obj=Array())), ""),
    "another kind of result": (ResultTypeError("fn returned a numpy.ndarray on cpu"), ""),
    "scipy": (
        raised(
            TypeError("Implicit conversion to a NumPy array is not allowed."),
            ("scipy.ndimage._support", "wrapped"),
            ("scipy.ndimage._filters", "median_filter"),
            ("scipy.ndimage._filters", "_rank_filter"),
        ),
        " cupyx.scipy.ndimage.median_filter is the twin of scipy.ndimage.median_filter.",
    ),
    "scipy without a twin": (
        raised(TypeError("Implicit conversion to a NumPy array"), ("scipy.ndimage._measurements", "watershed")),
        "",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_about_arrays_gets_a_note(case: str) -> None:
    error, twin = CASES[case]
    assert hint(error, "cuda:0", lambda *name: name in TWINS) == f"{SAID}{twin} {NUMPY}"


@pytest.mark.parametrize(
    "error",
    [
        raised(ValueError("of the user's own")),
        raised(ZeroDivisionError("division by zero"), ("scipy.ndimage._filters", "median_filter")),
        raised(MemoryError("Out of memory allocating 1 bytes"), ("cupy.cuda.memory", "malloc")),
        raised(AttributeError("'dict' object has no attribute 'x'", obj={})),
    ],
    ids=repr,
)
def test_other_errors_get_none(error: BaseException) -> None:
    assert hint(error, "cuda:0", lambda module, name: True) == ""


def test_bytes_are_read_from_cupys_words() -> None:
    words = "Out of memory allocating 8,000,000,000,512 bytes (allocated so far: 512 bytes, limit set to: 1,000 bytes)."
    assert bytes_asked(MemoryError(words)) == 8_000_000_000_512
    assert bytes_asked(MemoryError("no room")) is None
