"""Generates the text of one kernel for a chain of NumPy's elementwise functions: each element is read and written once.

Separate functions would each read and write a whole block in the device's memory. The text is C++ for CUDA's compiler.
Its arithmetic is that of the separate functions, so results are equal to the bit if the compiler does not contract
products and sums. Functions that are not listed here are called by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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

_WHOLE = "bBhHiIlLqQ"
_FLOATS = "fd"
_NUMBERS = _WHOLE + _FLOATS


class Form(NamedTuple):
    """The C++ expression of a function that computes in one of some dtypes, given by their characters.

    The operands are ``{0}``, ``{1}`` and so on, in the type ``{T}``, which has ``{N}`` bits. Signed overflow is
    undefined in C++, and NumPy's numbers wrap around. So integers are taken without their sign, where they `wrap`.
    """

    chars: str
    text: str
    wraps: bool = True


_MINUS_ONE = "({T})-1 < 0 && {1} == ({T})-1"  # of which the quotient may overflow

FORMS: dict[Any, tuple[Form, ...]] = {
    np.add: (Form("?" + _NUMBERS, "{0} + {1}"),),
    np.subtract: (Form(_NUMBERS, "{0} - {1}"),),
    np.multiply: (Form("?" + _NUMBERS, "{0} * {1}"),),
    np.true_divide: (Form(_FLOATS, "{0} / {1}"),),
    np.floor_divide: (
        Form(
            _WHOLE,
            f"{{1}} == 0 ? 0 : {_MINUS_ONE} ? ({{T}})(0ull - (unsigned long long){{0}}) : "
            "{0} / {1} - ({0} % {1} != 0 && ({0} % {1} < 0) != ({1} < 0))",
            wraps=False,
        ),
    ),
    np.remainder: (
        Form(
            _WHOLE,
            f"{{1}} == 0 || ({_MINUS_ONE}) ? 0 : "
            "{0} % {1} + ({0} % {1} != 0 && ({0} % {1} < 0) != ({1} < 0) ? {1} : 0)",
            wraps=False,
        ),
    ),
    np.negative: (Form(_NUMBERS, "-{0}"),),
    np.positive: (Form(_NUMBERS, "{0}"),),
    np.square: (Form(_NUMBERS, "{0} * {0}"),),
    np.absolute: (Form(_FLOATS, "fabs({0})"),),
    np.reciprocal: (Form(_FLOATS, "1 / {0}"),),
    np.minimum: (Form("?" + _WHOLE, "{0} < {1} ? {0} : {1}", wraps=False),),
    np.maximum: (Form("?" + _WHOLE, "{0} < {1} ? {1} : {0}", wraps=False),),
    np.bitwise_and: (Form("?" + _WHOLE, "{0} & {1}"),),
    np.bitwise_or: (Form("?" + _WHOLE, "{0} | {1}"),),
    np.bitwise_xor: (Form("?" + _WHOLE, "{0} ^ {1}"),),
    np.invert: (Form("?", "!{0}"), Form(_WHOLE, "~{0}")),
    np.left_shift: (Form(_WHOLE, "{1} < {N} ? {0} << {1} : 0"),),
    np.right_shift: (
        Form(_WHOLE, "(unsigned long long){1} < {N} ? {0} >> {1} : {0} < 0 ? ({T})-1 : ({T})0", wraps=False),
    ),
    np.less: (Form("?" + _NUMBERS, "{0} < {1}"),),
    np.less_equal: (Form("?" + _NUMBERS, "{0} <= {1}"),),
    np.greater: (Form("?" + _NUMBERS, "{0} > {1}"),),
    np.greater_equal: (Form("?" + _NUMBERS, "{0} >= {1}"),),
    np.equal: (Form("?" + _NUMBERS, "{0} == {1}"),),
    np.not_equal: (Form("?" + _NUMBERS, "{0} != {1}"),),
    np.logical_and: (Form("?", "{0} && {1}"),),
    np.logical_or: (Form("?", "{0} || {1}"),),
    np.logical_not: (Form("?", "!{0}"),),
    np.isnan: (Form(_FLOATS, "{0} != {0}"),),
    np.isfinite: (Form(_FLOATS, "{0} - {0} == 0"),),
    np.isinf: (Form(_FLOATS, "{0} == {0} && {0} - {0} != 0"),),
    np.where: (Form("?" + _NUMBERS, "{0} ? {1} : {2}", wraps=False),),
    **{
        getattr(np, name): (Form(_FLOATS, f"{name.replace('arc', 'a')}({{0}})"),)
        for name in (
            *("sqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "floor", "ceil", "trunc"),
            *("sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh"),
        )
    },
}
"""For each function its forms, which have one dtype for all arguments; but the first one of ``np.where`` is bool."""

ARGUMENTS = {np.where: 3}
"""Number of arguments of those that are no ufuncs."""


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
    const float v0 = (float)((float)x0 * (float)x0);
    const float v1 = (float)((float)v0 + (float)s0);
    y0 = v1;
    """
    known = {register: (f"x{i}", dtype) for i, (register, dtype) in enumerate(zip(inputs, dtypes, strict=True))}
    scalars: list[Any] = []
    lines: list[str] = []
    for number, link in enumerate(links):
        own = [known[g[0]][1] if isinstance(g, tuple) else _kind(g) for g in link.given]
        try:
            loop, out = _dtypes(link.ufunc, own)
        except (TypeError, ValueError):
            return None
        form = _form(link.ufunc, own, loop)
        if form is None or out.char not in CTYPES:
            return None
        wraps = form.wraps and loop[-1].kind in "iu" and out.kind in "iu"
        unsigned = "unsigned long long" if out.itemsize == 8 else "unsigned int"
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
            operands.append(f"({unsigned if wraps else CTYPES[dtype.char]}){name}")
        value = form.text.format(*operands, T=CTYPES[loop[-1].char], N=8 * loop[-1].itemsize)
        name = f"v{number}"
        lines.append(f"const {CTYPES[out.char]} {name} = ({CTYPES[out.char]})({value});")
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


def _dtypes(fn: Any, own: Sequence[Any]) -> tuple[Sequence[np.dtype], np.dtype]:
    """The dtypes in which a function takes its arguments, and that of its result."""
    if fn is not np.where:
        *loop, out = fn.resolve_dtypes((*own, None))
        return loop, out
    condition, *branches = own
    out = np.add.resolve_dtypes((*branches, None))[-1]  # of numbers and bools the common one
    return (np.dtype(condition), out, out), out


def _form(fn: Any, own: Sequence[Any], loop: Sequence[np.dtype]) -> Form | None:
    """The form in which a function is computed; None if there is none, or it would give other values than NumPy's.

    All dtypes must be supported, and integers not be computed in another dtype than their own.
    """
    if fn is np.where:
        if loop[0].char != "?":
            return None
        own, loop = own[1:], loop[1:]
    arrays = [d for d in own if isinstance(d, np.dtype)]
    if len(set(loop)) != 1 or not all(d.char in CTYPES for d in arrays):
        return None
    if loop[0].kind != "f" and not all(d == loop[0] for d in arrays):
        return None
    return next((form for form in FORMS.get(fn, ()) if loop[0].char in form.chars), None)
