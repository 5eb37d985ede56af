"""Every operation that a program may have: how its arguments are drawn, and how NumPy and chunkflow say it.

In texts ``<0>`` is the first operand, ``<1>`` the second, and ``<o>`` where options go.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.fuzz.drawing import Drawing
from tests.fuzz.program import Value

REAL, NUMBERS, ALL = "iuf", "iufc", "biufc"


@dataclass(frozen=True)
class Call:
    """A call in text.

    Attributes
    ----------
    numpy : str
        As NumPy says it.
    ours : str, optional
        As chunkflow's own function says it, with ``<o>``; it runs at once on arrays.
    others : tuple of Value
        Operands after the first one.
    blocks : tuple of int, optional
        What ``chunks=`` is a cut of.
    terms : int
        How many numbers are added up: by so much the scale of rounding grows.
    factors : int
        How many numbers are multiplied.
    """

    numpy: str
    ours: str = ""
    others: tuple[Value, ...] = ()
    blocks: tuple[int, ...] | None = None
    terms: int = 1
    factors: int = 1


@dataclass(frozen=True)
class Operation:
    """An operation.

    Attributes
    ----------
    draw : callable
        Draws a call for a first operand; None if none suits.
    kinds, dims : str, tuple
        Kinds of dtypes that it takes, and the least and the largest number of dimensions.
    rounds : bool
        Whether its digits may differ from NumPy's for floating-point numbers.
    gentle : bool
        Whether what is nearly right stays so: others are given exact operands only.
    signed : bool
        Whether the signs of zeros are NumPy's.
    lazily : str
        "numpy": NumPy's function takes lazy arrays; "ours": chunkflow's does; "both"; "never": it runs at once; "no".
    out, in_place, chunked : bool
        Whether it takes ``out=``, and that may be the first operand; whether ``chunks=`` are those of a zarr output.
    filled, finite : bool
        Whether it needs elements, and finite ones.
    """

    name: str
    draw: Callable[[Drawing, Value], Call | None]
    kinds: str = ALL
    dims: tuple[int, int] = (0, 9)
    rounds: bool = False
    gentle: bool = False
    signed: bool = True
    lazily: str = "both"
    eagerly: bool = True
    out: bool = True
    in_place: bool = False
    chunked: bool = False
    filled: bool = False
    finite: bool = False

    def runs(self, form: str) -> bool:
        """Whether programs of a form may have it."""
        if form == "eager":
            return self.eagerly
        return self.lazily != "no" and (self.lazily != "never" or form == "lazy")

    def suits(self, value: Value) -> bool:
        """Whether a value may be its first operand."""
        x = value.array
        return (
            x.dtype.kind in self.kinds
            and self.dims[0] <= x.ndim <= self.dims[1]
            and (value.exact or self.gentle)
            and (x.size > 0 or not self.filled)
            and (not self.finite or bool(np.isfinite(x).all()))
        )


FAMILIES: dict[str, list[Operation]] = {}
"""Operations by family, each of which is drawn equally often."""


def family(name: str) -> None:
    """Begin a family: what is added from here on belongs to it."""
    FAMILIES[name] = []


def add(name: str, draw: Callable[[Drawing, Value], Call | None], **facts: Any) -> None:
    """Add an operation to the last family."""
    next(reversed(FAMILIES.values())).append(Operation(name, draw, **facts))


def given(**kwargs: Any) -> str:
    """Keyword arguments in text, without those that are None or False."""
    return "".join(f", {name}={value!r}" for name, value in kwargs.items() if value is not None and value is not False)


# -- Elementwise ---------------------------------------------------------------------------------------------

family("elementwise")


def unary(name: str, kinds: str, **facts: Any) -> None:
    add(
        name,
        lambda d, x: Call(f"np.{name}(<0>)", f"cf.map(np.{name}, <0><o>)", blocks=x.array.shape),
        kinds=kinds,
        in_place=True,
        **facts,
    )


for name in ("negative", "positive"):
    unary(name, NUMBERS, gentle=True)
unary("absolute", REAL, gentle=True)
unary("abs", "c", gentle=True, rounds=True)  # as elements lie side by side or not, NumPy rounds in two ways
for name in ("square", "sign"):
    unary(name, NUMBERS)
for name in ("floor", "ceil", "rint", "trunc", "signbit"):
    unary(name, REAL)
for name in ("isnan", "isfinite", "logical_not", "isinf"):
    unary(name, ALL)
for name in ("invert",):
    unary(name, "biu")
unary("bitwise_count", "iu")
unary("sqrt", "iuf")
unary("conjugate", NUMBERS)
unary("spacing", "f")
for name in ("exp", "log1p", "sin", "tanh", "cbrt", "log"):
    unary(name, "f", rounds=True, signed=False)


def binary(name: str, kinds: str, **facts: Any) -> None:
    def draw(d: Drawing, x: Value) -> Call:
        how = d.integer(0, 3)
        if how == 0:
            number = d.choice(NUMBERS_OF[x.array.dtype.kind if "f" in kinds else "i"])
            first, second = ("<0>", number) if d.chance(70) else (number, "<0>")
            others: tuple[Value, ...] = ()
        elif how == 1 and x.array.ndim:
            first, others = "<0>", ()
            second = f"np.arange({x.array.shape[-1]}).astype({x.array.dtype.newbyteorder('=').str!r})"
        else:
            others = (d.other(x, kinds),)
            first, second = "<0>", "<1>"
        symbol = SYMBOLS.get(name)
        text = f"np.{name}({first}, {second})"
        if symbol and d.chance(40) and "<" in first:
            return Call(f"({first} {symbol} {second})", f"cf.map(np.{name}, {first}, {second}<o>)", others)
        return Call(text, f"cf.map(np.{name}, {first}, {second}<o>)", others)

    add(name, draw, kinds=kinds, **facts)


NUMBERS_OF = {
    "b": ("True", "2", "1.5", "np.uint8(3)", "np.float32(0.5)"),
    "i": ("3", "2", "np.int8(2)", "True", "np.int64(3)"),
    "u": ("3", "2", "np.uint8(2)", "np.int16(-2)", "1.5"),
    "f": ("1.5", "2", "np.float32(0.5)", "np.float64(0.1)", "np.int64(3)", "-0.0", "nan"),
    "c": ("(1+2j)", "2", "1.5", "np.complex64(1j)"),
}
"""Numbers to stand beside an array, by the kind of its dtype; in text."""

SYMBOLS = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "floor_divide": "//", "remainder": "%",
    "greater": ">", "less_equal": "<=", "equal": "==", "not_equal": "!=", "bitwise_and": "&", "bitwise_xor": "^",
}  # fmt: skip
binary("add", ALL, gentle=True)
binary("subtract", NUMBERS, gentle=True)
binary("multiply", ALL)
for name in ("divide", "floor_divide", "remainder", "copysign"):
    binary(name, REAL)
for name in ("maximum", "minimum", "fmax", "fmin"):
    binary(name, "biuf", signed=False)
for name in ("greater", "less_equal"):
    binary(name, "biuf")
for name in ("equal", "not_equal", "logical_and", "logical_xor"):
    binary(name, ALL)
for name in ("bitwise_and", "bitwise_xor", "bitwise_or"):
    binary(name, "biu")
for name in ("gcd", "lcm"):
    binary(name, "iu")
for name in ("arctan2", "hypot", "logaddexp"):
    binary(name, "f", rounds=True, signed=False)
binary("nextafter", "f")
binary("heaviside", "f")


def _where(d: Drawing, x: Value) -> Call:
    other = d.other(x)
    if d.chance(40):
        return Call("np.where(<0> > 0, <0>, 0)", "")
    condition = d.other(x, "b")
    if condition.array.dtype.kind != "b":
        return Call("np.where(<0> != 0, <0>, <1>)", "", (other,))
    return Call("np.where(<2>, <0>, <1>)", "cf.map(np.where, <2>, <0>, <1><o>)", (other, condition))


add("where", _where, kinds=ALL)
add(
    "select",
    lambda d, x: Call("np.select([<0> > 1, <0> < 0], [<0>, <1>], default=7)", "", (d.other(x, "biuf"),)),
    kinds="iuf",
    lazily="numpy",
)
add(
    "clip",
    lambda d, x: Call(f"np.clip(<0>, {(low := d.choice(['0', 'None']))}, 2)", f"cf.map(np.clip, <0>, {low}, 2<o>)"),
    kinds=REAL,
    signed=False,
)
add("round", lambda d, x: Call(f"np.round(<0>, {d.integer(0, 2)})"), kinds="fc", eagerly=False, lazily="numpy")
add("nan_to_num", lambda d, x: Call("np.nan_to_num(<0>, nan=1.0)"), kinds="f", eagerly=False, lazily="numpy")
add("real", lambda d, x: Call("np.real(<0>)"), kinds="c", eagerly=False, lazily="numpy", gentle=True)
add("imag", lambda d, x: Call("np.imag(<0>)"), kinds="c", eagerly=False, lazily="numpy", gentle=True)
add(
    "isclose",
    lambda d, x: Call("np.isclose(<0>, <1>, equal_nan=True)", "", (d.other(x, NUMBERS),)),
    kinds=NUMBERS,
    lazily="numpy",
    eagerly=False,
)
add("isin", lambda d, x: Call("np.isin(<0>, [1, 3])"), kinds="iu", lazily="numpy", eagerly=False)
add("digitize", lambda d, x: Call("np.digitize(<0>, [-1, 0, 2.5])"), kinds=REAL, lazily="numpy", eagerly=False)
add(
    "interp",
    lambda d, x: Call("np.interp(<0>, [-1, 0, 1], [3, 4, 9])"),
    kinds=REAL,
    lazily="numpy",
    eagerly=False,
    rounds=True,
)


def _several(d: Drawing, x: Value) -> Call:
    name, item = d.choice(["modf", "frexp", "divmod"]), d.integer(0, 1)
    if name == "divmod":
        return Call(f"np.divmod(<0>, 3)[{item}]")
    return Call(f"np.{name}(<0>)[{item}]")


add("several results", _several, kinds="f", lazily="numpy", eagerly=False)


def _astype(d: Drawing, x: Value) -> Call | None:
    wanted = d.choice(["f8", "f4", "i8", "?", "i2", "u1", "c16", "c8", "f2"])
    if x.array.dtype.kind in "fc" and np.dtype(wanted).kind in "iu":  # what is out of range differs by the compiler
        return None
    if x.array.dtype.kind == "c" and np.dtype(wanted).kind != "c":
        return None
    return Call(f"<0>.astype({wanted!r})")


add("astype", _astype, lazily="numpy", eagerly=False)


# -- Functions of one's own ----------------------------------------------------------------------------------

family("own functions")


def _map(d: Drawing, x: Value) -> Call:
    a = x.array
    how = d.integer(0, 5)
    if how == 1 and a.ndim and 0 not in a.shape:
        axis = d.integer(0, a.ndim - 1)
        fn = f"lambda b: b.max(axis={axis})"
        return Call(f"({fn})(<0>)", f"cf.map({fn}, <0>, drop_axis={axis}<o>)")
    if how == 2:
        axis = d.integer(0, a.ndim)
        fn = f"lambda b: np.stack([b, b + b], {axis})"
        return Call(f"({fn})(<0>)", f"cf.map({fn}, <0>, new_axis={axis}<o>)")
    if how == 3 and a.ndim:
        axis = d.integer(0, a.ndim - 1)
        sides = tuple(-1 if k == axis else "auto" for k in range(a.ndim))
        fn = f"lambda b: np.flip(b, {axis})"
        return Call(f"({fn})(<0>)", f"cf.map({fn}, <0>, chunks={sides}<o>)")
    if how == 4:
        other = d.other(x)
        return Call(
            "(lambda b, c, n: b + c + n)(<0>, <1>, n=1)",
            "cf.map(lambda b, c, n: b + c + n, <0>, <1>, n=1<o>)",
            (other,),
        )
    return Call("(lambda b: b * 2 + 1)(<0>)", "cf.map(lambda b: b * 2 + 1, <0><o>)", blocks=a.shape)


add("map", _map, lazily="ours", signed=False)


def _blockwise(d: Drawing, x: Value) -> Call | None:
    a = x.array
    letters = "ijkl"[: a.ndim]
    if a.ndim > 4 or not a.ndim:
        return None
    order = d.order(a.ndim)
    result = "".join(letters[axis] for axis in order)
    if d.chance(40):
        fn = f"lambda b: np.transpose(b, {tuple(order)})"
        return Call(f"({fn})(<0>)", f'cf.blockwise({fn}, "{result}", <0>, "{letters}"<o>)')
    if 0 in a.shape or a.dtype.kind not in "biu":
        return None
    axis = d.integer(0, a.ndim - 1)
    fn = f"lambda b: b.max(axis={axis})"
    rest = letters.replace(letters[axis], "")
    combine = d.choice([", combine=np.maximum", ""])
    return Call(f"({fn})(<0>)", f'cf.blockwise({fn}, "{rest}", <0>, "{letters}"{combine}<o>)')


add("blockwise", _blockwise, lazily="ours", signed=False)


def _chunks(d: Drawing, x: Value) -> Call | None:
    sides = d.blocks(x.array.shape)
    return Call("<0>", f"gathered(cf.chunks(<0>{sides}<o>), <like>)")


add("chunks", _chunks, lazily="no", out=False)


def _map_overlap(d: Drawing, x: Value) -> Call | None:
    a = x.array
    if d.chance(40):
        boundaries: list[Any] = ["none"]
        fn = "edges"
        reach = 1
    else:
        boundaries = ["nearest", "reflect", "periodic", 0, "mirror"]
        reach = d.integer(1, 2)
        fn = "neighbours" if reach == 1 else "lambda b: neighbours(b, 2)"
    boundary = d.choice(boundaries)
    if min(a.shape, default=9) <= reach + 1:
        return None
    depth = reach + d.choice([0, 1])
    if depth >= min(a.shape):
        return None
    iterations = d.choice([1, 1, 2, 3]) if a.dtype.itemsize == 8 and a.dtype.kind in "iu" else 1
    again = given(iterations=None if iterations == 1 else iterations)
    steps = f", steps_per_pass={d.integer(1, iterations)}" if iterations > 1 and d.chance(50) else ""
    how = f"{depth}, boundary={boundary!r}"
    return Call(
        f"overlapped({fn}, <0>, {how}{again})",
        f"cf.map_overlap({fn}, <0>, depth={how}{again}{steps}<o>)",
        blocks=a.shape if iterations == 1 else None,
    )


add("map_overlap", _map_overlap, kinds="iuf", dims=(1, 3), lazily="ours", signed=False, filled=True)


def _stencil(d: Drawing, x: Value) -> Call | None:
    """Depths and boundaries by axis and side, of one array or two."""
    a = x.array
    other = d.other(x, "iuf", same_shape=True)
    depths, boundaries, terms = [], [], ["b"]
    for axis, n in enumerate(a.shape):
        most = min(2, n - 1)
        before, after = d.integer(0, most), d.integer(0, most)
        depths.append((before, after))
        boundaries.append(
            d.choice(["nearest", "none", "reflect", "periodic", 0, "mirror"]) if before + after else "none"
        )
        if boundaries[-1] != "none":
            block = d.choice(["b", "c"])
            terms.append(f"2 * np.roll({block}, {d.integer(-after, before)}, {axis})")
    fn, how = f"lambda b, c: {' + '.join([*terms, 'c'])}", f"{tuple(depths)}, boundary={tuple(boundaries)}"
    return Call(
        f"around({fn}, <0>, <1>, depth={how})",
        f"cf.map_overlap({fn}, <0>, <1>, depth={how}<o>)",
        (other,),
        blocks=a.shape,
    )


add("stencil", _stencil, kinds="iuf", dims=(1, 3), lazily="ours", signed=False, filled=True)


def _dask_map(d: Drawing, x: Value) -> Call | None:
    how, sides = d.integer(0, 2), tuple(d.integer(3, max(3, n)) for n in x.array.shape)
    if how == 0:
        fn = "lambda b, c: b * 2 + c"
        arrays = f"*as_dask(<0>, <1>, {sides})"
        other = d.other(x, same_shape=True)
        return Call(f"({fn})(<0>, <1>)", f"chunkflow.dask.map_blocks({fn}, {arrays}<o>).compute()", (other,))
    if how == 1:
        axes = given(axis=d.axes(x.array), keepdims=d.chance(30))
        fn = "lambda b, axis, keepdims: b.max(axis=axis, keepdims=keepdims)"
        how_so = f"{fn}, {fn}{axes}, dtype=<like>.dtype"
        text = f"chunkflow.dask.reduction(*as_dask(<0>, {sides}), {how_so}<o>).compute()"
        return Call(f"np.max(<0>{axes})", text)
    depth, boundary = d.integer(1, 2), d.choice(["reflect", "periodic", "nearest", 0])
    if x.array.dtype.kind == "b" or min(x.array.shape) <= depth + 1:
        return None
    fn = "neighbours" if depth == 1 else "lambda b: neighbours(b, 2)"
    around = f"depth={depth}, boundary={boundary!r}"
    return Call(
        f"overlapped({fn}, <0>, {depth}, {boundary!r})",
        f"chunkflow.dask.map_overlap({fn}, *as_dask(<0>, {sides}), {around}<o>).compute()",
    )


add("dask's functions", _dask_map, dims=(1, 3), lazily="no", out=False, filled=True, signed=False, kinds="biuf")


def _apply_ufunc(d: Drawing, x: Value) -> Call:
    n = x.array.ndim
    if d.chance(50):
        text = "cf.apply_ufunc(np.add, named(<0>), 1<o>)"
        return Call("(<0> + 1)", text)
    core = f"input_core_dims=[['d{n - 1}']]"
    fn = "lambda b: b.max(axis=-1)"
    return Call(f"({fn})(<0>)", f"cf.apply_ufunc({fn}, named(<0>), {core}<o>)")


add("apply_ufunc", _apply_ufunc, dims=(1, 4), kinds="iuf", lazily="no", filled=True, signed=False)


# -- Reductions ----------------------------------------------------------------------------------------------

family("reductions")


def reduced(x: np.ndarray, axes: Any) -> int:
    """Elements that are combined into one."""
    if axes is None:
        return max(1, x.size)
    several = axes if isinstance(axes, tuple) else (axes,)
    return max(1, int(np.prod([x.shape[a] for a in several])))


def reduction(name: str, *, dtypes: bool = False, ddof: bool = False, where: str = "", one_axis: bool = False,
              module: str = "np", factors: int = 1, **facts: Any) -> None:  # fmt: skip
    def draw(d: Drawing, x: Value) -> Call | None:
        a = x.array
        axes = d.axes(a)
        if one_axis and isinstance(axes, tuple):
            axes = axes[0]
        keywords: dict[str, Any] = {"axis": axes, "keepdims": d.chance(30)}
        many = reduced(a, axes) if "prod" in name else factors
        if dtypes and d.chance(15) and a.dtype.kind in "iuf":
            keywords["dtype"] = d.choice(["f8", "f4"] if a.dtype.kind == "f" else ["f8", "i4", "u8"])
            if name in ("mean", "nanmean", "std", "var", "nanstd", "nanvar"):
                keywords["dtype"] = "f8"
        if ddof and d.chance(30):
            keywords["ddof"] = d.integer(1, 2)
        terms = 1 if "mean" in name or factors > 1 else reduced(a, axes)
        if where and d.chance(15):
            mask = ", where=<0> > 0" if x.exact else ", where=<0> == <0>"  # what is nearly 0 may be on either side
            extra = d.choice([mask, ", initial=2"] if where == "both" else [mask])
            extra += ", initial=2" if name in ("min", "max") and "initial" not in extra else ""
            return Call(f"np.{name}(<0>{given(**keywords)}{extra})", "", terms=terms, factors=many)
        mine = f"cf.{name}(<0>{given(**keywords)}<o>)"
        if module and d.chance(15):
            places = list(inspect.signature(getattr(np, name)).parameters)[1:]
            needed = [key for key, value in keywords.items() if value is not None and value is not False]
            places = places[: max(map(places.index, needed), default=-1) + 1]
            if not {*places} <= {"axis", "dtype", "out", *DEFAULTS}:
                return None
            values = [DEFAULTS.get(key) if keywords.get(key) is None else keywords[key] for key in places]
            text = ", ".join(["<0>", *map(repr, values)])
            return Call(f"np.{name}({text})", mine, terms=terms, factors=many, blocks=a.shape)
        if d.chance(20) and name in METHODS:
            return Call(f"<0>.{name}({given(**keywords).removeprefix(', ')})", mine, terms=terms, factors=many)
        return Call(
            f"{module}.{name}(<0>{given(**keywords)})" if module else f"{name}(<0>{given(**keywords)})",
            mine,
            terms=terms,
            factors=many,
            blocks=a.shape,
        )

    add(name, draw, **{"signed": False, "filled": True, **facts})


DEFAULTS = {"ddof": 0, "keepdims": False}
METHODS = ("sum", "prod", "mean", "std", "var", "min", "max", "any", "all")
reduction("sum", dtypes=True, where="both", rounds=True, gentle=True, filled=False)
reduction("mean", dtypes=True, where="where", rounds=True, gentle=True)
reduction("prod", where="both", rounds=True, filled=False, finite=True)
reduction("std", ddof=True, dtypes=True, rounds=True, finite=True, factors=2)
reduction("var", ddof=True, dtypes=True, rounds=True, finite=True, factors=2)
for name in ("min", "max"):
    reduction(name, where="both", kinds="biuf", gentle=True)
reduction("ptp", kinds="iuf", gentle=True)
for name in ("any", "all"):
    reduction(name, where="both", filled=False)
reduction("count_nonzero", filled=False)
for name in ("argmin", "argmax"):
    reduction(name, one_axis=True, kinds="biuf")
reduction("nansum", rounds=True, gentle=True, filled=False)
reduction("nanmean", rounds=True, gentle=True)
reduction("nanprod", rounds=True, kinds="biuf")
reduction("nanstd", ddof=True, rounds=True, kinds="iuf", factors=2)
reduction("nanvar", ddof=True, rounds=True, kinds="iuf", factors=2)
for name in ("nanmin", "nanmax"):
    reduction(name, kinds="iuf")
for name in ("nanargmin", "nanargmax"):
    reduction(name, one_axis=True, kinds="iuf")


def _norm(d: Drawing, x: Value) -> Call | None:
    a = x.array
    keep = given(keepdims=d.chance(30))
    if d.chance(40):
        text = f"(<0>{keep}"
        terms = a.size
    elif d.chance(60) or a.ndim < 2:
        axis, order = d.axis(a), d.choice([None, 1, 2, 0, "inf", "-inf", 3])
        text = f"(<0>, ord={order}, axis={axis}{keep}"
        terms = a.shape[axis]
    else:
        order = d.choice(["'fro'", 1, -1, "inf", "-inf"])
        axes = tuple(d.order(a.ndim)[:2])
        text = f"(<0>, ord={order}, axis={axes}{keep}"
        terms = a.size
    return Call(f"norm{text})", f"cf.norm{text}<o>)", terms=terms)


add("norm", _norm, kinds="iufc", dims=(1, 3), rounds=True, signed=False, filled=True, finite=True, lazily="ours")


def _average(d: Drawing, x: Value) -> Call | None:
    a = x.array
    axis = d.axis(a)
    n = a.shape[axis]
    if d.chance(50):
        weights = f"np.arange(1, {n + 1})"
        return Call(f"np.average(<0>, {axis}, {weights})", f"cf.average(<0>, {axis}, {weights}<o>)", terms=n, factors=1)
    other = d.other(x, "iuf", same_shape=True)
    text = f"(<0>, axis={axis}, weights=<1>"
    total, most = (weights.sum(axis=axis, dtype="f8") for weights in (other.array, np.abs(other.array)))
    if not (np.abs(total) > most / 4).all():  # what is left of weights that cancel is mostly rounding
        return None
    return Call(f"np.average{text})", f"cf.average{text}<o>)", (other,), terms=10, factors=2)


add("average", _average, kinds="iuf", dims=(1, 3), rounds=True, signed=False, filled=True, finite=True)


def _reduction(d: Drawing, x: Value) -> Call:
    axes = d.axes(x.array)
    how = given(axis=axes, keepdims=d.chance(30))
    if d.chance(50):
        return Call(f"np.max(<0>{how})", f"cf.reduction(<0>, np.max, np.max{how}<o>)")
    return Call(f"np.ptp(<0>{how})", f"cf.reduction(<0>, least_and_most, difference, extremes{how}<o>)")


add("reduction", _reduction, kinds="iuf", signed=False, filled=True, lazily="ours")


def _method(d: Drawing, x: Value) -> Call | None:
    ufunc, method = (
        d.choice(["add", "multiply", "maximum", "minimum", "logical_or"]),
        d.choice(["reduce", "accumulate"]),
    )
    if method == "accumulate" and ufunc == "logical_or":
        return None
    axis = d.axis(x.array)
    keep = given(keepdims=d.chance(30)) if method == "reduce" else ""
    if ufunc in ("add", "multiply") and (not np.isfinite(x.array).all() or x.array.dtype.kind == "b"):
        return None
    n = x.array.shape[axis]
    factors = n if ufunc == "multiply" else 1
    return Call(f"np.{ufunc}.{method}(<0>, axis={axis}{keep})", terms=n, factors=factors)


add(
    "ufunc's method",
    _method,
    dims=(1, 4),
    kinds="biuf",
    rounds=True,
    signed=False,
    filled=True,
    lazily="numpy",
    eagerly=False,
)


# -- Order and counts ----------------------------------------------------------------------------------------

family("order")


def _quantile(d: Drawing, x: Value) -> Call | None:
    a = x.array
    how = given(axis=d.axes(a), keepdims=d.chance(20))
    name = d.choice(["median", "quantile", "percentile", "nanmedian", "nanquantile", "nanpercentile"])
    if name.endswith("median"):
        return Call(f"np.{name}(<0>{how})", f"cf.{name}(<0>{how}<o>)")
    scale = 100 if name.endswith("percentile") else 1
    q: Any = d.choice([0.5, 0.25, 0.0, 1.0, 0.9])
    q = [q * scale, 0.1 * scale] if d.chance(30) else q * scale
    method = d.choice(["linear", "lower", "nearest", "midpoint", "higher", "weibull", "hazen"])
    how += "" if method == "linear" else f", method={method!r}"
    return Call(f"np.{name}(<0>, {q}{how})", f"cf.{name}(<0>, {q}{how}<o>)")


add("quantile", _quantile, kinds="iuf", signed=False, filled=True)


def _topk(d: Drawing, x: Value) -> Call:
    name, k = d.choice(["topk", "argtopk"]), d.choice([1, 2, -1, 5, -3])
    text = f"{name}(<0>, {k}, axis={d.axis(x.array)}"
    return Call(f"{text})", f"cf.{text}<o>)", blocks=x.array.shape)


add("topk", _topk, kinds="biuf", dims=(1, 4), signed=False, filled=True, lazily="ours")


def _unique(d: Drawing, x: Value) -> Call:
    if d.chance(50):
        item, more = d.integer(0, 1), d.choice(["return_counts", "return_inverse"])
        return Call(f"np.unique(<0>, {more}=True)[{item}]", f"cf.unique(<0>, {more}=True<o>)[{item}]")
    return Call("np.unique(<0>)", "cf.unique(<0><o>)", blocks=x.array.shape)


add("unique", _unique, kinds="biu", lazily="never", out=False, filled=True)


def _bincount(d: Drawing, x: Value) -> Call | None:
    if x.array.min(initial=0) < 0 or x.array.max(initial=0) > 1000:
        return None
    text = "(<0>" + given(minlength=d.choice([None, 4]))
    return Call(f"np.bincount{text})", f"cf.bincount{text}<o>)")


add("bincount", _bincount, kinds="iu", dims=(1, 1), lazily="never", out=False)


def _histogram(d: Drawing, x: Value) -> Call | None:
    a = x.array
    how = d.choice(
        [", 4", ", [-1, 0, 2]", ", 5, (-2, 3)", ", 'auto'", ", 3, None, True", ", [-1.5, 0.5, 1], None, True"]
    )
    finite = bool(np.isfinite(a).all())
    if (not finite and "[" not in how and "(" not in how) or (how == ", 'auto'" and not a.size):
        return None
    if a.dtype.kind in "iu" and a.dtype.itemsize == 8 and np.abs(a.astype("f8")).max(initial=0) > 2**40:
        return None
    item = d.integer(0, 1) if d.form == "eager" else 0
    if "True" not in how and "auto" not in how and d.chance(25):
        other = d.other(x, "iuf", same_shape=True)
        if not np.isfinite(other.array).all():
            return None
        most = np.iinfo(other.array.dtype).max if other.array.dtype.kind in "iu" else np.inf
        if np.abs(other.array.astype("f8")).sum() >= most:  # NumPy adds floats, and casts them as C leaves undefined
            return None
        how += ", weights=<1>"
        return Call(
            f"np.histogram(<0>{how})[{item}]", f"cf.histogram(<0>{how}<o>)[{item}]", (other,), terms=max(1, a.size)
        )
    return Call(f"np.histogram(<0>{how})[{item}]", f"cf.histogram(<0>{how}<o>)[{item}]")


add("histogram", _histogram, kinds="iuf", rounds=True, signed=False, out=False, lazily="both")


def _labels(d: Drawing, x: Value) -> Call | None:
    other = d.other(x, "biu", same_shape=True)
    if other.array.dtype.kind not in "biu":
        return None
    statistic = d.choice(["sum", "count", "min", "max", "mean", "var"])
    text = f'(<0>, <1>, "{statistic}"'
    if d.chance(30):
        labels = sorted({int(n) for n in other.array.reshape(-1)[:4]})
        text += f", index={labels}" if d.chance(50) or len(labels) < 2 else f", background={labels[0]}"
    return Call(
        f"in_labels{text})", f'cf.label_statistics{text}<o>)["{statistic}"]', (other,), terms=max(1, x.array.size),
        factors=2,
    )  # fmt: skip


add("label_statistics", _labels, kinds="biuf", rounds=True, finite=True, filled=True, signed=False, lazily="never",
    out=False)  # fmt: skip


# -- Scans ---------------------------------------------------------------------------------------------------

family("scans")


def _steps(a: np.ndarray) -> int:
    """Terms of a scan of NumPy's, which rounds after each: of long ones the errors add up."""
    return max(1, a.size) * (1 + math.isqrt(a.size) // 8)


def scan(name: str, *, numpy: str = "", lazily: str = "both", axis_none: bool = True, **facts: Any) -> None:
    def draw(d: Drawing, x: Value) -> Call:
        a = x.array
        flat = axis_none and d.chance(25)
        how = "" if flat else f", axis={d.axis(a)}"
        return Call(
            f"{numpy or f'np.{name}'}(<0>{how})", f"cf.{name}(<0>{how}<o>)", terms=_steps(a),
            blocks=None if flat else a.shape, factors=(a.size if flat else max(a.shape)) if "prod" in name else 1,
        )  # fmt: skip

    add(name, draw, **{"dims": (1, 4), "signed": False, "lazily": lazily, "filled": "prod" in name, **facts})


scan("cumsum", rounds=True, gentle=True)
scan("cumprod", rounds=True, finite=True)
scan("maximum_accumulate", numpy="np.maximum.accumulate", axis_none=False, kinds="biuf")
scan("minimum_accumulate", numpy="np.minimum.accumulate", axis_none=False, kinds="biuf")
for name in ("nancumsum", "nancumprod"):
    add(
        name,
        lambda d, x, name=name: Call(
            f"np.{name}(<0>, axis={d.axis(x.array)})",
            terms=_steps(x.array),
            factors=max(x.array.shape) if "prod" in name else 1,
        ),
        kinds="iuf",
        dims=(1, 3),
        rounds=True,
        signed=False,
        lazily="numpy",
        eagerly=False,
    )


def _diff(d: Drawing, x: Value) -> Call:
    n, axis = d.integer(0, 3), d.axis(x.array)
    return Call(f"np.diff(<0>, {n}, axis={axis})", f"cf.diff(<0>, {n}, axis={axis}<o>)", factors=1, terms=2**n)


add("diff", _diff, dims=(1, 4), gentle=True, filled=True)


# -- Products ------------------------------------------------------------------------------------------------

family("products")


def _second(d: Drawing, x: Value, side: int) -> tuple[str, tuple[Value, ...]]:
    """A matrix with so many rows, in text: another value, or a new one."""
    fitting = [
        v for v in d.values if v.array.ndim == 2 and v.array.shape[0] == side and v.exact and v.array.dtype.kind != "b"
    ]
    if fitting and d.chance(60):
        return "<1>", (d.choice(fitting),)
    dtype = d.choice([x.array.dtype.newbyteorder("=").str, "f8"])
    return f"np.arange({side * 3}).reshape({side}, 3).astype({dtype!r})", ()


def _matmul(d: Drawing, x: Value) -> Call | None:
    a = x.array
    how = d.integer(0, 5)
    if how == 0 and a.ndim >= 2:
        second, others = _second(d, x, a.shape[-1])
        numpy = f"(<0> @ {second})" if d.chance(40) else f"np.matmul(<0>, {second})"
        return Call(numpy, f"cf.matmul(<0>, {second}<o>)", others, terms=max(1, a.shape[-1]), factors=2)
    if how == 1 and a.ndim == 2:
        other = d.other(x, NUMBERS, same_shape=True)
        text = f"(<0>, <1>, axes=({d.integer(0, 1)}, {d.integer(0, 1)})"
        return Call(f"np.tensordot{text})", f"cf.tensordot{text}<o>)", (other,), terms=a.size, factors=2)
    if how == 2 and a.ndim == 2:
        other = d.other(x, NUMBERS, same_shape=True)
        spec = d.choice(["ij,ij->j", "ij,kj->ik", "ij,ij->", "ij,ik->kj", "ij,ij->ji"])
        return Call(
            f'np.einsum("{spec}", <0>, <1>)', f'cf.einsum("{spec}", <0>, <1><o>)', (other,), terms=a.size, factors=2
        )
    if how == 3:
        other = d.other(x, NUMBERS, same_shape=True)
        return Call("np.vecdot(<0>, <1>)", "cf.vecdot(<0>, <1><o>)", (other,), terms=a.shape[-1], factors=2)
    if how == 5 and a.ndim == 2:
        second, others = _second(d, x, a.shape[-1])
        spec = d.choice(["ij,jk->ki", "ij,jk->", "ij,jk->j", "ij,jk,j->ik"])
        more = f", np.arange({a.shape[-1]})" if spec.count(",") > 1 else ""
        text = f'("{spec}", <0>, {second}{more}'
        return Call(f"einsum{text})", f"cf.einsum{text}<o>)", others, terms=a.size * a.shape[-1], factors=2)
    if how == 4 and a.ndim == 1 and a.size < 60:
        other = d.other(x, NUMBERS, same_shape=True)
        return Call("np.outer(<0>, <1>)", "cf.outer(<0>, <1><o>)", (other,), factors=2)
    if a.ndim <= 2:
        other = d.other(x, NUMBERS, same_shape=True)
        if a.ndim == 1:
            return Call("np.dot(<0>, <1>)", "cf.dot(<0>, <1><o>)", (other,), terms=a.size, factors=2)
        return Call("np.inner(<0>, <1>)", "", (other,), terms=a.size, factors=2)
    return None


add("matmul", _matmul, kinds=NUMBERS, dims=(1, 4), rounds=True, finite=True, signed=False, filled=True)
add(
    "gram",
    lambda d, x: Call("(<0>.conj().T @ <0>)", "cf.gram(<0><o>)", terms=x.array.shape[0], factors=2),
    kinds="fc",
    dims=(2, 2),
    rounds=True,
    finite=True,
    signed=False,
    filled=True,
    lazily="ours",
)


def _cov(d: Drawing, x: Value) -> Call | None:
    name = d.choice(["cov", "corrcoef"])
    how = given(rowvar=None)
    if d.chance(50):
        how += ", rowvar=False"
    if name == "cov" and d.chance(40):
        samples = x.array.shape[0 if "rowvar" in how else 1]
        weights = [d.integer(1, 3) for _ in range(samples)]
        how += d.choice([", bias=True", ", ddof=0", f", fweights={weights}", f", aweights={weights}"])
    a = x.array.astype("c16")
    if name == "corrcoef" and (np.std(a, axis=0) < 1e-6).any() | (np.std(a, axis=1) < 1e-6).any():
        return None  # rounding divided by rounding
    return Call(f"np.{name}(<0>{how})", f"cf.{name}(<0>{how}<o>)", terms=x.array.size, factors=2)


add("cov", _cov, kinds=NUMBERS, dims=(2, 2), rounds=True, finite=True, signed=False, filled=True)


# -- Moves ---------------------------------------------------------------------------------------------------

family("moves")


def move(name: str, draw: Callable[[Drawing, Value], Call | None], **facts: Any) -> None:
    add(name, draw, **{"gentle": True, "chunked": True, **facts})


def lazy_move(name: str, draw: Callable[[Drawing, Value], Call | None], **facts: Any) -> None:
    move(name, draw, **{"eagerly": False, "lazily": "numpy", **facts})


def _transpose(d: Drawing, x: Value) -> Call:
    if d.chance(40):
        return Call("np.transpose(<0>)", "cf.transpose(<0><o>)")
    order = tuple(d.order(x.array.ndim))
    return Call(f"np.transpose(<0>, {order})", f"cf.transpose(<0>, {order}<o>)")


def _flip(d: Drawing, x: Value) -> Call:
    how = given(axis=d.axes(x.array))
    return Call(f"np.flip(<0>{how})", f"cf.flip(<0>{how}<o>)")


def _roll(d: Drawing, x: Value) -> Call:
    axes = d.axes(x.array)
    shift: Any = d.integer(-4, 9)
    if isinstance(axes, tuple) and d.chance(50):
        shift = tuple(d.integer(-4, 9) for _ in axes)
    return Call(f"np.roll(<0>, {shift}, {axes})", f"cf.roll(<0>, {shift}, {axes}<o>)")


def _repeat(d: Drawing, x: Value) -> Call:
    text = f"(<0>, {d.integer(1, 3)}, {d.axis(x.array)}"
    return Call(f"np.repeat{text})", f"cf.repeat{text}<o>)")


def _pad(d: Drawing, x: Value) -> Call:
    a = x.array
    mode = d.choice(["constant", "edge", "symmetric", "reflect", "wrap"])
    width: Any = d.choice([1, (2, 0), tuple((d.integer(0, 4), d.integer(0, 4)) for _ in range(a.ndim))])
    how = f"(<0>, {width}, {mode!r}" + (", constant_values=3" if mode == "constant" and d.chance(30) else "")
    return Call(f"np.pad{how})", f"cf.pad{how}<o>)")


def _concatenate(d: Drawing, x: Value) -> Call:
    name = d.choice(["concatenate", "stack"])
    other = d.other(x, same_shape=True)
    axis = d.axis(x.array) if name == "concatenate" else d.integer(0, x.array.ndim)
    parts = d.choice(["[<0>, <1>]", "[<1>, <0>, <0>]"])
    return Call(f"np.{name}({parts}, {axis})", f"cf.{name}({parts}, {axis}<o>)", (other,))


def _reshape(d: Drawing, x: Value) -> Call:
    a = x.array
    how = d.integer(0, 3)
    if how == 0:
        return Call(d.choice(["<0>.reshape(-1)", "np.ravel(<0>)"]))
    if how == 1 and a.ndim > 1:
        k = d.integer(0, a.ndim - 2)
        shape = (*a.shape[:k], a.shape[k] * a.shape[k + 1], *a.shape[k + 2 :])
        return Call(f"np.reshape(<0>, {shape})")
    for factor in (2, 3, 5):
        k = d.integer(0, max(0, a.ndim - 1))
        if a.ndim and a.shape[k] % factor == 0:
            return Call(f"<0>.reshape({(*a.shape[:k], factor, a.shape[k] // factor, *a.shape[k + 1 :])})")
    return Call("<0>.reshape(1, -1)")


def _rearranged(d: Drawing, x: Value) -> Call | None:
    a = x.array
    options = ["np.expand_dims(<0>, 0)", "np.squeeze(<0>)", "np.atleast_2d(<0>)", "np.copy(<0>)"]
    if a.ndim:
        one, other = d.axis(a), d.axis(a)
        options += [f"np.swapaxes(<0>, {one}, {other})", f"np.moveaxis(<0>, {one}, {other})"]
        n = a.shape[one]
        if n:
            options += [f"np.take(<0>, {d.integer(-n, n - 1)}, {one})"]
            options += [f"np.array_split(<0>, {d.integer(1, 3)}, {one})[0]", f"np.unstack(<0>, axis={one})[-1]"]
        options += [f"np.tile(<0>, {d.integer(1, 2)})", "np.append(<0>, <0>)", "np.hstack([<0>, <0>])"]
        options += ["np.vstack([<0>, <0>])", f"np.broadcast_to(<0>, {(2, *a.shape)})"]
    if a.ndim > 1:
        options += [f"np.rot90(<0>, {d.integer(0, 3)})", "<0>.T", "np.dstack([<0>, <0>])"]
    return Call(d.choice(options))


move("transpose", _transpose)
move("flip", _flip)
move("roll", _roll)
move("repeat", _repeat, dims=(1, 4))
move("pad", _pad, dims=(1, 4), filled=True)
move("concatenate", _concatenate, dims=(1, 4))
move("copy", lambda d, x: Call("<0>.copy()", "cf.copy(<0><o>)"), lazily="ours")
lazy_move("index", lambda d, x: Call(f"<0>[{d.index(x.array.shape)}]"))
lazy_move("reshape", _reshape)
lazy_move("rearrange", _rearranged)


def _rechunk(d: Drawing, x: Value) -> Call:
    return Call(
        "<0>.copy()", f'cf.rechunk(<0>, {d.sides(x.array.shape)}, folder / f"rechunked{{id(<0>)}}.zarr"<o>)[...]'
    )


add("rechunk", _rechunk, dims=(1, 4), lazily="no", out=False, filled=True)


# -- Transforms ----------------------------------------------------------------------------------------------

family("transforms")


def _fft(d: Drawing, x: Value) -> Call | None:
    a = x.array
    names = ["fft", "ifft", "fftn", "ifftn", "irfft", "irfftn"] + (["rfft", "rfftn"] if a.dtype.kind != "c" else [])
    name = d.choice(names)
    norm = given(norm=d.choice([None, "ortho", "forward"]))
    if name.endswith("n"):
        axes = tuple(d.order(a.ndim)[: d.integer(1, a.ndim)])
        points = given(s=None if d.chance(60) else [d.integer(2, 9) for _ in axes])
        text = f"(<0>{points}, axes={axes}{norm}"
    else:
        text = f"(<0>{given(n=d.choice([None, 4, 7]))}, axis={d.axis(a)}{norm}"
    if name.startswith("irfft") and min(a.shape) < 2:
        return None
    if a.dtype.char == "e":  # which NumPy scales in half precision
        return None
    return Call(f"{name}{text})", f"cf.fft.{name}{text}<o>)", terms=a.size)


add("fft", _fft, kinds="iufc", dims=(1, 3), rounds=True, gentle=True, finite=True, filled=True, signed=False,
    lazily="ours")  # fmt: skip


def _convolve(d: Drawing, x: Value) -> Call | None:
    sides = tuple(d.integer(1, min(3, n)) for n in x.array.shape)
    kernel = f"np.arange({int(np.prod(sides))}.).reshape{sides} - 1"
    mode = d.choice(["same", "valid", "full"])
    how = d.choice(["cf.fft.convolve(<0>, {}, {}<o>)", 'cf.convolve(<0>, {}, {}, "direct"<o>)'])
    return Call(
        f'convolved(<0>, {kernel}, "{mode}")', how.format(kernel, f'"{mode}"'),
        terms=int(np.prod(sides)) ** 2 * 10,
    )  # fmt: skip


add("convolve", _convolve, kinds="f", dims=(1, 3), rounds=True, gentle=True, filled=True, signed=False, lazily="ours")

SAME_AXES = {operation.name for family in ("elementwise", "scans", "transforms") for operation in FAMILIES[family]} | {
    *("map", "map_overlap", "stencil", "flip", "roll", "repeat", "pad", "copy")
}
"""Operations whose results have the dimensions of their first operand, in order."""

NAMES = {operation.name: operation for operations in FAMILIES.values() for operation in operations}
LIMITS = {2: 1e3, 4: 1e30, 8: 1e280}
"""Numbers that sums and products may reach, by bytes of a real number: larger ones could overflow in one order only."""
