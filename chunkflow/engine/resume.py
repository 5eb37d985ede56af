"""Runs that a later call goes on with: what the call is, how far it has come, and the values that blocks add to."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chunkflow.core import grid
from chunkflow.core.grid import Shape
from chunkflow.core.nest import LoopNest
from chunkflow.core.spec import ArraySpec
from chunkflow.devices.protocol import Device
from chunkflow.engine.transfer import Accumulator
from chunkflow.errors import ReadError, ResumeError, UnsupportedError, WriteError
from chunkflow.kernels.dependencies import version_of
from chunkflow.kernels.digest import changed, digest, is_outline, outline, without_functions
from chunkflow.kernels.protocol import Kernel
from chunkflow.kernels.subnest import on_host
from chunkflow.planner.plan import Plan
from chunkflow.stores import checksums
from chunkflow.stores.failures import translated
from chunkflow.stores.footprint import StridedFootprint
from chunkflow.stores.identity import Guard, Identity, go_on
from chunkflow.stores.memory import ArraySource, digest_of
from chunkflow.stores.protocol import Sink, Source, Target, gaps_of, guards_of, leaves
from chunkflow.stores.publication import settle
from chunkflow.stores.publication.claim import claim_path
from chunkflow.stores.publication.move import inode_of

EVERY = 20.0
"""Seconds between two notes of the values that blocks are combined to, at least."""

SHARE = 200
"""So many times longer than a note takes is the time between two: less than a hundredth goes to them."""

Accumulators = dict[tuple[int, Shape], dict[int, Accumulator]]
"""For each part of the kernel and block of its results, the accumulators by chain."""

BOOT, _HIDDEN, _ARRAY = "the system's start", "what is hidden", "array "

LIMIT = "what its plan had of the budget"
"""A call that goes on has the same plan, in a budget that has room for it."""


def check_resume(resume: bool, targets: Sequence[Target]) -> None:
    """Check that a run that writes to these targets can be gone on with, if that is asked for.

    Raises
    ------
    UnsupportedError
        Not all targets are new arrays under paths.
    """
    if resume and (not targets or not all(hasattr(target, "claim") for target in targets)):
        found = next((target.name for target in targets if not hasattr(target, "claim")), "no output")
        raise UnsupportedError(
            f"resume={resume!r} with {found}: only a run that writes to new paths can be resumed; give out= the path "
            "of a .npy file, of a zarr array or of an HDF5 dataset, or the URL of a zarr array"
        )


def limit_of_left(resume: bool, targets: Sequence[Target], limit: int) -> int:
    """What a plan may take: as much as that of the run that is left, whose blocks are kept, if it is allowed."""
    if not resume or not targets or not hasattr(targets[0], "claimed"):  # at URLs claims are read once they are taken
        return limit
    return min(limit, int((_left(targets[0]) or {}).get(LIMIT, limit)))


_ARGUMENTS = "its arguments"
_MOST_NAMED = 5
"""Most parts of a function that a message names."""


def call_of(
    kernel: Kernel, nest: LoopNest, sources: Sequence[Source], plan: Plan, device: Device, name: str | None
) -> dict[str, str]:
    """What a call is: equal for calls that give the same result to the bit, block by block.

    `name` stands for the function, if there is one.
    """
    if name is None:
        function = {"the function": outline((kernel, nest))}
    else:
        function = {"the function": name, _ARGUMENTS: outline(without_functions((kernel, nest)))}
    return {
        **versions(),
        "the device": device.model,
        **function,
        **{f"array {i} ({source.spec.name})": identity(source) for i, source in enumerate(sources)},
        **outputs_of(plan),
        BOOT: boot(),
    }


def versions() -> dict[str, str]:
    """What the bytes of a result may depend on beside arrays and function."""
    found = f"chunkflow {version_of('chunkflow')}, NumPy {np.__version__}, Python {sys.version_info[:2]}"
    return {"the versions": found, "checksum=": str(checksums.said())}


def outputs_of(plan: Plan) -> dict[str, str]:
    """What a plan makes, and how."""
    blocks = (plan.block, plan.tile, plan.walk, tuple(plan.turns), plan.chains)
    return {
        **{f"output {i} ({spec.name})": _described(spec) for i, spec in enumerate(plan.outputs)},
        "the blocks (budget=, chunks=, the machine's rates)": str(blocks),
    }


def said_of(targets: Sequence[Target]) -> dict[str, str]:
    """What is said of new arrays besides, by `chunkflow.NewArray`."""
    said = [getattr(target, "said", None) for target in targets]
    return {f"what is said of output {i}": str(output) for i, output in enumerate(said) if output and output.said}


def _described(spec: ArraySpec) -> str:
    return f"{spec.shape}, {spec.dtype.str}, chunks {spec.chunks}, order {spec.order}"


def identity(source: Source) -> str:
    """What is known of an array's elements without reading files, as JSON: of arrays in memory a digest.

    Raises
    ------
    UnsupportedError
        Nothing is known of them: those of a server that lists no objects with their ETags or times, or of an object
        that is neither in memory nor in local files.
    """
    spec = source.spec
    view = source.view(grid.whole(spec.shape)) if spec.storage.in_memory else None
    parts = [_known_of(leaf) for leaf in leaves([source])] if view is None else [digest_of(view)]
    missing = "error" if any(gaps.refuses for _, gaps in gaps_of([source])) else "filled"
    said = {"array": f"{spec.shape}, {spec.dtype.str}", "parts": parts, "missing": missing}
    return json.dumps(said | ({} if view is not None else {"how": digest(_how(source))}))


def _how(source: Any) -> Any:
    """How a source is made of the parts that are known of it."""
    own, parts = getattr(source, "how", None), getattr(source, "parts", None)
    if parts is not None:
        return type(source).__qualname__, own, [_how(part) for part in parts]
    known = source.spec.storage.in_memory or isinstance(source, ArraySource)  # by its elements, wherever they lie
    place = None if known else source.footprint
    return own, place.layout if isinstance(place, StridedFootprint) else None  # a part of a mapped file, perhaps


def _known_of(leaf: Any) -> Any:
    """What is known of a source that is made of no others."""
    guards, spec = guards_of([leaf]), leaf.spec
    if guards and not spec.storage.remote:
        return guards[0].identity.without("changed").to_json()  # links and permissions may change
    if hasattr(leaf, "digest") and (digest := leaf.digest()) is not None:
        return digest
    view = leaf.view(grid.whole(spec.shape)) if spec.storage.in_memory else None
    if view is not None:
        return digest_of(view)
    raise UnsupportedError(
        f"resume= cannot tell whether {spec.name} has the same elements at a later call: use arrays in memory, in "
        "local files, or on servers that list objects with their ETags or times"
    )


def identities(call: Mapping[str, str]) -> list[Identity]:
    """Of the arrays of a call those that are known by their files or objects."""
    said = [json.loads(call[what])["parts"] for what in call if what.startswith(_ARRAY)]
    return [Identity.from_json(part) for parts in said for part in parts if isinstance(part, dict)]


def _array_difference(then: str, now: str) -> str:
    """How an array of a call differs from that of an earlier one, in words; empty if it does not."""
    was, found = json.loads(then), json.loads(now)
    if was["array"] != found["array"] or len(was["parts"]) != len(found["parts"]):
        return f"{was['array']} then, {found['array']} now"
    differ = [f"missing chunks are {was['missing']} then, {found['missing']} now"] * (
        was["missing"] != found["missing"]
    )
    differ += ["its elements are picked or moved in another way"] * (was.get("how") != found.get("how"))
    for old, new in zip(was["parts"], found["parts"], strict=True):
        if isinstance(old, dict) and isinstance(new, dict):
            differ.append(Identity.from_json(old).difference(Identity.from_json(new)))
        elif old != new:
            digests = all(isinstance(part, str) and len(part) == 64 for part in (old, new))
            differ.append("its elements are others" if digests else f"{old} then, {new} now")
    return "; ".join(filter(None, differ))


def boot() -> str:
    """The system's present start: what was not on the disk when it ended is lost."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
    return ""


def left_by(targets: Sequence[Any]) -> dict[str, dict[str, str]]:
    """What the call was that has published outputs, and was killed before it had cleaned up, by the outputs' names."""
    calls = list[dict[str, str]]()
    for target in targets:
        if (call := _left(target)) is not None:
            calls.append(call)
    return {target.name: call for call in calls for target in targets if _has_made(call, target)}


def _left(target: Any) -> dict[str, str] | None:
    if hasattr(target, "left"):
        found: dict[str, str] | None = target.left()
        return found
    path = claim_path(*target.claimed)
    if os.path.lexists(path) and (call := settle.call_of(path)) is not None:
        return call
    if os.path.lexists(path):
        settle.settle(path)  # nothing that a later call could know
    return None


def _has_made(call: Mapping[str, str], target: Any) -> bool:
    if hasattr(target, "is_made"):  # which tells when the array is known
        return _left(target) is not None and bool(target.is_there)
    return str(inode_of(target.name)) in call[_HIDDEN].split()


def published(targets: Sequence[Any], plan: Plan, call: Mapping[str, str]) -> tuple[Any, ...] | None:
    """The outputs, if an earlier run of the same call has published them; None if it has not.

    Raises
    ------
    ResumeError
        A run of another call has.
    """
    earlier = [target.earlier for target in targets if hasattr(target, "earlier")]
    if len(earlier) < len(targets):
        for target in targets:  # at URLs one output is published after the other, and stays when the system ends
            if hasattr(target, "earlier") and hasattr(target, "left"):
                known = {**_without_hidden(target.earlier), BOOT: call[BOOT]}
                if not differences(known, call):
                    target.own()
        return None
    known = _without_hidden(earlier[0])
    if all(hasattr(target, "left") for target in targets):  # what is at a URL stays
        known[BOOT] = call[BOOT]
    if known.get(BOOT) != call[BOOT] or not all(
        target.is_made(spec) for target, spec in zip(targets, plan.outputs, strict=True) if hasattr(target, "is_made")
    ):
        return None
    if targets[0].overwrite and differences(known, call):
        return None
    compare(known, call, targets[0].name)
    with translated(ReadError, f"cannot open {targets[0].name}", targets[0].name):
        return tuple(target.opened(spec) for target, spec in zip(targets, plan.outputs, strict=True))


def _without_hidden(call: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in call.items() if key != _HIDDEN}


def tidy(targets: Sequence[Any]) -> None:
    """Remove what runs have left that had published these outputs. What cannot be removed is left to later runs."""
    for target in targets:
        with suppress(OSError):
            target.tidy() if hasattr(target, "tidy") else settle.settle(claim_path(*target.claimed))


@dataclass
class Resumption:
    """A run's place among the runs of its call.

    Attributes
    ----------
    sinks : list of Sink
        Of the outputs, new ones or those that are left.
    start : int
        Steps that are finished already.
    """

    sinks: list[Sink]
    start: int
    _journal: Any
    _plan: Plan
    _names: Any = None
    _arrays: list[np.ndarray] = field(default_factory=list)
    has_left: bool = False
    """Whether it has ended early, and left something to a later run."""
    _done: int = 0
    _next: float = 0.0

    @classmethod
    def open(
        cls, targets: Sequence[Target], plan: Plan, call: Mapping[str, str], guards: Sequence[Guard] = ()
    ) -> Resumption:
        """Take up what an earlier run of the same call left, or begin.

        Chunks of what the `guards` are of are refused then if they were changed since that one began.

        Raises
        ------
        ResumeError
            What is left is of another call.
        """
        claims = _claimed(targets)
        try:
            known = _known(claims, call, guards)
        except BaseException:
            _release(claims)
            raise
        if not known and any(claim.is_left for claim in claims):
            for claim in claims:
                claim.end()
            claims = _claimed(targets)
        made = cls([], 0, claims[0].journal, plan)
        try:
            for target, spec, claim in zip(targets, plan.outputs, claims, strict=True):
                made.sinks.append(target.open(spec, claim))  # type: ignore[call-arg]
            with translated(WriteError, f"cannot note how far {claims[0].called} has come", claims[0].called):
                if known:
                    for claim in claims[1:]:
                        if claim.lasts:  # it says whose it is now
                            claim.go_on()
                    made.start, made._names, made._arrays = made._journal.go_on()
                else:
                    said = {**call, _HIDDEN: _inodes(claims)}
                    for claim in claims[1:]:  # by it the same call knows an output that is published
                        claim.journal.note(said)
                    made._journal.begin(said)
        except BaseException:
            made._done = int(known)
            made.stop()
            _release(claims)  # of outputs that were not opened
            raise
        made._done = made.start
        made._next = time.monotonic() + EVERY
        return made

    @property
    def folds(self) -> bool:
        """Whether steps add to values that later ones finish: then they are finished where those are kept."""
        return self._plan.op.scan is not None or any(part.folded for part in self._plan.op.parts)

    @property
    def said(self) -> str:
        """How many blocks are finished, in words."""
        return f"{self._done:,} of {len(self._plan.grid):,} blocks"

    def landed(self, step: int) -> None:
        """Note that a step and all before it are finished."""
        if not self.folds:
            self._done = step + 1
            self._journal.finished(self._done)

    def is_due(self, step: int) -> bool:
        """Whether the values between steps are to be kept before a step."""
        return self.folds and step > self.start and time.monotonic() >= self._next

    def keep(self, step: int, accumulators: Accumulators) -> None:
        """Keep the values between steps. Nothing is being computed."""
        began = time.monotonic()
        arrays: list[np.ndarray] = []
        names = [
            [part, list(key), chain, accumulator.lane, packed(on_host(accumulator.value), arrays)]
            for (part, key), chains in accumulators.items()
            for chain, accumulator in chains.items()
        ]
        name = self.sinks[0].spec.name
        with translated(WriteError, f"cannot note how far {name} has come", name):
            self._journal.keep(step, arrays, names)
        self._done = step
        now = time.monotonic()
        self._next = now + max(EVERY, SHARE * (now - began))

    def complete(self) -> None:
        """All elements are written, and the outputs wait for their names: a later run finds nothing to compute."""
        self.keep(len(self._plan.grid), {})

    def accumulators(self, device: Device) -> Accumulators:
        """The values between steps that were kept, in the memory of the device."""
        found: Accumulators = {}
        for part, key, chain, lane, said in self._names or ():
            accumulator = Accumulator()
            accumulator.value, accumulator.lane = unpacked(said, self._arrays, device), lane
            found.setdefault((part, tuple(key)), {})[chain] = accumulator
        self._arrays = []
        return found

    def end(self) -> None:
        """The outputs have their names."""
        self._journal.close()
        end(self.sinks)

    def stop(self) -> None:
        """Leave what is finished to a later run; remove all if that is nothing."""
        self._journal.close()
        self.has_left = self._done > 0
        for sink in self.sinks:
            if self.has_left:
                sink.leave()  # type: ignore[attr-defined]
            else:
                sink.abort()


def end(sinks: Sequence[Sink]) -> None:
    """Let sinks end that have kept blocks elsewhere, or have said whose they are. Their outputs have their names."""
    for sink in sinks:
        if hasattr(sink, "end"):
            sink.end()


def _claimed(targets: Sequence[Target]) -> list[Any]:
    """Claims on all outputs, new ones or those that are left."""
    claims: list[Any] = []
    try:
        for target in targets:
            claims.append(target.claim())  # type: ignore[attr-defined]  # noqa: PERF401 - those that are had count
    except BaseException:
        _release(claims)
        raise
    return claims


def _release(claims: Sequence[Any]) -> None:
    """Leave what was left, and end what is new."""
    for claim in claims:
        claim.leave() if claim.is_left else claim.end()


def _known(claims: Sequence[Any], call: Mapping[str, str], guards: Sequence[Guard]) -> bool:
    """Whether what is left can be gone on with."""
    known = claims[0].journal.call if all(claim.is_left for claim in claims) else None
    if known is None or known.pop(_HIDDEN, "") != _inodes(claims):  # an exchange of names may have been the last step
        return False
    if all(claim.lasts for claim in claims):
        known[BOOT] = call[BOOT]
    if known.get(BOOT) != call[BOOT]:  # not all may have come to the disk
        return False
    compare(known, call, claims[0].called)
    earlier = identities(known)
    for array in earlier:
        array.check_chunks()  # also those that only finished blocks were computed of
    go_on(guards, earlier)
    return True


def _inodes(claims: Sequence[Any]) -> str:
    """What lies under the hidden names."""
    return " ".join([claim.token for claim in claims])


def compare(known: Mapping[str, str], call: Mapping[str, str], output: str) -> None:
    """Refuse to go on with another call."""
    if said := differences(known, call):
        raise ResumeError(
            f"resume=True: what is left of {output} is of another call, which differs in {said}. Make the same "
            "call, or remove what is left by `chunkflow clean`"
        )


def differences(known: Mapping[str, str], call: Mapping[str, str]) -> str:
    """How two calls differ, in words; empty if they do not."""
    return "; ".join(filter(None, (_difference(what, known, call) for what in {**known, **call} if what != LIMIT)))


def _difference(what: str, known: Mapping[str, str], call: Mapping[str, str]) -> str:
    """How two calls differ in one respect, in words; empty if they do not."""
    then, now = known.get(what, "none"), call.get(what, "none")
    if not what.startswith(_ARRAY) or "none" in (then, now):
        if then == now or (what == _ARGUMENTS and "none" in (then, now)):  # a function without a name has none apart
            return ""
        if is_outline(then) and is_outline(now):
            return _outline_difference(what, then, now)
        return "{}: {} then, {} now".format(what, *("one without name=" if is_outline(v) else v for v in (then, now)))
    found = _array_difference(then, now)
    return f"{what}: {found}" if found else ""


def _outline_difference(what: str, then: str, now: str) -> str:
    """How a function or its arguments differ from those of an earlier call."""
    names = changed(then, now)
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    which = f" ({'; '.join(names[:_MOST_NAMED])}{more})" if names else ""
    return (
        f"{what}{which}; where none was changed, a value is another in each process: name= stands for the function, "
        "from the first call on"
    )


def packed(value: Any, arrays: list[np.ndarray]) -> Any:
    """A value between steps as JSON, with its arrays apart."""
    if isinstance(value, np.ndarray | np.generic):
        arrays.append(np.asarray(value))
        return {"array" if isinstance(value, np.ndarray) else "scalar": len(arrays) - 1}
    if isinstance(value, tuple | list):
        return {type(value).__name__: [packed(part, arrays) for part in value]}
    json.dumps(value)  # None or a number
    return value


def unpacked(said: Any, arrays: Sequence[np.ndarray], device: Device | None = None) -> Any:
    """The value of which `packed` has made JSON and arrays, in the memory of a device; by default the host's."""
    if not isinstance(said, dict):
        return said
    ((kind, content),) = said.items()
    if kind == "scalar":
        return arrays[content][()]
    if kind == "array":
        array = arrays[content]
        return array if device is None or device.xp is np else device.to_device(array)
    parts = [unpacked(part, arrays, device) for part in content]
    return tuple(parts) if kind == "tuple" else parts
