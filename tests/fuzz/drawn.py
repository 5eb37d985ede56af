"""Random programs."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from tests.fuzz import oracles, sources
from tests.fuzz.drawing import MOST, Drawing
from tests.fuzz.operations import FAMILIES, LIMITS, NAMES, Call, Operation
from tests.fuzz.program import Program, Value, largest, names

FORMS = ("lazy", "eager", "store", "dask", "dask store")
NUMPY: dict[str, Any] = {
    "np": np, "inf": np.inf, "nan": np.nan, **{name: getattr(oracles, name) for name in oracles.__all__},
    **{name: getattr(np.fft, name) for name in ("fft", "ifft", "rfft", "irfft", "fftn", "ifftn", "rfftn", "irfftn")},
}  # fmt: skip


def program_of(d: Drawing) -> Program:
    """A program that NumPy has run: what it gives is known."""
    d.form = d.choice(FORMS)
    # Drawn before all else, so that dropping a statement changes nothing else.
    budget, sizes = _budget(d), d.choice([1, 1, 2, 3])
    sourced = [_source(d, number) for number in range(sizes)]
    d.values += sourced
    for _ in range(d.integer(1, 5 if d.form != "eager" else 3)):
        if any(value.must_raise for value in d.values[sizes:]):
            break
        made = _statement(d, budget)
        if made is not None:
            d.values.append(made)
    if d.form == "eager" and not d.values[-1].operation:
        copy = NAMES["copy"]
        d.values.append(_called(d, copy, copy.draw(d, d.values[-1]), d.values[-1], budget))
    return _ended(d, budget)


def evaluated(text: str, space: dict[str, Any]) -> np.ndarray | None:
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
    array = evaluated(text, NUMPY)
    assert array is not None, text
    suiting = [kind for kind in sources.SOURCES if kind.suits(array)]
    kind = d.choice(suiting)
    if kind.must_raise and not d.chance(15):
        kind = suiting[0]
    value = Value(number, array, "", [f"a{number} = {text}"], [], scale=largest(array))
    value.must_raise = kind.must_raise
    value.labels = (f"source: {kind.name}", f"dtype: {array.dtype.str[0].replace('|', '<')}{array.dtype.str[1:]}")
    made = f"s{number}" if d.form != "eager" else value.name
    value.ours = sources.named(kind.lines(d, array), a=value.wanted, x=made)
    if d.form != "eager":
        value.lazy = True
        opened = f"cf.open({made})"
        value.ours.append(f"{value.name} = {opened}.data" if "xarray" in kind.name else f"{value.name} = {opened}")
    return value


# -- Statements ----------------------------------------------------------------------------------------------


def _statement(d: Drawing, budget: str) -> Value | None:
    eager = d.form == "eager"
    usable = [v for v in d.values if not eager or v.array.ndim or v.number < len(d.values) and not v.operation]
    able = {False: lambda o: o.lazily not in ("no", "never") or (d.form == "lazy" and o.lazily == "never"), True: lambda o: o.eagerly}[eager]
    families = [[(o, some) for o in family if able(o) and (some := [v for v in usable if o.suits(v)])] for family in FAMILIES.values()]
    families = [family for family in families if family]
    if not families:
        return None
    operation, fitting = d.choice(d.choice(families))
    x = d.choice(fitting[::-1])
    call = operation.draw(d, x)
    if call is None or (eager and not call.ours) or (not eager and operation.lazily == "ours" and not call.ours):
        return None
    return _called(d, operation, call, x, budget)


def _called(d: Drawing, operation: Operation, call: Call, x: Value, budget: str) -> Value | None:
    operands = (x, *call.others)
    if any(v.must_raise and v.lazy != x.lazy for v in operands) or not all(v.exact for v in call.others):
        return None
    space = NUMPY | {v.wanted: v.array for v in operands}
    text = names(call.numpy, [v.wanted for v in operands])
    array = evaluated(text, space)
    if array is None:
        return None
    if array.base is not None or any(array is v.array for v in operands):
        array = array.copy()
    rounds = operation.rounds and (array.dtype.kind in "fc")
    exact = not rounds and all(v.exact for v in operands)
    scale = max(call.terms * _power(max(1.0, *(v.scale for v in operands)), call.factors), largest(array))
    if not exact and scale > LIMITS[array.real.dtype.itemsize if array.dtype.kind in "fc" else 8]:
        return None
    number = len(d.values)
    value = Value(number, array, operation.name, [f"a{number} = {text}"], [], operands, exact)
    value.signed = operation.signed and all(v.signed for v in operands)
    value.scale, value.must_raise = scale, any(v.must_raise for v in operands)
    if d.form == "eager":
        _eagerly(d, value, operation, call, budget)
        return value
    value.lazy = True
    ours = [v.name for v in operands]
    if operation.lazily == "never":
        if not all(v.lazy for v in operands):
            return None
        value.lazy = False
        value.ours = [f"{value.name} = {_run(names(call.ours, ours, like=value.wanted), budget, '')}"]
        value.labels = ("form: at once", *value.labels)
    elif operation.lazily == "numpy" or not call.ours or (operation.lazily == "both" and d.chance(60)):
        value.ours = [f"{value.name} = {names(call.numpy, ours)}"]
    else:
        value.ours = [f"{value.name} = {names(call.ours, ours, o='')}"]
    return value


def _power(number: float, times: int) -> float:
    """A product of so many numbers; infinite if it is very large."""
    return math.exp(min(700.0, times * math.log(number)))


def _eagerly(d: Drawing, value: Value, operation: Operation, call: Call, budget: str) -> None:
    """The lines of a call that runs at once."""
    options = d.blocks(call.blocks) if call.blocks is not None else ""
    place = sources.out(d, f"y{value.number}", value.array) if operation.out else None
    if place is not None:
        value.labels = (f"out: {place.name}",)
        value.ours += place.before
        options += f", out={place.out}"
        value.check = place.read
    if place is None or place.read != place.out:
        pass
    text = names(call.ours, [v.name for v in value.needs], like=value.wanted)
    value.ours.append(f"{value.name} = {_run(text, budget, options, d.device)}")


def _budget(d: Drawing) -> str:
    """How the budget is given: none, plenty, or the smallest that does times a factor."""
    kind = d.choice(["", "plenty", "smallest", "times", "context"])
    if kind == "times":
        return f"smallest * {d.choice([1.2, 2, 4, 16])}"
    return kind


def _run(text: str, budget: str, options: str, device: str = "cpu") -> str:
    """A call with its options and budget."""
    options += f", device={device!r}"
    if budget.startswith("smallest"):
        factor = budget.removeprefix("smallest * ")
        times = "" if factor == budget else f", {factor}"
        return f"tight(lambda budget: {names(text, [], o=options + ', budget=budget')}{times})"
    if budget == "plenty":
        options += ', budget="64MB"'
    return names(text, [], o=options)


# -- The end -------------------------------------------------------------------------------------------------


def _ended(d: Drawing, budget: str) -> Program:
    """The program with what computes its results."""
    last = d.values[-1]
    labels = [f"form: {d.form}", f"budget: {budget.split(' *')[0] or 'default'}"]
    if d.form == "eager" or not last.lazy:
        program = Program(d.values, [last], d.form, [], labels)
        return program
    results = [last]
    lazies = [v for v in d.values[:-1] if v.lazy and v.operation]
    if lazies and d.chance(30):
        results.insert(0, d.choice(lazies))
    ending = []
    if budget == "context":
        ending.append('with cf.Budget("64MB"):')
    indent = "    " if budget == "context" else ""
    found = ", ".join(f"r{v.number}" for v in results)
    given = ", ".join(v.name for v in results)
    for v in results:
        v.check = f"r{v.number}"
    if d.form == "lazy":
        ending.append(f"{indent}{found} = {_run(f'cf.compute({given}<o>)', budget, '', d.device)}")
    elif d.form == "dask":
        if d.chance(50):
            scheduler = d.choice(["sync", "threads"])
            comma = "," if len(results) == 1 else ""
            ending.append(f'{indent}{found}{comma} = dask.compute({given}, scheduler="{scheduler}")')
        else:
            results = [last]
            parts = d.choice(["1kB", "300B", "4GB"])
            text = f'{last.name}.to_dask(partition="{parts}"<o>).compute(scheduler="sync")'
            ending.append(f"{indent}r{last.number} = {_run(text, budget, '', d.device)}")
    else:
        places = []
        for v in results:
            place = sources.out(d, f"y{v.number}", v.array)
            if place is None or (d.form == "dask store" and not place.name.startswith(("npy", "zarr"))):
                text = f'folder / "y{v.number}.zarr"'
                place = sources.Out("zarr path", [], text, f'zarr.open_array({text}, mode="r")[...]')
            labels.append(f"out: {place.name}")
            ending = [*place.before, *ending]
            places.append(place.out)
            v.check = place.read
        together = f"{given}, {places[0]}" if len(results) == 1 else f"[{given}], [{', '.join(places)}]"
        if d.form == "store":
            text = f"cf.store({together}<o>)"
        else:
            parts = d.choice(["1kB", "300B", "4GB"])
            text = f'chunkflow.dask.store({together}, partition="{parts}", scheduler="sync"<o>)'
        ending.append(f"{indent}_ = {_run(text, budget, '', d.device)}")
    return Program(d.values, results, d.form, ending, labels)
