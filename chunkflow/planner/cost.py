"""What a plan is expected to cost: bytes over rates. Pure; the rates are the device's.

The model is a pipeline (read, upload, compute, download, write). With slots for full overlap a run
takes as long as its busiest stage, plus the time in which the first blocks fill the pipeline and the
last ones leave it; with fewer slots, as long as all stages one after another, divided by the slots.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from chunkflow.core.machine import Machine

FETCHERS = 32
"""Requests for chunks that are on their way at once to what is behind a network."""


PANEL = 300e-6
"""Seconds that a device loses at each block of a product, whose last tiles leave parts of it idle. What the host has to
do for a block is done ahead."""


HALO = 2
"""Times as long as it takes to hand out a block of a device of its own, if it has a halo: what it shares with others is
copied, and its edges are filled, by calls of their own (seen: 0.43 ms of 0.23)."""


CROWD = 3
"""Times as long as one thread takes to find a chunk, if a dozen do nothing else (seen: 60 us of 20)."""


@dataclass(frozen=True)
class Traffic:
    """Bytes that a run moves through each stage, and how many of them are coded, or go into a new file, or into many.

    Of what is `read` blocks are `given` their elements, halos and all: of chunks more is read where blocks cut them.
    What the block before has, too, is `carried` to the next one. With `in_place` blocks are read to where the results
    belong, so that one stage does both. `first` are the bytes that are loaded before anything
    can be computed, `last` those that are stored when everything is; None for one block's share.
    """

    read: int
    upload: int
    compute: int
    download: int
    write: int
    decode: int = 0
    encode: int = 0
    first: int | None = None
    last: int | None = None
    created: int = 0
    scattered: int = 0
    separate: int = 0
    files: int = 0
    given: int = 0
    carried: int = 0
    in_place: bool = False


@dataclass(frozen=True)
class Estimate:
    """Predicted seconds of a run, in all and by stage; and in all if as many slots as ever helped hid each stage.

    `handed` are those of the first that blocks cost besides, however small they are. `asking` are those of the first in
    which sources are asked for elements and nothing comes yet, as if nothing hid them; without waits for servers.
    `coding` are those in which chunks are found and decoded, of the stage that reads, and `finding` those of them in
    which they are found.
    """

    seconds: float
    stages: dict[str, float]
    hidden: float
    handed: float = 0.0
    coding: float = 0.0
    finding: float = 0.0
    asking: float = 0.0

    @property
    def bound_by(self) -> str:
        """The busiest stage."""
        return max(self.stages, key=lambda s: self.stages[s])


def estimate(
    machine: Machine,
    traffic: Traffic,
    blocks: int,
    depth: int,
    spilled: int = 0,
    work: int = 0,
    decoders: float = 1,
    encoders: int = 1,
    waits: float = 0.0,
    handling: float = 0.0,
    unpacking: float = 0.0,
    rows: int | None = None,
    readers: float = 1.0,
    *,
    halo: bool = False,
    chunks: int = 0,
) -> Estimate:
    """Predict a run of `blocks` blocks with `depth` slots.

    `work` are the multiply-adds of a product; `spilled` of the bytes computed are not in the cache. Each lane has its
    chunks decoded and encoded by so many threads; where staged, that is the share of all threads, and `readers` is that
    of the threads for loads. `waits` are seconds of waiting for servers, `handling` are those that chunks take beside
    their bytes, and `unpacking` those in which the device decodes. Blocks of one of the `rows` are computed one after
    the other; without them each by itself. `halo` says whether blocks have one,
    and `chunks` are those that are read.

    >>> m = Machine(read=1, upload=1, compute=1, download=1, write=1, overhead=0)
    >>> t = Traffic(8, 8, 8, 8, 8)
    >>> [estimate(m, t, 8, depth).seconds for depth in (1, 2, 3)]
    [40.0, 20.0, 13.333333333333334]
    """
    rows = max(blocks if rows is None else rows, 1)
    lanes = min(machine.lanes, depth, rows)
    decoding = traffic.decode / (machine.decode * decoders)
    if machine.staged and chunks:
        decoding *= ragged(chunks, max(round(machine.threads * decoders), 1))
    files = traffic.files if machine.load else 0
    reading = (traffic.read - files) / (machine.read * readers) + files / ((machine.load or 1) * readers)
    if not machine.staged:
        reading += traffic.carried / machine.read
    writing = written(machine, traffic, lanes)
    if traffic.in_place:
        reading, writing = max(reading, writing), 0.0
    # Python finds and opens chunks. Lanes wait for one another there; so do threads, if they have little else to do.
    # Threads read while another one has Python's lock, but the more of both there is, the less they wait for it.
    besides = decoding + reading
    crowd = min(max(handling / max(besides, 1e-12), 1.0), CROWD) if machine.staged else lanes
    finding = math.hypot(besides, handling * crowd) - besides if machine.staged else handling * crowd
    coding = decoding + finding
    stages = {
        "read": waits + reading + coding,
        "compute": (traffic.compute + spilled * (1 / machine.spill - 1)) / machine.compute,
        "write": writing + traffic.encode / (machine.encode * encoders),
    }
    if machine.staged:
        stages["upload"] = traffic.upload / machine.upload
        stages["download"] = traffic.download / machine.download
        if unpacking:
            stages["decode"] = unpacking
    # The lanes share what multiplies: each is as slow as if it had its part of it alone.
    stages["compute"] += work / machine.products * (1 if machine.staged else lanes)
    total = sum(stages.values())
    if not machine.staged:
        # What comes over a network is fetched ahead if there are slots for it, and hides the function's time: nobody
        # knows how much that is, so without them it is taken to be as much again.
        total = max(waits, total - waits) if depth > lanes else total + waits
        # A lane takes its block through every stage itself, so lanes overlap and stages do not; some idle in the
        # last round. One thread hands the blocks out; a lane that has none waiting loses as much time again.
        handed = blocks * machine.overhead * (1 if depth >= 2 * machine.lanes else 2)
        seconds = total / lanes * ragged(rows, lanes) + handed
        return Estimate(seconds, stages, seconds, handed, coding, finding, finding / lanes)
    shares = dict.fromkeys(stages, 1 / max(blocks, 1))
    if traffic.first is not None and traffic.upload:
        shares["read"] = shares["upload"] = traffic.first / traffic.upload
    if traffic.last is not None and traffic.download:
        shares["download"] = shares["write"] = traffic.last / traffic.download
    bound = max(stages, key=lambda s: stages[s])
    overlapped = stages[bound] + sum(stages[s] * min(share, 1.0) for s, share in shares.items() if s != bound)
    # A slot keeps its block through all stages, but those of a product give no results before the last ones. What is
    # decoded on the device has slots besides.
    slots = max(depth, 2) if unpacking else depth
    hidden = min(total, overlapped)
    seconds = hidden if work and slots > 1 else max(hidden, total / slots)
    handed = blocks * (PANEL if work else machine.overhead) * (HALO if halo else 1)
    return Estimate(seconds + handed, stages, hidden + handed, handed, coding, finding, finding)


def written(machine: Machine, traffic: Traffic, lanes: int) -> float:
    """Seconds in which results are written, once they are encoded."""
    seconds = traffic.write / machine.write
    rates = (machine.create, machine.scatter or machine.create, machine.separate)
    for nbytes, rate in zip((traffic.created, traffic.scattered, traffic.separate), rates, strict=True):
        if rate:  # of all lanes together, which wait for one another
            seconds += nbytes * ((1 if machine.staged else lanes) / rate - 1 / machine.write)
    return seconds


def ragged(blocks: int, lanes: int) -> float:
    """How much longer lanes take for blocks, or threads for chunks, since some idle in the last round.

    >>> ragged(4, 2), ragged(5, 4)
    (1.0, 1.6)
    """
    return -(-blocks // lanes) * lanes / max(blocks, 1)
