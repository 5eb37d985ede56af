"""Random programs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.fuzz import oracles, sources
from tests.fuzz.drawing import MOST, Drawing
from tests.fuzz.operations import FAMILIES, LIMITS, NAMES, SAME_AXES, Call, Operation
from tests.fuzz.program import Program, Value, largest, names

NUMPY: dict[str, Any] = {
    "np": np, "inf": np.inf, "nan": np.nan, **{name: getattr(oracles, name) for name in oracles.__all__},
    **{name: getattr(np.fft, name) for name in ("fft", "ifft", "rfft", "irfft", "fftn", "ifftn", "rfftn", "irfftn")},
}  # fmt: skip
"""What lines may use when NumPy runs them."""

FORMS = ("lazy", "eager", "store", "dask", "dask store")
PARTITIONS = ("1kB", "300B", "4GB")
AMPLE = '"1GB"'


def program_of(d: Drawing) -> Program:
    """A program that NumPy has run: what it gives is known."""
    d.form = d.only("form", FORMS)
    # Drawn before all else, so that dropping a statement changes nothing else.
    d.budget, number = _budget(d), d.choice([1, 1, 2, 3])
    d.values += [_source(d, n) for n in range(number)]
    for _ in range(d.integer(1, 5 if d.form != "eager" else 3)):
        if not d.values[-1].ended and (made := _statement(d)) is not None:
            d.values.append(made)
    last = d.values[-1]
    if d.form == "eager" and not last.operation:
        copied = _called(d, NAMES["copy"], Call("<0>.copy()", "cf.copy(<0><o>)"), last)
        assert copied is not None
        d.values.append(copied)
    return _ended(d)


def _evaluated(text: str, space: dict[str, Any]) -> np.ndarray | None:
    """What NumPy gives for an expression; None if it raises, or gives what no program goes on with."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            found = np.asarray(eval(text, space))
        except (ValueError, TypeError, IndexError, OverflowError, ZeroDivisionError):
            return None
    return found if found.size <= 4 * MOST and found.dtype.kind in "biufc" and found.ndim <= 6 else None


# -- Sources -------------------------------------------------------------------------------------------------


def _source(d: Drawing, number: int) -> Value:
    text = sources.data(d)
    array = _evaluated(text, NUMPY)
    assert array is not None, text
    suiting = [kind for kind in sources.SOURCES if kind.suits(array)]
    kind = d.only("source", suiting)
    if kind.must_raise and not d.chance(20):
        kind = suiting[0]
    value = Value(number, array, "", [f"a{number} = {text}"], [], scale=largest(array), must_raise=kind.must_raise)
    value.labels = (f"source: {kind.name}", f"dtype: {array.dtype.str.replace('|', '<')}")
    value.lazy = d.form != "eager"
    value.labelled = "xarray" in kind.name
    made = f"s{number}" if value.lazy else value.name
    value.ours = sources.named(kind.lines(d, array), a=value.wanted, x=made)
    if value.lazy:
        data = ".data" if value.labelled else ""
        value.ours.append(f"{value.name} = cf.open({made}){data}")
    return value


# -- Statements ----------------------------------------------------------------------------------------------


def _statement(d: Drawing) -> Value | None:
    """A call of an operation that suits the values so far."""
    # What runs at once gives numbers where there are no dimensions, which are no sources.
    usable = [v for v in d.values if v.lazy or v.array.ndim or not v.operation]
    families = []
    for name, family in FAMILIES.items():
        fitting = [(o, some) for o in family if o.runs(d.form) and (some := [v for v in usable if o.suits(v)])]
        if fitting and d.wanted(name, *(o.name for o, _ in fitting)):
            families.append([pair for pair in fitting if d.wanted(name, pair[0].name)])
    if not families:
        return None
    operation, fitting = d.choice(d.choice(families))
    x = d.choice(fitting[::-1])  # the latest first
    call = operation.draw(d, x)
    return None if call is None or (not call.ours and d.form == "eager") else _called(d, operation, call, x)


def _called(d: Drawing, operation: Operation, call: Call, x: Value) -> Value | None:
    """The value of a call, if NumPy gives one."""
    operands = (x, *call.others)
    text = names(call.numpy, [v.wanted for v in operands])
    array = _evaluated(text, NUMPY | {v.wanted: v.array for v in operands})
    if array is None or (d.device != "cpu" and _differs_on_gpu(operation, operands, array)):
        return None
    finite = all(np.isfinite(v.array).all() for v in operands)
    if operation.rounds and array.dtype == "f2" and finite and not np.isfinite(array).all():
        return None  # NumPy has overflowed on the way: ours may not
    if array.base is not None or any(array is v.array for v in operands):
        array = array.copy()
    rounds = operation.rounds or (d.device != "cpu" and any(v.array.dtype.kind == "c" for v in operands))
    exact = not (rounds and array.dtype.kind in "fc") and all(v.exact for v in operands)
    scale = max(call.terms * _power(max(1.0, *(v.scale for v in operands)), call.factors), largest(array))
    if not exact and scale > LIMITS[array.real.dtype.itemsize if array.dtype.kind in "fc" else 8]:
        return None
    number = len(d.values)
    value = Value(number, array, operation.name, [f"a{number} = {text}"], [], operands, exact, scale=scale)
    value.real = min([v.real for v in operands if not v.exact], default=8)
    if not exact and array.dtype.kind in "fc":
        value.real = min(value.real, array.real.dtype.itemsize)
    value.signed = operation.signed and all(v.signed for v in operands)
    value.labelled = any(v.labelled for v in operands)
    value.moved = operation.name not in SAME_AXES or any(v.moved for v in operands)
    value.must_raise = array.size > 0 and any(v.must_raise for v in operands)
    ours = [v.name for v in operands]
    if d.form == "eager":
        place = sources.out(d, f"y{number}", array) if operation.out else None
        alike = array.shape == x.array.shape and array.dtype == x.array.dtype and not x.must_raise
        if operation.in_place and alike and d.chance(10):
            place = sources.in_place(d, f"y{number}", x.array)
            ours[0] = f"y{number}"
        cut = array.shape if operation.chunked else call.blocks
        options = "" if cut is None else d.blocks(cut)
        if place is not None:
            value.labels, value.check = (f"out: {place.name}",), place.read
            value.ours = [names(line, [x.wanted]) for line in place.before]
            options += f", out={place.out}"
            value.ended = place.name == "wider"  # what it returns has another dtype
        value.ours += _run(d, f"{value.name} = ", names(call.ours, ours, like=value.wanted), options)
    elif operation.lazily == "never":
        value.labels, value.ended = ("form: at once",), True
        value.ours = _run(d, f"{value.name} = ", names(call.ours, ours, like=value.wanted))
    else:
        value.lazy = True
        numpys = not call.ours or operation.lazily == "numpy" or (operation.lazily == "both" and d.chance(60))
        value.ours = [f"{value.name} = {names(call.numpy if numpys else call.ours, ours, o='')}"]
    return value


def _differs_on_gpu(operation: Operation, operands: Sequence[Value], array: np.ndarray) -> bool:
    """Whether a GPU has other values, as docs/gpu.md says."""
    if operation.name == "lcm":  # where it overflows, no two processors agree
        return True
    numbers = np.abs(np.stack([array.real, array.imag])) if array.dtype.kind == "c" else array
    tiny = np.finfo(np.float32).tiny
    small = array.dtype.char in "efF" and bool(((numbers != 0) & (np.abs(numbers) < tiny)).any())
    return small  # which a GPU takes for zeros


def _power(number: float, times: int) -> float:
    """A product of so many numbers; of very large ones a large number."""
    return math.exp(min(700.0, times * math.log(number)))


# -- How they are run ----------------------------------------------------------------------------------------


def _budget(d: Drawing) -> str:
    """How the budget is given: not at all, plenty, as a context, or as the smallest that does, times a factor."""
    kind = d.only("budget", ["default", "plenty", "smallest", "larger", "context"])
    return f"smallest * {d.choice([1.2, 2, 4, 16])}" if kind == "larger" else kind


def _run(d: Drawing, start: str, text: str, options: str = "") -> list[str]:
    """The lines of a call with options where it has ``<o>``, within the budget."""
    options += f", device={d.device!r}"
    if d.budget.startswith("smallest"):
        factor = d.budget.removeprefix("smallest").replace(" * ", ", ")
        return [f"{start}tight(lambda budget: {names(text, [], o=options + ', budget=budget')}{factor})"]
    if d.budget == "context":
        return [f"with cf.Budget({AMPLE}):", f"    {start}{names(text, [], o=options)}"]
    return [start + names(text, [], o=options + (f", budget={AMPLE}" if d.budget == "plenty" else ""))]


def _ended(d: Drawing) -> Program:
    """The program, with the lines that compute its results."""
    last = d.values[-1]
    labels = [f"form: {d.form}", f"budget: {d.budget.replace(' * ', ' times ')}"]
    if not last.lazy:
        return Program(d.values, [last], d.form, [], labels)
    results = [last]
    others = [v for v in d.values[:-1] if v.lazy and v.operation]
    if others and d.chance(30):
        results.insert(0, d.choice(others))
    for value in results:
        value.check = f"r{value.number}"
    given, found = ", ".join(v.name for v in results), ", ".join(v.check for v in results)
    if d.form == "lazy":
        return Program(d.values, results, d.form, _run(d, f"{found} = ", f"cf.compute({given}<o>)"), labels)
    if d.form == "dask" and d.chance(50):
        comma = "," if len(results) == 1 else ""
        line = f'{found}{comma} = dask.compute({given}, scheduler="{d.choice(["sync", "threads"])}")'
        return Program(d.values, results, d.form, [line], labels)
    if d.form == "dask":
        text = f'{last.name}.to_dask(partition="{d.choice(PARTITIONS)}"<o>).compute(scheduler="sync")'
        return Program(d.values, [last], d.form, _run(d, f"{last.check} = ", text), labels)
    ending, places = [], []
    for value in results:
        place = sources.out(d, f"y{value.number}", value.array)
        if place is None or (d.form == "dask store" and not place.name.startswith(("npy", "zarr"))):
            place = sources.zarr_out(f"y{value.number}")
        ending += place.before
        labels.append(f"out: {place.name}")
        value.check = place.read
        places.append(place.out)
    together = f"{given}, {places[0]}" if len(results) == 1 else f"[{given}], [{', '.join(places)}]"
    if d.form == "store":
        text = f"cf.store({together}{d.blocks(last.array.shape) if len(results) == 1 else ''}<o>)"
    else:
        text = f'chunkflow.dask.store({together}, partition="{d.choice(PARTITIONS)}", scheduler="sync"<o>)'
    return Program(d.values, results, d.form, [*ending, *_run(d, "_ = ", text)], labels)
