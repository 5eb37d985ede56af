"""A chain of NumPy's elementwise functions as the text of one kernel: each element is read and written once.

Computed one after another, each function reads and writes a whole block in the device's memory. The text is C++, as
CUDA's compiler takes it. Its arithmetic is that of the separate functions, so results are the same to the bit if
products and sums are not contracted. What is not listed here stays a function of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

CTYPES = {
    "?": "bool",
    "b": "signed char",
    "B": "unsigned char",
    "h": "short",
    "H": "unsigned short",
    "i": "int",
    "I": "unsigned int",
    "l": "long long",
    "L": "unsigned long long",
    "q": "long long",
    "Q": "unsigned long long",
    "f": "float",
    "d": "double",
}

_ALIKE = "?bBhHiIlLqQfd"
_FLOATS = "fd"

FORMS: dict[Any, tuple[str, str]] = {
    np.add: (_ALIKE, "{0} + {1}"),
    np.subtract: (_ALIKE[1:], "{0} - {1}"),
    np.multiply: (_ALIKE, "{0} * {1}"),
    np.true_divide: (_FLOATS, "{0} / {1}"),
    np.negative: (_ALIKE[1:], "-{0}"),
    np.positive: (_ALIKE[1:], "{0}"),
    np.square: (_ALIKE[1:], "{0} * {0}"),
    np.absolute: (_FLOATS, "fabs({0})"),
    np.reciprocal: (_FLOATS, "1 / {0}"),
    np.less: (_ALIKE, "{0} < {1}"),
    np.less_equal: (_ALIKE, "{0} <= {1}"),
    np.greater: (_ALIKE, "{0} > {1}"),
    np.greater_equal: (_ALIKE, "{0} >= {1}"),
    np.equal: (_ALIKE, "{0} == {1}"),
    np.not_equal: (_ALIKE, "{0} != {1}"),
    np.logical_and: ("?", "{0} && {1}"),
    np.logical_or: ("?", "{0} || {1}"),
    np.logical_not: ("?", "!{0}"),
    **{
        ufunc: (_FLOATS, f"{name}({{0}})")
        for ufunc, name in {
            np.sqrt: "sqrt",
            np.exp: "exp",
            np.exp2: "exp2",
            np.expm1: "expm1",
            np.log: "log",
            np.log2: "log2",
            np.log10: "log10",
            np.log1p: "log1p",
            np.sin: "sin",
            np.cos: "cos",
            np.tan: "tan",
            np.arcsin: "asin",
            np.arccos: "acos",
            np.arctan: "atan",
            np.sinh: "sinh",
            np.cosh: "cosh",
            np.tanh: "tanh",
            np.floor: "floor",
            np.ceil: "ceil",
            np.trunc: "trunc",
        }.items()
    },
}
"""For a ufunc the dtypes in which it computes, all of its arguments in the same one, and how it is written."""


def power(base: Any, exponent: Any) -> Any:
    """``base**exponent`` of a block, as NumPy's operator has it: squares are products, and not powers.

    >>> power(np.array([3, -4]), 2)
    array([ 9, 16])
    """
    if type(exponent) is int and exponent == 2 and getattr(base, "dtype", np.dtype("O")).kind in "iufc":
        return np.square(base)
    return base**exponent


Parameters = tuple[tuple[str, str], ...]
"""Dtypes and names."""

Elementwise = Callable[[Parameters, Parameters, str], Callable[..., Any]]
"""Makes a function of arrays, scalars and outputs from its parameters and what it does with an element of each."""


@dataclass(frozen=True)
class Link:
    """One function of a chain: `given` has registers, as ints in a tuple of one, and scalars as they are."""

    register: int
    ufunc: Any
    given: tuple[Any, ...]


@dataclass(frozen=True)
class Text:
    """A chain as text: parameters, the scalars among them, and dtypes of the results."""

    inputs: Parameters
    scalars: tuple[Any, ...]
    outputs: Parameters
    body: str


def text(
    links: Sequence[Link], inputs: Sequence[int], dtypes: Sequence[np.dtype], results: Sequence[int]
) -> Text | None:
    """The text of a chain; None if one of its functions has no text for such dtypes.

    Parameters
    ----------
    links : sequence of Link
        In the order in which they are computed.
    inputs : sequence of int
        Registers of the arrays that are given, with their `dtypes`.
    results : sequence of int
        Registers that are asked for.

    Examples
    --------
    >>> links = [Link(1, np.multiply, ((0,), (0,))), Link(2, np.add, ((1,), 1))]
    >>> made = text(links, [0], [np.dtype("f4")], [2])
    >>> made.inputs, made.outputs
    ((('float32', 'x0'), ('float32', 's0')), (('float32', 'y0'),))
    >>> print(made.body)
    const float v1 = (float)((float)x0 * (float)x0);
    const float v2 = (float)((float)v1 + (float)s0);
    y0 = v2;
    """
    known = {register: (f"x{i}", dtype) for i, (register, dtype) in enumerate(zip(inputs, dtypes, strict=True))}
    scalars: list[Any] = []
    lines: list[str] = []
    for link in links:
        if link.ufunc not in FORMS:
            return None
        chars, form = FORMS[link.ufunc]
        own = [known[g[0]][1] if isinstance(g, tuple) else _kind(g) for g in link.given]
        try:
            *loop, out = link.ufunc.resolve_dtypes((*own, None))
        except (TypeError, ValueError):
            return None
        if len(set(loop)) != 1 or loop[0].char not in chars or out.char not in CTYPES or not _sound(own, loop[0]):
            return None
        # Signed numbers that overflow are undefined in C++; unsigned ones go round, as NumPy's all do.
        wraps = loop[0].kind in "iu" and out.kind in "iu"
        ctype = ("unsigned long long" if out.itemsize == 8 else "unsigned int") if wraps else CTYPES[loop[0].char]
        operands = []
        for given, dtype in zip(link.given, loop, strict=True):
            if isinstance(given, tuple):
                name = known[given[0]][0]
            else:
                name = f"s{len(scalars)}"
                try:
                    scalars.append(dtype.type(given))
                except (OverflowError, TypeError, ValueError):
                    return None
            operands.append(f"({ctype}){name}")
        name = f"v{link.register}"
        lines.append(f"const {CTYPES[out.char]} {name} = ({CTYPES[out.char]})({form.format(*operands)});")
        known[link.register] = (name, out)
    lines += [f"y{i} = {known[register][0]};" for i, register in enumerate(results)]
    return Text(
        (
            *((dtype.name, f"x{i}") for i, dtype in enumerate(dtypes)),
            *((s.dtype.name, f"s{i}") for i, s in enumerate(scalars)),
        ),
        tuple(scalars),
        tuple((known[register][1].name, f"y{i}") for i, register in enumerate(results)),
        "\n".join(lines),
    )


def _kind(scalar: Any) -> Any:
    """What NumPy's promotion makes of a scalar: Python's own are weak."""
    if isinstance(scalar, np.generic):
        return scalar.dtype
    return np.dtype(bool) if isinstance(scalar, bool) else type(scalar)


def _sound(own: Sequence[Any], loop: np.dtype) -> bool:
    """Whether all arguments are in dtypes that have a text, and none is compared in another one than it would be."""
    arrays = [d for d in own if isinstance(d, np.dtype)]
    return all(d.char in CTYPES for d in arrays) and (loop.kind == "f" or all(d == loop for d in arrays))
