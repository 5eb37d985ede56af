"""Calls of NumPy's functions, held to NumPy: eager and lazy, in one block and in many, a right result or a refusal."""

from __future__ import annotations

import operator
import os
import warnings
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import settings
from support.gpu_values import why_different
from support.numpy_examples import flat

import chunkflow as cf
from chunkflow.errors import BudgetError, ChunkflowError

DEVICE = os.environ.get("CHUNKFLOW_DEVICE", "cpu")
"""Where the tables are tried."""

AMPLE = 64 << 20
"""A budget in which every array of the tables is one block. The other one is the smallest that will do."""

AT_ONCE = "np's function of chunkflow.open(x) takes it"
"""Why chunkflow's own functions, which run at once, refuse what NumPy's take of expressions."""

KINDS = (
    *(np.exceptions.AxisError, np.linalg.LinAlgError, OverflowError, ZeroDivisionError, MemoryError),
    *(TypeError, ValueError),
)
"""What a user of NumPy may catch, the narrower ones first. A bare IndexError is a slip of NumPy's."""


@dataclass(frozen=True)
class Case:
    """A call of NumPy's function of this name. Arrays become lazy, lists stay as they are.

    Attributes
    ----------
    refusal : str
        Why chunkflow refuses what NumPy does.
    ways : tuple of str
        Where it does: "eager", "lazy".
    liberty : str
        Why chunkflow does what NumPy refuses.
    cut : bool
        Whether it is called with many blocks too.
    close : float
        Error that is allowed, in units of the dtype's rounding.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    refusal: str = ""
    ways: tuple[str, ...] = ("eager", "lazy")
    liberty: str = ""
    cut: bool = True
    close: float = 64.0

    def refused_at_once(self, when: bool = True) -> Case:
        return self.refused(AT_ONCE, when, ways=("eager",))

    def refused(self, why: str, when: bool = True, *, ways: tuple[str, ...] = ("eager", "lazy")) -> Case:
        return replace(self, refusal=why, ways=ways) if when else self

    def taken(self, why: str, when: bool = True) -> Case:
        return replace(self, liberty=why) if when else self

    def by_place(self) -> Case:
        """With arguments after NumPy's `out`, which chunkflow's own functions take by name only."""
        return self.refused("it is taken by name", ways=("eager",))

    def whole(self) -> Case:
        """In one block only: many passes over many blocks take long."""
        return replace(self, cut=False)

    def within(self, close: float) -> Case:
        return replace(self, close=close)

    def __str__(self) -> str:
        given = [*map(_shown, self.args), *(f"{key}={_shown(value)}" for key, value in self.kwargs.items())]
        return f"{self.name}({', '.join(given)})"


def case(name: str, *args: Any, **kwargs: Any) -> Case:
    """A row of a table."""
    return Case(name, args, kwargs)


def names(cases: Iterable[Case]) -> list[str]:
    """The functions in a table, for a test each."""
    return list(dict.fromkeys(case.name for case in cases))


LONG = 30
"""Rows of a function from which on a sixth of them are tried: each rule is in the rows of many functions."""


def drawn(key: str, values: Sequence[Any]) -> Sequence[Any]:
    """In CI a third of some values, which is another one from key to key."""
    return values if _is_thorough() else values[zlib.crc32(key.encode()) % 3 :: 3]


def _is_thorough() -> bool:
    """Whether all is tried: by `make thorough`, and on a GPU."""
    return DEVICE != "cpu" or settings().max_examples > 100


def _drawn(case: Case) -> int:
    """A number that is the same in each run, and another one for each row."""
    return zlib.crc32(str(case).encode())


def hold(cases: Iterable[Case]) -> None:
    """Check that each call gives what NumPy gives, or is refused as the table says."""
    rows = list(cases)
    if len(rows) > LONG and not _is_thorough():
        rows = [row for row in rows if _drawn(row) // 2 % 6 == 0]
    problems = [f"{row}: {problem}" for row in rows for problem in _problems(row)]
    assert not problems, "\n" + "\n".join(problems)


# -- Ways to make a call ---------------------------------------------------------------------------------------------


def _problems(case: Case) -> Iterable[str]:
    fn = _function(np, case.name)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            expected = fn(*_copied(case.args), **_copied(case.kwargs))
    except Exception as error:  # whatever NumPy raises
        expected = error
    for row, way, call, budget, size in _sampled(case, _all_ways(case, fn, isinstance(expected, Exception))):
        problem = _problem(row, expected, call, budget)
        if problem:
            yield f"{way}, {size}: {problem}"


Way = tuple[Case, str, Callable[[int], Any], int, str]


def _all_ways(case: Case, fn: Callable[..., Any], refused: bool) -> list[Way]:
    """In one block and in many, eager and lazy: of two in turn one has each."""
    one: list[Way] = []
    many: list[Way] = []
    for way, call in _ways(case, fn):
        row = case if way in case.ways else replace(case, refusal="")
        one.append((row, way, call, AMPLE, "one block"))
        if not (row.refusal or refused or not row.cut):
            many.append((row, way, call, 1, "many blocks"))
    return [*one, *many[::-1]] if len(one) == 1 else [one[0], *many, one[1]]


def _sampled(case: Case, ways: list[Way]) -> list[Way]:
    """A third of the ways: which ones differs among the rows of a table."""
    return ways if _is_thorough() or len(ways) == 1 else ways[_drawn(case) % min(3, len(ways)) :: 3]


def _ways(case: Case, fn: Callable[..., Any]) -> Iterable[tuple[str, Callable[[int], Any]]]:
    eager = _function(cf, case.name)
    if eager is not None:
        yield "eager", lambda budget: eager(*case.args, **case.kwargs, budget=budget, device=DEVICE)

    def lazily(budget: int) -> Any:
        first = [True]
        args, kwargs = _opened(case.args, first, budget != 1), _opened(case.kwargs, first, budget != 1)
        lazy = fn(*args, **kwargs)
        return Built(lazy)

    yield "lazy", lazily


@dataclass(frozen=True)
class Built:
    """An expression, or several: what is refused is refused before this."""

    lazy: Any

    def computed(self, budget: int) -> Any:
        """The result, of the shape and dtype that the expression has."""
        got = cf.compute(self.lazy, budget=budget, device=DEVICE)
        for one, other in zip(flat(self.lazy), flat(got), strict=True):
            if isinstance(one, cf.Array):
                assert (one.shape, one.dtype) == (np.shape(other), np.asarray(other).dtype), "declared otherwise"
        return got


def _problem(case: Case, expected: Any, call: Callable[[int], Any], budget: int) -> str | None:
    """What is wrong with a call within a budget, or within the smallest one that will do."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            got = call(budget)
        except BudgetError as error:
            return _problem(case, expected, call, _larger(error, budget))
        except Exception as error:  # whatever it is, it is judged
            return _misjudged(case, expected, error)
        while isinstance(got, Built):
            try:
                got = got.computed(budget)
            except BudgetError as error:
                budget = _larger(error, budget)
            except Exception as error:
                if isinstance(expected, Exception) and _depends_on_data(error, expected):
                    return None
                return f"not at once, but when computed: {error!r}"
    if case.refusal:
        return "is no longer refused: take the mark off the table"
    if isinstance(expected, Exception):
        return None if case.liberty else f"gave {got!r}, where NumPy raises {expected!r}"
    if case.liberty:
        return "is not refused by NumPy either: take the mark off the table"
    if DEVICE != "cpu" and why_different(str(case)):
        return None
    return difference(got, expected, case.close)


def _larger(error: BudgetError, budget: int) -> int:
    assert (error.smallest or 0) > budget, f"no budget that will do: {error}"
    return error.smallest or 0


def _depends_on_data(error: Exception, expected: Exception) -> bool:
    """Whether NumPy refuses because of elements, which an expression has not seen: as it does, or in our words."""
    if isinstance(error, ChunkflowError):
        return "NaN" in str(expected) or isinstance(expected, ZeroDivisionError)
    return type(error) is type(expected) and str(error) == str(expected)


def _misjudged(case: Case, expected: Any, error: Exception) -> str | None:
    """What is wrong with an error; an argument that NumPy's own check of a call refuses may never reach chunkflow."""
    reached, trace = False, error.__traceback__
    while trace is not None:
        reached = reached or "/chunkflow/" in trace.tb_frame.f_code.co_filename
        trace = trace.tb_next
    if reached and not isinstance(error, ChunkflowError):
        return f"a raw error: {error!r}"
    if not isinstance(expected, Exception):
        return None if case.refusal else f"refused, and the table does not say why: {error!r}"
    kind = next((kind for kind in KINDS if isinstance(expected, kind)), Exception)
    return None if isinstance(error, kind) else f"{error!r} is no {kind.__name__}, and NumPy raises {expected!r}"


# -- Comparison ------------------------------------------------------------------------------------------------------


def difference(got: Any, expected: Any, close: float) -> str | None:
    found, right = flat(got), flat(expected)
    if len(found) != len(right):
        return f"{len(found)} results, not {len(right)}"
    for one, other in zip(found, right, strict=True):
        if not isinstance(other, np.ndarray | np.generic):
            if one != other:
                return f"{one!r} is not {other!r}"
            continue
        one, other = np.asarray(one), np.asarray(other)
        if (one.shape, one.dtype) != (other.shape, other.dtype.newbyteorder("=")):
            return f"{one.dtype} {one.shape} is not {other.dtype} {other.shape}"
        if not _equal(one, other, close):
            return f"{one!r} is not {other!r}"
    return None


def _equal(one: np.ndarray, other: np.ndarray, close: float) -> bool:
    if one.dtype.kind not in "fc":
        return bool((one == other).all())
    if one.dtype.kind == "c":
        return _equal(one.real, other.real, close) and _equal(one.imag, other.imag, close)
    bound = close * float(np.finfo(one.dtype).eps)
    scale = float(np.max(np.abs(other), where=np.isfinite(other), initial=0))
    wide = one.astype("f8"), other.astype("f8")
    return bool(np.allclose(*wide, rtol=bound, atol=bound * scale, equal_nan=True))


# -- Arguments -------------------------------------------------------------------------------------------------------


def _function(module: Any, name: str) -> Any:
    if name == "getitem":
        return operator.getitem if module is np else None
    if name.startswith("ndarray."):  # the array's own method
        method = name.removeprefix("ndarray.")
        return (lambda x, *args, **kwargs: getattr(x, method)(*args, **kwargs)) if module is np else None
    if module is cf and name.startswith("linalg."):
        return cf.norm if name == "linalg.norm" else None
    for part in name.split("."):
        if module is cf and part not in (*cf.__all__, "fft"):
            return None
        module = getattr(module, part, None)
    return module


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_copied, value))
    return value.copy() if isinstance(value, np.ndarray) else value


def _opened(value: Any, first: list[bool], every: bool) -> Any:
    """The arguments with lazy arrays for all arrays, or for the first one alone."""
    if isinstance(value, dict):
        return {key: _opened(entry, first, every) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_opened(entry, first, every) for entry in value)
    if not isinstance(value, np.ndarray) or not (every or first[0]):
        return value
    first[0] = False
    return cf.open(value)


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype.str[1:]}{list(value.shape)}"
    if isinstance(value, list | tuple) and any(isinstance(v, np.ndarray) for v in value):
        return f"[{', '.join(map(_shown, value))}]"
    return value.__name__ if isinstance(value, type) else repr(value)
