"""Why a run took as long as it did: the stage that bounds it, causes with their figures, and what changes would bring.

Causes are told by what was seen of the run, its spans, the process's and the machine's processor time, and by its plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from chunkflow.core.markup import Printed
from chunkflow.core.spec import ArraySpec
from chunkflow.core.units import format_bytes
from chunkflow.engine.observe.seen import Seen
from chunkflow.engine.observe.what_if import WAITING, WhatIf, what_ifs
from chunkflow.errors import ChunkflowError
from chunkflow.planner.plan import Plan
from chunkflow.system.host import cores

SMALL_CHUNK, HANDLING = 256 << 10, 40e-6
"""Bytes of a small chunk, and seconds that a chunk costs besides its bytes where that was not measured."""

SLOW_CODEC = 1e9
"""Bytes per second below which a thread decodes slowly: zstd gives some two to three times as many."""

SLOW_FUNCTION, MOSTLY = 300e6, 0.5
"""Bytes per second below which a thread computes slowly, where that takes more than that share of all threads' time."""

SLOW_LINK = 12e9
"""Bytes per second below which a link is slow: a PCIe slot of the fourth generation gives twice as many."""

NEW_PAGES = 2e9
"""Bytes per second at which a core is given memory that it has not used, where that was not measured."""


AGAIN = 1.2
"""How often bytes are read for each one that is wanted, from which on that is said."""

LARGER, GAIN = (4, 16), 0.02
"""How many times as large budgets are that may be advised, and the share of the predicted time that one has to save."""

SLOW = "the function is slow"
"""Name of the cause that the function's own work takes most of the run."""

WAITS = "the function waits"
"""Name of the cause that it sleeps for most of the run."""


@dataclass(frozen=True)
class Cause:
    """Why a run is slow: a `name`, what was seen, and what mends it."""

    name: str
    seen: str
    remedy: str


@dataclass(frozen=True)
class Advice(Printed):
    """Why a run took as long as it did; print it.

    Attributes
    ----------
    seconds : float
    bound_by : str
        The busiest stage.
    busy : float
        Its share of the run.
    roofline : float or None
        Its rate, of the rate that this machine is known to have; None where no bytes went through it.
    causes : tuple of Cause
    what_ifs : tuple of WhatIf
        Changes that would bring something, the best one first.
    passes : int
        Number of runs of which it is the longest.
    """

    seconds: float
    bound_by: str
    busy: float
    roofline: float | None
    causes: tuple[Cause, ...]
    what_ifs: tuple[WhatIf, ...]
    passes: int = 1

    def __str__(self) -> str:
        slow = self.roofline is None or any(
            cause.name in (SLOW, WAITS) for cause in self.causes
        )  # whose rate is no memory's
        reached = "" if slow else f", at {self.roofline:.0%} of the rate that plans count with"
        which = f"the longest of {self.passes} runs: " if self.passes > 1 else ""
        lines = [
            f"{which}{self.seconds:.3g} s, bound by {self.bound_by}, which was busy for {self.busy:.0%} of it{reached}"
        ]
        for cause in self.causes:
            lines += [f"  {cause.name}: {cause.seen}", f"    {cause.remedy}"]
        if not self.causes:
            lines.append("  nothing that is known to slow runs down was seen")
        lines += [f"  with {each.change} about {each.seconds:.3g} s" for each in self.what_ifs]
        return "\n".join(lines)


def advised(run: Seen) -> Advice:
    """Advice on a run."""
    stage = run.bound_by
    known = getattr(run.plan.machine, stage, 0.0)
    busy = run.busy.get(stage, 0.0)
    moved = run.moved.get(stage, 0)
    roofline = moved / busy / known if moved and busy and known else None
    causes = tuple([cause for of in CAUSES if (cause := of(run)) is not None])
    # What processes of others or Python's lock hold up says nothing of other devices.
    elsewhere = _busy_elsewhere(run) is None and _waits_for_the_lock(run) is None
    return Advice(
        run.seconds, stage, busy / max(run.seconds, 1e-9), roofline, causes, tuple(what_ifs(run, elsewhere=elsewhere))
    )


# -- Causes ------------------------------------------------------------------------------------------------------------


def _busy_elsewhere(run: Seen) -> Cause | None:
    if run.others < 0.25 * run.cores * run.seconds:
        return None
    share = run.others / (run.cores * run.seconds)
    return Cause(
        "other processes",
        f"they took {share:.0%} of the {run.cores} cores",
        "wait for them, or give the run cores of its own (taskset, or your scheduler)",
    )


def _waits_for_the_lock(run: Seen) -> Cause | None:
    computing, all_of_it = run.spent.get("compute", 0.0), sum(run.spent.values())
    waited = all_of_it - run.processor
    if run.waits or run.plan.machine.staged or run.plan.lanes < 2 or run.bound_by != "compute" or _busy_elsewhere(run):
        return None
    if computing < 0.5 * all_of_it or waited < 0.3 * all_of_it:
        return None
    return Cause(
        "threads wait for each other",
        f"{run.plan.lanes} threads were in the function for {computing:.3g} s, and computed for {run.processor:.3g} s",
        "the function holds Python's lock, or waits for a file or a server: let NumPy, numba or a C library work on "
        "the whole block, or let dask's workers be processes",
    )


def _waits(run: Seen) -> Cause | None:
    if not run.waits:
        return None
    computing, blocks = run.spent["compute"], len(run.plan.grid)
    return Cause(
        WAITS,
        f"{computing / blocks:.2g} s a block, in which the processor worked for {run.processor / blocks:.2g} s",
        "it waits for a file, a server or a lock, as long for a large block as for a small one: larger blocks "
        "(budget=, chunks=) make fewer calls",
    )


def _slow_function(run: Seen) -> Cause | None:
    if run.waits:
        return None
    computing, moved, blocks = run.spent.get("compute", 0.0), run.moved.get("compute", 0), len(run.plan.grid)
    if run.bound_by != "compute" or computing < MOSTLY * sum(run.spent.values()) or not moved:
        return None
    rate = moved / max(computing, 1e-9)
    if rate >= SLOW_FUNCTION:
        return None
    share = computing / sum(run.spent.values())
    return Cause(
        SLOW,
        f"it takes {share:.0%} of the time of all stages, {computing / blocks:.2g} s a block, and computes "
        f"{format_bytes(rate)}/s, what it reads and gives counted",
        "a quicker function brings most: NumPy in place of loops of Python, numba, float32 for float64, or a GPU",
    )


def _small_chunks(run: Seen) -> Cause | None:
    arrays = [*run.plan.operands, *run.plan.outputs]
    for spec in sorted(arrays, key=_number_of_chunks, reverse=True):
        nbytes = math.prod(spec.chunks or ()) * spec.dtype.itemsize
        seconds = _number_of_chunks(spec) * (run.plan.machine.handling or HANDLING)  # one at a time: in Python
        if spec.chunks is not None and nbytes < SMALL_CHUNK and run.lasts(seconds):
            return Cause(
                "small chunks",
                f"{spec.name} has {_number_of_chunks(spec):,} chunks of {format_bytes(nbytes)}; to find and open them "
                f"takes about {seconds:.2g} s",
                "store it in chunks of 1 MB and more (cf.rechunk), or in shards",
            )
    return None


def _gains_by_budget(run: Seen) -> bool:
    """Whether a larger budget would be quicker by the model, or nobody can tell."""
    if run.replan is None:
        return True
    budgets = {times * run.plan.budget for times in LARGER} | ({run.plan.whole} - {None})
    for budget in budgets:
        with suppress(ChunkflowError):
            if run.replan(budget).estimate.seconds < (1 - GAIN) * run.plan.estimate.seconds:
                return True
    return False


def _number_of_chunks(spec: ArraySpec) -> int:
    return math.prod(-(-n // c) for n, c in zip(spec.shape, spec.chunks or spec.shape, strict=True) if n)


def _read_again(run: Seen) -> Cause | None:
    if run.plan.overlap < AGAIN or run.bound_by not in ("read", "upload", "decode") or not _gains_by_budget(run):
        return None
    return Cause(
        "elements are read again",
        f"blocks are given {run.plan.overlap:.2g} times the arrays' bytes",
        "raise the budget: blocks get larger, and share fewer elements with others",
    )


def _across(run: Seen) -> Cause | None:
    plan, chunked = run.plan, [spec for spec in run.plan.operands if spec.chunks is not None]
    times = max(plan.bytes_in, plan.traffic.decode) / max(plan.bytes_given, 1)
    if not chunked or times < AGAIN or run.bound_by not in ("read", "upload", "decode"):
        return None
    done = "decoded" if plan.traffic.decode > plan.bytes_in else "read"
    spec = max(chunked, key=lambda each: each.nbytes)
    enough = "" if plan.whole is None else f": whole chunks fit one of about {format_bytes(plan.whole)}"
    halos, chunks = "", "chunks that follow the blocks"
    if plan.op.has_halo:
        halos, chunks = ", with halos", "chunks that suit these"
    return Cause(
        "chunks lie across the blocks",
        f"{times:.2g} times the bytes that blocks need are {done}: {spec.name} has chunks of {spec.chunks}, and blocks "
        f"are {plan.block}{halos}",
        f"store it in {chunks} (cf.rechunk)" + f", or raise the budget{enough}" * _gains_by_budget(run),
    )


def _cold(run: Seen) -> Cause | None:
    disk = run.plan.machine.disk or 2e9
    if not run.lasts(run.cold / disk) or run.bound_by != "read":
        return None
    return Cause(
        "the files were not in memory",
        f"{format_bytes(run.cold)} came from the disk: at {run.cold / max(run.busy['read'], 1e-9) / 1e9:.2g} GB/s",
        "a second run may find them in memory; else a faster disk, or compressed chunks, bring more",
    )


def _one_decodes(run: Seen) -> Cause | None:
    coded = [spec for spec in run.plan.operands if spec.chunks is not None and spec.storage.encoded]
    reading = run.busy.get("read", 0.0)
    if not coded or not run.plan.traffic.decode or run.cores < 2 or run.bound_by != "read":
        return None
    if reading < 0.5 * run.seconds:
        return None
    several = run.spent.get("read", 0.0) > 1.3 * reading or run.processor > 1.3 * run.seconds
    if several and not _one_is_planned(run.plan):  # else others wait for the one
        return None
    spec = max(coded, key=lambda each: each.nbytes)
    return Cause(
        "one core decodes",
        f"chunks of {spec.name} are decoded one after the other"
        + ("" if _busy_elsewhere(run) else f", while {_idle(run.cores - 1)}"),
        "smaller chunks let several be decoded at once",
    )


def _one_is_planned(plan: Plan) -> bool:
    """Whether blocks are parts of chunks that one thread decodes, for all that follow one another."""
    machine, seconds = plan.machine, plan.estimate.coding - plan.estimate.finding
    return machine.staged and plan.traffic.decode * machine.threads <= 1.05 * seconds * machine.decode


def _slow_codec(run: Seen) -> Cause | None:
    coded = [spec for spec in run.plan.operands if spec.chunks is not None and spec.storage.encoded]
    spent = run.spent.get("read", 0.0)
    remote = any(spec.storage.remote for spec in coded)  # it is the server that takes long
    if not coded or remote or not run.plan.traffic.decode or run.bound_by != "read" or not spent:
        return None
    rate = run.moved.get("read", 0) / spent
    others = (_busy_elsewhere, _small_chunks, _read_again, _across, _cold, _one_decodes)
    if rate > SLOW_CODEC or any(other(run) for other in others):
        return None
    spec = max(coded, key=lambda each: each.nbytes)
    return Cause(
        "decoding takes long",
        f"each thread gets {format_bytes(rate)}/s out of the chunks of {spec.name}",
        "store it unencoded, or with a quicker codec: lz4 is the quickest of the usual ones, and zstd the next; for "
        "gzip and zlib the extra fast brings a quicker library",
    )


def _idle(cores: int) -> str:
    return "the other idles" if cores == 1 else f"{cores} others idle"


def _no_overlap(run: Seen) -> Cause | None:
    plan = run.plan
    single = plan.depth == 1 and plan.machine.staged
    besides = len(plan.grid) * (plan.machine.overhead / max(plan.lanes, 1) + (WAITING if plan.lanes > 1 else 0.0))
    if plan.memory.total < plan.budget / 2:  # it is the plan that takes no more
        return None
    if single:
        seen = "there is room for one block: nothing is read while it is computed"
    elif plan.lanes < min(plan.machine.lanes, len(plan.grid)):
        taken = format_bytes(plan.memory.total)
        seen = (
            f"{plan.lanes} of {plan.machine.lanes} cores compute: the plan takes {taken}, and there is no room for more"
        )
    elif run.lasts(besides):
        seen = f"there are {len(plan.grid):,} blocks, which take about {besides:.2g} s besides their bytes"
    else:
        return None
    if not _gains_by_budget(run):
        return None
    return Cause("a small budget", f"within {format_bytes(plan.budget)} {seen}", "raise the budget")


def _slow_link(run: Seen) -> Cause | None:
    stage = run.bound_by
    if not run.plan.machine.staged or stage not in ("upload", "download"):
        return None
    moved = run.plan.traffic.upload if stage == "upload" else run.plan.traffic.download
    rate = moved / max(run.busy[stage], 1e-9)
    if rate >= SLOW_LINK:
        return None
    return Cause(
        "a slow link",
        f"{format_bytes(moved)} crossed it at {rate / 1e9:.2g} GB/s",
        "see that the card has all lanes of its slot (chunkflow doctor); computing more for each byte costs nothing",
    )


def _host_decodes(run: Seen) -> Cause | None:
    plan, known = run.plan, {decoding.codec for decoding in run.plan.machine.decodings}
    if not plan.machine.staged or run.bound_by != "read":
        return None
    for number, spec in enumerate(plan.operands):
        codec = spec.storage.codec
        if not codec or number in plan.batches:
            continue
        remedy = "chunks of 64 kB to 4 MB suit the device's decoder" if codec in known else (
            'the library for it is missing: pip install "chunkflow-stream[nvcomp]"'
        )  # fmt: skip
        return Cause(
            "the host decodes", f"chunks of {spec.name} ({codec}) are decoded by the host, not the GPU", remedy
        )
    return None


def _new_pages(run: Seen) -> Cause | None:
    made = sum(
        spec.nbytes for spec in run.plan.outputs if spec.storage.in_memory and spec.name.startswith("a new array")
    )
    machine = run.plan.machine
    rate = NEW_PAGES * cores() if machine.staged else (machine.fresh or NEW_PAGES) * max(run.plan.lanes, 1)
    seconds = made / rate
    if not made or not run.lasts(seconds):
        return None
    return Cause(
        "the result's memory is new",
        f"the system made pages for {format_bytes(made)}, which takes about {seconds:.2g} s",
        "give out= an array that is used again, or a file",
    )


CAUSES: tuple[Callable[[Seen], Cause | None], ...] = (
    _waits,
    _slow_function,
    _waits_for_the_lock,
    _small_chunks,
    _read_again,
    _across,
    _cold,
    _one_decodes,
    _slow_codec,
    _no_overlap,
    _slow_link,
    _host_decodes,
    _new_pages,
    _busy_elsewhere,
)
"""What is looked for. Each gives a cause where it was seen."""
