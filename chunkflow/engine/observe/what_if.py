"""What changes of a run would bring: budgets, chunks, codecs and devices, planned anew.

What the model does not know counts too. Each stage stays as much slower than predicted as it was seen to be; decoding
that is not done takes no time; up to some waiting at each block is due to their number; and what was in no stage stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from chunkflow.core.units import format_bytes
from chunkflow.engine.observe.seen import Seen
from chunkflow.errors import ChunkflowError
from chunkflow.planner.plan import Plan

LEAST = 0.1
"""Share of a run that a change has to save."""

WAITING = 250e-6
"""Seconds that threads wait for one another at each small block, which the model does not know."""

SHORT = 0.2
"""Share of that waiting beyond which the spans of stages are of no use: threads wait in all of them."""

STARTING = 8e-3
"""Seconds that a run on a device of its own takes before its first block and after its last one, where it took so much
more than predicted."""


@dataclass(frozen=True)
class WhatIf:
    """The seconds that the run would take after a change, as far as plans can tell.

    `keywords` say the change once more: ``budget=`` and ``device=`` of the call, ``chunks=`` and ``codec=`` of the
    arrays that it reads.
    """

    change: str
    seconds: float
    keywords: Mapping[str, Any]


def what_ifs(run: Seen, *, elsewhere: bool = True) -> Iterator[WhatIf]:
    """Changes that would save a tenth and more, the best one first; with other devices if `elsewhere`.

    Another device has to halve the time: how fast it is was not seen.
    """
    if run.replan is None or not len(run.plan.grid):
        return
    found: list[WhatIf] = []
    for change, keywords, again in _changes(run, run.replan):
        if "device" in keywords and not elsewhere:
            continue
        with suppress(ChunkflowError):
            seconds = max(_seconds(run, again()), _from_disk(run))
            if seconds < (0.5 if "device" in keywords else 1 - LEAST) * run.seconds:
                found.append(WhatIf(change, seconds, keywords))
    found.sort(key=lambda each: each.seconds)
    yield from [each for each in found if not _is_needless(each, found)]


def _from_disk(run: Seen) -> float:
    """Seconds that the disk takes for what was not in memory, whatever is changed but what is stored."""
    if not run.cold or run.bound_by != "read":
        return 0.0
    return run.busy["read"] * min(run.cold / max(run.moved.get("read", 0), 1), 1.0)


def _is_needless(one: WhatIf, all_of_them: Sequence[WhatIf]) -> bool:
    """Whether a smaller budget brings about as much."""
    budgets = [each for each in all_of_them if "budget" in each.keywords and "budget" in one.keywords]
    smaller = [each.seconds for each in budgets if each.keywords["budget"] < one.keywords["budget"]]
    return min(smaller, default=math.inf) * (1 - LEAST) < one.seconds


def _changes(run: Seen, replan: Callable[..., Plan]) -> Iterator[tuple[str, dict[str, Any], Callable[[], Plan]]]:
    """Each change in words and in keywords, and the plan after it."""
    plan = run.plan
    for times in (4, 16):
        budget = plan.budget * times
        yield f"a budget of {format_bytes(budget)}", {"budget": budget}, lambda budget=budget: replan(budget)  # type: ignore[misc]
    chunked = [i for i, spec in enumerate(plan.operands) if spec.chunks is not None]
    if chunked:
        specs = [
            replace(spec, chunks=tuple(map(min, spec.shape, plan.slot_shape(i)))) if i in chunked else spec
            for i, spec in enumerate(plan.operands)
        ]
        chunks = specs[chunked[0]].chunks
        yield f"chunks of {chunks}", {"chunks": chunks}, lambda: replan(plan.budget, specs=specs)
    encoded = [i for i in chunked if not plan.operands[i].storage.raw]
    if encoded:
        raw = {"raw": True, "codec": "", "copies": 1, "separate": True}
        bare = [s.with_storage(**raw) if i in encoded else s for i, s in enumerate(plan.operands)]
        yield "chunks that are stored unencoded", {"codec": None}, lambda: replan(plan.budget, specs=bare)
    if run.elsewhere is not None and (there := run.elsewhere()) is not None:
        name, machine = there
        yield f"device={name!r}", {"device": name}, lambda: replan(plan.budget, machine=machine)


def _seconds(run: Seen, other: Plan) -> float:
    """How long another plan would take."""
    plan = run.plan
    if other.machine != plan.machine:
        return _on_another_device(run, other)
    alone = plan.lanes < 2 and not plan.machine.staged
    more = max(run.seconds - plan.estimate.seconds, 0.0)
    waiting = 0.0 if alone else min(more, WAITING * len(plan.grid))
    lasts = run.seconds - waiting
    if plan.machine.staged and plan.traffic.decode and run.bound_by == "read":
        lasts = _by_overlapping_stages(run, other, lasts)
    elif plan.machine.staged or waiting > SHORT * run.seconds:
        lasts *= other.estimate.seconds / max(plan.estimate.seconds, 1e-12)
    else:
        lasts = _by_stages(run, other, lasts)
    return lasts + waiting * len(other.grid) / len(plan.grid)


def _by_overlapping_stages(run: Seen, other: Plan, seconds: float) -> float:
    """How long another plan takes where stages overlap, if this one took so many seconds, as it had to decode."""
    known = run.plan.estimate
    fixed = min(STARTING, max(seconds - known.seconds, 0.0))
    reading = seconds - fixed - (known.seconds - max(known.stages.values()))
    return fixed + _overlapped(other, other.estimate.stages | {"read": _read(run, other, reading)})


def _by_stages(run: Seen, other: Plan, seconds: float) -> float:
    """How long another plan takes if this one takes so many seconds, where a lane takes its block through all stages.

    What is in none of them is due to the number of blocks, as far as that was predicted, and stays as it is otherwise.
    """
    known, would = run.plan.estimate, dict(other.estimate.stages)
    if run.spent.get("read") and known.stages["read"]:
        would["read"] = _read(run, other, run.spent["read"])
    for stage in ("compute", "write"):
        if stage in run.spent and known.stages[stage]:
            would[stage] *= run.spent[stage] / known.stages[stage]
    besides = max(seconds - sum(run.spent.values()) / max(run.plan.lanes, 1), 0.0)
    handed = min(besides, known.handed)
    then = handed * other.estimate.handed / known.handed if known.handed else 0.0
    return _in_lanes(other, would) + then + besides - handed


def _on_another_device(run: Seen, other: Plan) -> float:
    """How long the host and a device of its own take, if this run was on the other.

    The host decodes for both: its threads take as long for each byte.
    """
    known, then = run.plan, other.estimate
    would = dict(then.stages)
    share = known.estimate.coding / max(known.estimate.stages["read"], 1e-12)
    if share and run.plan.traffic.decode and run.spent.get("read"):
        each = share * run.spent["read"] / known.traffic.decode
        would["read"] += each * other.traffic.decode / _threads(other) - then.coding
    if not known.machine.staged and run.spent.get("write") and known.estimate.stages["write"]:
        would["write"] *= max(run.spent["write"] / known.estimate.stages["write"], 1.0)
    if other.machine.staged:
        return STARTING + _overlapped(other, would)
    return _in_lanes(other, would) + then.handed


def _threads(plan: Plan) -> float:
    """Threads that decode at once, for a plan's estimate of reading: a lane's own is counted for itself."""
    if not plan.machine.staged or plan.ring_in is None:
        return 1.0
    rate = plan.traffic.decode / max(plan.estimate.coding, 1e-12)
    return max(1.0, plan.ring_in.threads * min(rate / plan.machine.decode, 1.0))


def _read(run: Seen, other: Plan, seconds: float) -> float:
    """Seconds in which another plan reads if this one took so many: its chunks are as slow as these were."""
    known, then = run.plan.estimate, other.estimate
    bare, bare_then = (each.stages["read"] - each.coding for each in (known, then))
    if known.coding:
        return bare_then + then.coding * max(seconds - bare, 0.0) / known.coding
    return then.stages["read"] * seconds / known.stages["read"]


def _overlapped(plan: Plan, stages: Mapping[str, float]) -> float:
    """Seconds of a plan whose stages overlap, if they are as long as these."""
    return plan.estimate.seconds - max(plan.estimate.stages.values()) + max(stages.values())


def _in_lanes(plan: Plan, stages: Mapping[str, float]) -> float:
    """Seconds of a plan whose lanes overlap, if stages are as long as these, without handing blocks out."""
    known = plan.estimate
    return sum(stages.values()) * (known.seconds - known.handed) / max(sum(known.stages.values()), 1e-12)
