"""What changes of a run would bring: budgets, chunks, codecs and devices, planned anew.

What the model does not know counts too. Each stage stays as slow as it was seen to be; decoding that is not done takes
no time; up to some waiting at each block is due to their number; and what came before the first stage, or after the
last, stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from chunkflow.core import grid
from chunkflow.core.grid import Shape
from chunkflow.core.spec import ArraySpec
from chunkflow.core.units import format_bytes, listed, rounded_up
from chunkflow.engine.observe.seen import Seen
from chunkflow.errors import ChunkflowError
from chunkflow.planner.plan import Plan
from chunkflow.stores.caches.decoded_chunks import PARTED

LEAST = 0.1
"""Share of a run that a change has to save."""

WAITING = 250e-6
"""Seconds that threads wait for one another in a stage of a small block, at least, which the model does not know."""

CHUNK = 1 << 20
"""Bytes of chunks that are thought of beside those that are blocks: smaller ones take as long to find as to read."""

NEW = 32 << 20
"""Bytes of memory from which on the allocator gives it back to the system, and takes it anew each time."""

THREAD = 200e-6
"""Seconds that a thread of a ring needs Python's lock to begin, and half of that to end: one after the other."""

STARTING = 8e-3
"""Seconds that a run on a device of its own takes at most before its first stage and after its last one, if it makes no
file. What it took longer was for its buffers, which other plans may not have."""


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

    Of larger budgets it is the smallest that brings about as much as any. Another device has to halve the time: how
    fast it is was not seen.
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
    budgets = [each for each in found if "budget" in each.keywords]
    if len(budgets) > 1:
        enough = [each for each in budgets if each.seconds * (1 - LEAST) < budgets[0].seconds]
        kept = min(enough, key=lambda each: each.keywords["budget"])
        found = [each for each in found if each is kept or "budget" not in each.keywords]
    yield from found


def _from_disk(run: Seen) -> float:
    """Seconds that the disk takes for what was not in memory, whatever is changed but what is stored."""
    if not run.cold or run.bound_by != "read":
        return 0.0
    return run.busy["read"] * min(run.cold / max(run.moved.get("read", 0), 1), 1.0)


def _changes(run: Seen, replan: Callable[..., Plan]) -> Iterator[tuple[str, dict[str, Any], Callable[[], Plan]]]:
    """Each change in words and in keywords, and the plan after it."""
    plan = run.plan
    budgets = {plan.budget * times for times in (4, 16)}
    if plan.whole is not None:
        budgets.add(rounded_up(plan.whole))
    for budget in sorted(budgets):
        yield f"a budget of {format_bytes(budget)}", {"budget": budget}, lambda budget=budget: replan(budget)  # type: ignore[misc]
    operands = list(enumerate(plan.operands))
    chunked = [i for i, spec in operands if spec.chunks is not None]
    if chunked and not plan.op.has_halo:  # neighbours read chunks again, at once, which costs less than is counted
        tried: list[tuple[Plan, list[ArraySpec]]] = []
        for least in (1, CHUNK):
            specs = [_chunked(spec, plan.slot_shape(i), least) if i in chunked else spec for i, spec in operands]
            with suppress(ChunkflowError):
                tried.append((replan(plan.budget, specs=specs), specs))
        if tried:
            then, specs = min(tried, key=lambda each: each[0].estimate.seconds)
            chunks, whose = specs[chunked[0]].chunks, specs[chunked[0]].name
            yield f"chunks of {chunks} of {whose}", {"chunks": chunks}, lambda: then
    encoded = [i for i in chunked if plan.operands[i].storage.encoded]
    if encoded:
        bare = [_unencoded(spec) if i in encoded else spec for i, spec in operands]
        names = listed(list(dict.fromkeys(plan.operands[i].name for i in encoded)))
        yield f"chunks of {names} that are stored unencoded", {"codec": None}, lambda: replan(plan.budget, specs=bare)
    if run.elsewhere is not None and (there := run.elsewhere()) is not None:
        name, machine = there
        yield f"device={name!r}", {"device": name}, lambda: replan(plan.budget, machine=machine)


def _chunked(spec: ArraySpec, block: Shape, least: int) -> ArraySpec:
    """An array with chunks that are blocks, or several of them where these have fewer bytes."""
    sides = tuple(map(min, spec.shape, block))
    return replace(spec, chunks=grid.fit(spec.shape, sides, spec.order, least // spec.dtype.itemsize))


def _unencoded(spec: ArraySpec) -> ArraySpec:
    """An array whose chunks are files as they are."""
    parted = math.prod(spec.chunks or ()) * spec.dtype.itemsize >= PARTED
    return spec.with_storage(raw=True, codec="", copies=1.0 - parted, separate=True, parted=parted, kept=False)


def _seconds(run: Seen, other: Plan) -> float:
    """How long another plan would take."""
    plan = run.plan
    if other.machine != plan.machine:
        return _on_another_device(run, other)
    if not plan.machine.staged:
        return _by_stages(run, other)
    around = _around(run)
    if plan.traffic.decode and run.bound_by == "read":
        return around + _threads_of_ring(other) + _by_overlapping_stages(run, other)
    known, then, lasts = plan.estimate.seconds, other.estimate.seconds, run.seconds - around
    waiting = min(max(lasts - known, 0.0), WAITING * len(plan.grid))
    per_block = waiting / len(plan.grid)
    return around + (lasts - waiting) * then / max(known, 1e-12) + per_block * len(other.grid)


def _around(run: Seen) -> float:
    """Seconds before the first stage and after the last one of any plan on a device of its own."""
    files = any(not spec.storage.in_memory for spec in run.plan.outputs)
    return min(run.around if files else min(run.around, STARTING), run.seconds / 2)


def _threads_of_ring(plan: Plan) -> float:
    """Seconds that threads miss until the last one has begun, on average, and that it takes until all have ended.

    The run that was seen took as long for that, but beside much longer decoding.
    """
    return THREAD * (plan.ring_in.threads - 1) if plan.ring_in is not None else 0.0


def _by_overlapping_stages(run: Seen, other: Plan) -> float:
    """How long another plan takes from its first stage to its last where stages overlap, if this one had to decode."""
    known, would = run.plan.estimate, dict(other.estimate.stages)
    reading = run.seconds - _around(run) - (known.seconds - max(known.stages.values()))
    would["read"] = _read(run, other, reading)
    if run.plan.ring_out is not None and known.stages["write"]:
        written = run.spent.get("write", 0.0) / run.plan.ring_out.threads
        would["write"] *= max(written / known.stages["write"], 1.0)
    return _overlapped(other, would)


def _by_stages(run: Seen, other: Plan) -> float:
    """How long another plan takes where a lane takes its block through all stages.

    Threads wait for one another within them, at each block. What is in none of them is due to the length of the last
    block, and to the number of blocks, as far as that was predicted. What came before the first stage, and after the
    last one, stays as it is, and the rest, such as other processes, takes as much of the stages' time as before.
    """
    known, would = run.plan.estimate, dict(other.estimate.stages)
    waiting = _waiting(run) * len(run.plan.grid) if run.plan.lanes > 1 else 0.0
    times = len(other.grid) / len(run.plan.grid)
    would["read"] = _read(run, other, run.spent["read"]) if run.spent.get("read") and known.stages["read"] else 0.0
    # Cores that decode slow down those beside them, nobody knows how much: half of the excess is taken to be that.
    beside_decoders = run.plan.lanes > 1 and run.plan.traffic.decode and not other.traffic.decode
    for stage in ("compute", "write"):
        if stage == "compute" and run.waits:  # as long for a large block as for a small one
            would[stage] = run.spent[stage] * times
        elif stage in run.spent and known.stages[stage]:
            turns = 2 if stage == "compute" else 1  # a function takes Python's lock again after each of its calls
            waited = min(_beyond_bytes(run, stage), turns * waiting)
            seen = run.spent[stage] - waited
            if stage == "compute" and beside_decoders:
                seen -= max(seen - known.stages[stage], 0.0) / 2
            would[stage] = _as_seen(would[stage], known.stages[stage], seen) + waited * times
    total = sum(run.spent.values())
    besides = max(run.seconds - total / max(run.plan.lanes, 1), 0.0)
    handed = min(besides, known.handed)
    # A lane idles while another one computes the last block.
    ending = min(max(besides - handed - run.around, 0.0), total / len(run.plan.grid) / 2)
    waited = min(besides - handed - ending, waiting)
    around = min(run.around, besides - handed - ending - waited)
    rest = besides - handed - ending - waited - around
    then = around + waited * times
    then += (rest + ending / times) * sum(would.values()) / max(total, 1e-12)
    if known.handed:
        then += handed * other.estimate.handed / known.handed
    return _in_lanes(other, would) + then + max(_taking(other) - _taking(run.plan), 0.0)


def _as_seen(would: float, known: float, seen: float) -> float:
    """Seconds of a stage in another plan, if it would take so many by the model, by which it took `known` in the run.

    What was seen beyond that is the processor's work, which is no slower where more lanes do it.

    >>> _as_seen(2.0, 1.0, 1.5), _as_seen(2.0, 1.0, 0.5)
    (2.5, 1.0)
    """
    return would + seen - known if seen > known else would * seen / known


def _waiting(run: Seen) -> float:
    """Seconds that a stage of a block waits: as long as the copies of results to memory took beyond their bytes."""
    plan = run.plan
    if not all(spec.storage.in_memory for spec in plan.outputs):
        return WAITING
    return max(WAITING, _beyond_bytes(run, "write") / len(plan.grid))


def _beyond_bytes(run: Seen, stage: str) -> float:
    """Seconds that threads were in a stage beyond what its bytes take: as in its quickest block, or as predicted."""
    own = run.quickest.get(stage, run.plan.estimate.stages[stage])
    return max(run.spent.get(stage, 0.0) - own, 0.0)


def _taking(plan: Plan) -> float:
    """Seconds in which lanes are given the memory of their blocks, where that was measured."""
    memory = plan.memory
    taken = memory.inputs + memory.outputs + memory.workspace
    return taken / (plan.machine.fresh * plan.lanes) if plan.machine.fresh else 0.0


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
    return max(1.0, plan.machine.threads * min(rate / plan.machine.decode, 1.0))


def _read(run: Seen, other: Plan, seconds: float) -> float:
    """Seconds in which another plan reads if this one took so many: its chunks are as slow as these were."""
    known, then = run.plan.estimate, other.estimate
    decoding, decoding_then = (each.coding - each.finding for each in (known, then))
    if decoding:
        besides = max(seconds - max(known.stages["read"] - decoding, _new_memory(run, other)), 0.0)
        # Where nothing is decoded any more, nothing hides what blocks larger than the cache take.
        spilled = 1 / other.machine.spill if other.spills and not decoding_then else 1.0
        return (then.stages["read"] - decoding_then) * spilled + decoding_then * besides / decoding
    if known.coding:
        besides = max(seconds - (known.stages["read"] - known.coding), 0.0)
        return then.stages["read"] - then.coding + then.coding * besides / known.coding
    return then.stages["read"] * seconds / known.stages["read"]


def _new_memory(run: Seen, other: Plan) -> float:
    """Seconds that the system took to give large chunks their memory and to read them, if smaller ones have theirs."""
    if run.plan.machine.staged or not run.plan.kept:
        return 0.0
    large, then = (max(plan.operands[i].chunk_bytes for i in run.plan.kept) for plan in (run.plan, other))
    return run.system if large >= NEW > then else 0.0


def _overlapped(plan: Plan, stages: Mapping[str, float]) -> float:
    """Seconds of a plan whose stages overlap, if they are as long as these."""
    return plan.estimate.seconds - max(plan.estimate.stages.values()) + max(stages.values())


def _in_lanes(plan: Plan, stages: Mapping[str, float]) -> float:
    """Seconds of a plan whose lanes overlap, if stages are as long as these, without handing blocks out.

    Blocks that share what they read are read one after another, though they may be decoded at once: a lane waits for
    the block before its own, so that the first blocks find the other lanes idle.
    """
    known, total = plan.estimate, sum(stages.values())
    seconds = total * (known.seconds - known.handed) / max(sum(known.stages.values()), 1e-12)
    if not plan.op.has_halo:
        return seconds
    decoded = (
        known.coding / max(known.stages["read"], 1e-12) if any(spec.storage.encoded for spec in plan.operands) else 0.0
    )
    reading = stages["read"] * (1 - decoded)
    alone = reading + (total - reading) / max(len(plan.grid), 1)
    seconds *= 1 + (plan.lanes - 1) / max(len(plan.grid), 1)
    return max(seconds, alone, _in_turns(reading, total - reading, plan.lanes))


def _in_turns(reading: float, besides: float, lanes: int) -> float:
    """Seconds in which lanes do work of which one at a time does `reading`, for which the others queue.

    By mean value analysis of such queues (M. Reiser and S. S. Lavenberg, Journal of the ACM 27, 1980).

    >>> _in_turns(1.0, 3.0, 1), _in_turns(1.0, 3.0, 2), round(_in_turns(1.0, 3.0, 100), 2)
    (4.0, 2.125, 1.0)
    """
    queue = elapsed = 0.0
    for lane in range(1, lanes + 1):
        waiting = reading * (1 + queue)
        elapsed = (waiting + besides) / lane
        queue = waiting / max(elapsed, 1e-12)
    return elapsed
