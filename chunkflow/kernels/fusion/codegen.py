"""Generates the text of one kernel for a chain of NumPy's elementwise functions: each element is read and written once.

Separate functions would each read and write a whole block in the device's memory. The text is C++ for CUDA's compiler.
Its arithmetic is that of the separate functions, so results are equal to the bit if the compiler does not contract
products and sums. Functions that are not listed here are called by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chunkflow.kernels.twins import refuse_negative

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
        getattr(np, name): (_FLOATS, f"{name.replace('arc', 'a')}({{0}})")
        for name in (
            *("sqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "floor", "ceil", "trunc"),
            *("sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh"),
        )
    },
}
"""For each ufunc the dtypes in which it computes, the same one for all arguments, and its C++ expression."""


def power(base: Any, exponent: Any) -> Any:
    """``base**exponent`` of a block. As with NumPy's operator, squares are computed as products.

    >>> power(np.array([3, -4]), 2)
    array([ 9, 16])
    """
    if type(exponent) is int and exponent == 2 and getattr(base, "dtype", np.dtype("O")).kind in "iufc":
        return np.square(base)
    if not isinstance(base, np.ndarray):
        refuse_negative(exponent, base)
    return base**exponent


Parameters = tuple[tuple[str, str], ...]
"""Dtypes and names of parameters."""

Elementwise = Callable[..., Callable[..., Any]]
"""Compiles a function of arrays, scalars and outputs, from its parameters and the body for one element of each.

It is called as ``make(inputs, outputs, body)``; what is declared before the function may follow.
"""


@dataclass(frozen=True)
class Link:
    """One function of a chain. In `given` a register is an int in a tuple of one, and a scalar is itself."""

    register: int
    ufunc: Any
    given: tuple[Any, ...]


@dataclass(frozen=True)
class Text:
    """The text of a chain: parameters, the values of the scalars among them, and results."""

    inputs: Parameters
    scalars: tuple[Any, ...]
    outputs: Parameters
    body: str


def text(
    links: Sequence[Link], inputs: Sequence[int], dtypes: Sequence[np.dtype], results: Sequence[int]
) -> Text | None:
    """The text of a chain; None if one of its functions is not supported for such dtypes.

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
        # Signed overflow is undefined in C++. Unsigned numbers wrap, as all of NumPy's do.
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
    """A scalar's dtype for NumPy's promotion, or its type if it is one of Python's, which are weak."""
    if isinstance(scalar, np.generic):
        return scalar.dtype
    return np.dtype(bool) if isinstance(scalar, bool) else type(scalar)


def _sound(own: Sequence[Any], loop: np.dtype) -> bool:
    """Whether all dtypes are supported, and integers are not computed in another dtype than the loop's."""
    arrays = [d for d in own if isinstance(d, np.dtype)]
    return all(d.char in CTYPES for d in arrays) and (loop.kind == "f" or all(d == loop for d in arrays))
