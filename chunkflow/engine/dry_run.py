"""A dry run: all passes of a call are planned, as they would be run, and nothing is computed or written.

Results that a later pass reads are stand-ins of their shape and dtype. Where they decide on the later pass, whoever
asks for it supposes the ones with which it takes most (`is_dry`). A refused budget is answered with dry runs in larger
ones, until all passes have been planned: that one is named. So the search costs nothing where nothing is refused.

A dry run reads what planning reads: of arrays that a user's function is called on, a small block for its trial call.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from mmap import mmap
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from chunkflow import devices
from chunkflow.core.grid import Region
from chunkflow.core.settings import setting
from chunkflow.core.spec import ArraySpec
from chunkflow.core.units import format_bytes, rounded_up
from chunkflow.core.unknown import is_known
from chunkflow.engine.budget import DEFAULT, Budget, bytes_left, imposed, lease
from chunkflow.engine.options import Options
from chunkflow.errors import BudgetError
from chunkflow.planner.plan import MOSTLY, Plan
from chunkflow.stores import checksums
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.identity import steady
from chunkflow.system.context import run_variable

T = TypeVar("T")

TRIES = 64
"""Most budgets that are tried, each larger than the one before."""

ROOMY = 64
"""A budget of so many times the bytes of all arrays holds every pass: its own blocks are these arrays at most, in a few
copies, with what functions take besides."""

FILLED = 256 << 10
"""Bytes of a stand-in up to which it is filled: it is there beside a budget that is refused."""

CLOSELY = 1 << 10
"""Part of a budget by which the smallest one that does may be smaller than the one that is found, after a guess."""

OFTEN, DOUBLINGS, AS_GOOD = 2, 6, 2
"""Where elements are read so often, a larger budget is looked for in so many doublings: the smallest one that reads at
most so many times what the best of them does."""

MANY_OF_BATCH = 1000
"""More blocks of a batch of a live source are slow, where what each costs besides is most of the predicted time."""

FEW = 1000
"""Bytes of a budget that was given without its unit, most likely."""

SURELY_FREE = 64 << 20
"""Bytes that are taken to be free on every device, where no budget is given."""


_suffices: ContextVar[bool | None] = run_variable("chunkflow_dry", None)
"""Whether a dry run must find a budget that does whatever the elements are; None outside of one."""


_supposed: ContextVar[dict[tuple[str, str], int] | None] = run_variable("chunkflow_supposed", None)
"""Bytes that the libraries of the passes so far would have taken, by device and library."""


class Cost(NamedTuple):
    """What passes take: blocks, bytes that they read, and bytes of their arrays, for each pass or each array once.

    `is_slow` says whether one of them is, for its blocks. `of_batch` says whether one of them is a batch of a live
    source of unknown length: then it is what such a batch takes.
    """

    blocks: int = 0
    read: int = 0
    each: int = 0
    once: int = 0
    is_slow: bool = False
    of_batch: bool = False

    @classmethod
    def of(cls, plans: Sequence[Plan]) -> Cost:
        """Of the passes of a call."""
        blocks, read = sum(len(p.grid) for p in plans), sum(p.bytes_in for p in plans)
        arrays: Counter[tuple[Any, ...]] = Counter()
        for plan in plans:
            arrays |= Counter([(spec.name, spec.shape, spec.dtype) for spec in plan.operands])
        once = sum(number * math.prod(shape) * dtype.itemsize for (_, shape, dtype), number in arrays.items())
        each = sum(spec.nbytes for p in plans for spec in p.operands)
        return cls(blocks, read, each, once, any(map(_is_slow, plans)), any(p.batch is not None for p in plans))

    @property
    def times(self) -> float:
        """How often a pass reads elements."""
        return self.read / max(self.each, 1)

    @property
    def reading(self) -> float:
        """What is compared of budgets: bytes that are read; of batches, which are longer in larger ones, how often."""
        return self.times if self.of_batch else self.read


def _is_slow(plan: Plan) -> bool:
    """Whether a plan is slow for its blocks; of a batch, which is one of many, fewer blocks are too many."""
    handed = plan.estimate.handed > MOSTLY * plan.estimate.seconds
    return plan.is_slow or (plan.batch is not None and len(plan.grid) > MANY_OF_BATCH and handed)


_planned: ContextVar[list[Plan | str] | None] = run_variable("chunkflow_planned", None)
"""Plans of the passes so far; None outside of a dry run."""


def note(plan: Plan | str) -> None:
    """Note the plan of a pass, or what is done by one that is not planned before it runs, if this is a dry run."""
    plans = _planned.get()
    if plans is not None:
        plans.append(plan)


_refused: ContextVar[int | None] = run_variable("chunkflow_refused", None)
"""Bytes of the budget that was refused, while a larger one is looked for."""


def bytes_to_try(budget: int) -> int:
    """Bytes of the budget that a trial call may count on: of those that are looked for, none is there yet."""
    refused = _refused.get()
    return budget if refused is None else min(budget, refused)


def supposed() -> dict[tuple[str, str], int]:
    """Bytes that libraries would have taken, by device and library: what is put there counts in all later passes."""
    found = _supposed.get()
    return {} if found is None else found


def is_dry() -> bool:
    """Whether passes are planned only."""
    return _suffices.get() is not None


def must_suffice() -> bool:
    """Whether passes are planned to find a budget that does, whatever the elements are; not only to refuse one."""
    return bool(_suffices.get())


@contextmanager
def _mode(suffices: bool | None, budget: Budget | None) -> Iterator[None]:
    before = _suffices.set(suffices)
    libraries = _supposed.set(None if suffices is None else {})
    try:
        with imposed(budget), np.errstate(all="ignore") if suffices is not None else nullcontext():
            yield
    finally:
        _supposed.reset(libraries)
        _suffices.reset(before)


def apart() -> Any:
    """A context for a run within a dry run that is none itself: of a trial that tells a result's shape, say."""
    return _mode(None, None)


FAR = 16
"""How many times as large a budget that always does must be for one to be named in which the call begins."""


def named(work: Callable[[], T], options: Options, dry: Callable[[], object] | None = None) -> T:
    """What `work` gives. If the budget is refused, the error's `smallest` is one in which `dry`, or `work`, is planned.

    It is for the door through which a call comes in: inside, a refusal may only lead to another way.
    """
    if is_dry():
        return work()
    try:
        with steady(), checksums.asked(options.checksum, options.out):
            return work()
    except BudgetError as error:
        if error.limit is not None and error.limit < FEW:
            error.add_note(f"chunkflow: budget={error.limit} is so many bytes; budget='{error.limit}MB' is so many MB")
        _say_whole(error, options)
        if error.smallest is not None:
            refused = _refused.set(error.limit)
            try:
                _name(error, dry or work, _taken(options))
            finally:
                _refused.reset(refused)
        raise


def _say_whole(error: BudgetError, options: Options) -> None:
    """Let an error say what the caller's whole budget is, where only a part of it was left for the pass that failed."""
    device = devices.resolve(options.device)
    with lease(options.budget, device) as leased:
        whole = leased.budget.limit_on(device)
    said = re.search(r"the budget is ([^()]*) \((\d+) bytes\)", str(error.args[0]))
    if said is not None and int(said[2]) < whole:
        left = f"{said[1]} ({said[2]} bytes) are left of the budget of {format_bytes(whole)}"
        error.args = (str(error.args[0]).replace(said[0], left), *error.args[1:])


def planned(work: Callable[[], object]) -> list[Plan | str]:
    """Plans of the passes of `work`, or what they do where they are planned when they run.

    Raises the `BudgetError` of any. Where the call fails for another reason they are those before: the run will tell.
    """
    return _noted(work, False, None)[0]


def _noted(work: Callable[[], object], suffices: bool | None, budget: Budget | None) -> tuple[list[Plan | str], bool]:
    """What a dry run of `work` notes, and whether it came to its end; it raises the `BudgetError` of any pass."""
    plans: list[Plan | str] = []
    noted = _planned.set(plans)
    try:
        with _mode(suffices, budget):
            work()
    except BudgetError:
        raise
    except Exception:  # of a user's function on stand-ins, say
        return plans, False
    finally:
        _planned.reset(noted)
    return plans, True


def refuse_ahead(work: Callable[[], object], options: Options, nbytes: int | None = None) -> None:
    """Raise the `BudgetError` of any pass of `work`, before the first one runs.

    If the arrays have `nbytes` in all and the budget is roomy, that is not tried.
    """
    if is_dry() or not (nbytes is None or _is_tight(options, nbytes)):
        return
    planned(work)


def _is_tight(options: Options, nbytes: int) -> bool:
    """Whether some pass might not fit the budget."""
    if options.budget is None and setting("budget") == DEFAULT and ROOMY * nbytes <= SURELY_FREE:
        shared = lease(None, devices.resolve(options.device))
        with shared as leased:
            if leased.is_own:
                return False
    return bytes_left(options.budget, devices.resolve(options.device)) < ROOMY * nbytes


def _name(error: BudgetError, work: Callable[[], object], taken: int) -> None:
    """Let an error name the least budget in which a dry run of `work` is refused no more, and what the run costs there.

    Of the budget so many bytes are `taken` by others.
    """
    assert error.smallest is not None
    found = _least(error.limit or 0, error.smallest, work)
    if found is None:
        return
    least, cost = found
    first = error.smallest if error.likely is None and least > FAR * error.smallest else None
    rename(error, least + taken, " for all passes" if least != error.smallest else " with what other runs have taken")
    if first is not None and (begins := _beginning(first, work)) is not None:
        said, error.likely = f"at least {least + taken}", rounded_up(begins + taken)
        instead = (
            f"{error.likely}, in which it begins and tells more, or to {said}, which does whatever the elements are"
        )
        error.args = (str(error.args[0]).replace(f"{said} for all passes", instead), *error.args[1:])
    if not cost.blocks or error.likely is not None:  # what it costs with room for all that there may be is no help
        return
    text, better = str(error.args[0]), _better(least, cost, work, taken)
    arrays = f"{'a batch' if cost.of_batch else 'arrays'} of {format_bytes(cost.once)}"
    asked = re.search(rf"to (at least {least + taken}[^;:.,]*)", text)
    with_least = f"{_said(cost)} of {arrays}"
    if better is None:
        text += f". With {format_bytes(least + taken)} {with_least}"
    elif cost.is_slow and asked is not None:
        budget, quicker = better
        text = (
            f"{text[: asked.start(1)]}{budget}, with which {_said(quicker)} of {arrays}; {asked[1]} do, but slowly: "
            f"{_said(cost)}{text[asked.end(1) :]}"
        )
    else:
        budget, quicker = better
        of = f" of one of {format_bytes(quicker.once)}" if cost.of_batch else ""
        text += f". With {format_bytes(least + taken)} {with_least}, with {format_bytes(budget)} {_said(quicker)}{of}"
    error.args = (text, *error.args[1:])


def _beginning(first: int, work: Callable[[], object]) -> int | None:
    """A budget in which `work` is not refused before it runs, about as small as one that might do; None if none is."""
    for budget in (first, 2 * first, 4 * first):
        shared = Budget(budget)
        try:
            _noted(work, False, shared)
        except BudgetError:
            continue
        finally:
            shared.close()
        return budget
    return None


def _said(cost: Cost) -> str:
    return f"{'1 block reads' if cost.blocks == 1 else f'{cost.blocks:,} blocks read'} {format_bytes(cost.read)}"


def _least(refused: int, first: int, work: Callable[[], object]) -> tuple[int, Cost] | None:
    """The least budget in which a dry run of `work` is refused no more, nearly, and its cost; or None.

    One of `refused` bytes is refused; `first` are those that might do.
    """
    least = first
    for _ in range(TRIES):
        try:
            cost = _cost(least, work)
        except BudgetError as error:
            if error.smallest is None:
                return None
            more = error.smallest if error.smallest > least else least + least // 8 + 1
            refused, least = least, more
        else:
            return _closer(refused, least, cost, work)
    return None


def _closer(refused: int, least: int, cost: Cost, work: Callable[[], object]) -> tuple[int, Cost]:
    """A budget that does, and hardly a smaller one. Mostly it is the `least` one, so those just below it come first."""
    middle = least - max(1, least // CLOSELY)
    while least - refused > max(1, least // CLOSELY):
        try:
            least, cost = middle, _cost(middle, work)
        except BudgetError:
            refused = middle
        middle = (refused + least) // 2
    return least, cost


def _better(least: int, cost: Cost, work: Callable[[], object], taken: int) -> tuple[int, Cost] | None:
    """A larger budget, and its cost: the first that is not slow, or in which elements are read much less often.

    None if there is none.
    """
    tried: list[tuple[int, Cost]] = []
    for doublings in range(1, DOUBLINGS + 1):
        if not cost.is_slow and min([cost, *(c for _, c in tried)], key=lambda c: c.reading).times < OFTEN:
            break
        budget = rounded_up((least << doublings) + taken)
        try:
            found = _cost(budget - taken, work)
        except BudgetError:
            return None
        if cost.is_slow and not found.is_slow:
            return budget, found
        tried.append((budget, found))
    good = AS_GOOD * min((c.reading for _, c in tried), default=cost.reading)
    return next((each for each in tried if each[1].reading <= good and OFTEN * each[1].reading <= cost.reading), None)


def _cost(nbytes: int, work: Callable[[], object]) -> Cost:
    """What a dry run of `work` in a budget shows that it takes.

    Raises
    ------
    BudgetError
        It does not fit.
    """
    budget = Budget(nbytes)
    try:
        plans, ended = _noted(work, True, budget)
    finally:
        budget.close()
    found = [plan for plan in plans if isinstance(plan, Plan)]
    if not ended or not all(is_known(spec.shape) for plan in found for spec in plan.operands):
        return Cost()  # nobody knows what it takes
    return Cost.of(found)


def rename(error: BudgetError, smallest: int, why: str = "") -> None:
    """Let an error name another smallest budget, and `why` it is another, in its message too."""
    if smallest == error.smallest:
        return
    old, message = f"at least {error.smallest}", str(error.args[0])
    if old in message:
        message = message.replace(old, f"at least {smallest}{why}")
    else:
        message = f"{message}; {smallest} bytes are enough{why}"
    error.args = (message, *error.args[1:])
    error.needed = smallest if error.needed == error.smallest else error.needed
    error.smallest = smallest


def _taken(options: Options) -> int:
    """Bytes that other runs and loops have taken of the budget."""
    device = devices.resolve(options.device)
    with lease(options.budget, device) as leased:
        return 0 if leased.is_own else max(0, leased.budget.limit_on(device) - leased.budget.left(device, None))


# -- Stand-ins -----------------------------------------------------------------------------------------------


def placeholder(dtype: np.dtype) -> np.ndarray:
    """The element that stands for all of an array: 1, but of integers 0, a place that every table has."""
    return np.array(0 if dtype.kind in "iu" else 1, dtype)


def stand_ins(specs: Sequence[ArraySpec]) -> tuple[Any, ...]:
    """Placeholders for results: arrays that take no memory, or sources in place of files."""
    return tuple([_ones(spec) if spec.storage.in_memory else _StandIn(spec) for spec in specs])


def is_stand_in(result: Any) -> bool:
    """Whether a result is a source in place of a file."""
    return isinstance(result, _StandIn)


def _ones(spec: ArraySpec) -> np.ndarray:
    """Placeholders that lie as the result would: whether a function copies them, which takes memory, depends on that.

    Zeros of the kernel's stand for many: pages that nobody touches are not there.
    """
    order: Literal["C", "F"] = "F" if spec.order == tuple(reversed(range(len(spec.shape)))) else "C"
    if spec.nbytes <= FILLED:
        return np.full(spec.shape, placeholder(spec.dtype), spec.dtype, order)
    try:
        return np.ndarray(spec.shape, spec.dtype, mmap(-1, spec.nbytes), order=order)
    except (OSError, OverflowError, ValueError):
        return np.broadcast_to(placeholder(spec.dtype), spec.shape)


class _StandIn:
    """A source of placeholders in place of a file that a pass would have written."""

    footprint: Footprint | None = None

    def __init__(self, spec: ArraySpec) -> None:
        self.spec = spec
        self.shape, self.dtype, self.ndim = spec.shape, spec.dtype, len(spec.shape)

    def __chunkflow_source__(self) -> _StandIn:
        return self

    def read(self, region: Region, out: np.ndarray) -> None:
        out[...] = placeholder(out.dtype)

    def view(self, region: Region) -> np.ndarray | None:
        return None

    def close(self) -> None:
        """See `Source.close`: nothing is open."""
