"""Calls of several passes that a later call goes on with: which passes are done, and the arrays between them.

Such a call has a hidden directory beside its output. Its passes are numbered in the order in which they begin, which is
the same in each call: what a pass gives decides on the next one. The results of a pass are written there, those too
that it would give in memory, and are published together with a mark that says that it is done. A later call gets the
results of a pass that is marked, and does not make it again. Within a pass it goes on as `chunkflow.engine.resume`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from chunkflow.core.grid import Region
from chunkflow.core.spec import ArraySpec
from chunkflow.devices.protocol import Device
from chunkflow.engine import resume
from chunkflow.engine.budget import Budget, bytes_left
from chunkflow.engine.dry_run import is_dry
from chunkflow.engine.resume import BOOT, Resumption, compare, identities, outputs_of, said_of, versions
from chunkflow.errors import ChunkflowError, ReadError, ResumeError, WriteError
from chunkflow.planner.plan import Plan
from chunkflow.stores import Between, Published, identity, is_new, open_target
from chunkflow.stores.failures import translated
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.identity import Identity
from chunkflow.stores.paths import passes_place
from chunkflow.stores.protocol import Sink, Target
from chunkflow.stores.publication import claim as claims
from chunkflow.stores.publication import settle
from chunkflow.stores.publication.claim import Claim, claim_path
from chunkflow.stores.publication.journal import Journal
from chunkflow.stores.publication.mark import Mark
from chunkflow.stores.publication.move import remove
from chunkflow.stores.publication.settle import finish
from chunkflow.system.context import run_variable

_DONE, _BETWEEN, _READ = ".done", "between-", ".read"
_CALL = "the call"
_LIMIT, _BUDGET = "limit", "budget="
"""What a call had of its budget, in which a later one makes the same passes; and the budget that it was given."""


@dataclass
class Passes:
    """The passes of one call.

    Attributes
    ----------
    folder : str
        Path of the directory of what lies between them.
    limit : str
        Bytes of the budget for all of them, as text.
    """

    folder: str
    limit: str
    _claim: Claim
    _names: frozenset[str]
    is_begun: bool
    read: Sequence[Identity]
    """What the arrays were when the first of these calls opened them."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _places: Iterator[int] = field(default_factory=itertools.count)

    @classmethod
    def open(
        cls, targets: Sequence[Any], call: Mapping[str, str], limit: Callable[[], int], *, fixed: bool = True
    ) -> Passes:
        """Take up what an earlier call left, or begin; in another budget, too, unless it is `fixed`.

        Raises
        ------
        ResumeError
            What is left is of another call.
        OutputBusyError
            A run that is alive makes the same output.
        WriteError
            The directory cannot be made.
        """
        output = targets[0].name
        with translated(WriteError, f"cannot keep intermediate results of {output}", output):
            claim = _claim(output)
            try:
                if not claim.is_left:
                    for target in targets:
                        if hasattr(target, "refuse"):  # a run of one pass has published it
                            target.refuse()
                        _refuse_left(target, claim.path)
                known = Journal(claim.state).call if claim.is_left else None
                if known is not None and known.get(BOOT) != call[BOOT]:
                    known = None  # not all may have come to the disk
                if known is not None:
                    roomy = not fixed and limit() >= int(known[_LIMIT])  # the passes fit this budget, too
                    apart = {_LIMIT, _BUDGET} if roomy else {_LIMIT}
                    then, now = ({k: v for k, v in of.items() if k not in apart} for of in (known, call))
                    compare(then, now, output)
                elif claim.is_left:
                    claim.end()
                    claim = _claim(output)
                if known is None:
                    known = {**call, _LIMIT: str(limit())}
                    os.mkdir(claim.partial, 0o700)
                    journal = Journal(claim.state)
                    journal.begin(known)
                    journal.close()
                read = identities(known)
                for array in read if claim.is_left else ():
                    array.check_chunks()
            except BaseException:
                claim.leave() if claim.is_left else claim.end()
                raise
        names = frozenset(target.name for target in targets)
        return cls(claim.partial, known[_LIMIT], claim, names, claim.is_left, read)

    @staticmethod
    def marked(folder: str) -> set[str]:
        """Names of the outputs that passes have published already."""
        marks = (entry.path for entry in os.scandir(folder) if entry.name.endswith(_DONE))
        return {name for mark in marks for name in Mark.said_by(mark)}

    def call(self, plan: Plan, device: Device) -> dict[str, str]:
        """What one of the passes is, beside what the whole call is."""
        return {
            _CALL: os.path.basename(self.folder),
            "the device": device.model,
            **outputs_of(plan),
            BOOT: resume.boot(),
        }

    def published(self, targets: Sequence[Any]) -> set[str]:
        """Names of the call's outputs that have been published already.

        At URLs they are published one by one before their pass is marked: a call that ended in between makes it again.
        """
        at_urls = [target for target in targets if hasattr(target, "left")]
        calls = resume.left_by(at_urls)
        own = {name for name, call in calls.items() if call.get(_CALL) == os.path.basename(self.folder)}
        any_spec = ArraySpec("", (), np.dtype("u1"))  # there the metadata tell
        return self.marked(self.folder) | {t.name for t in at_urls if t.name in own and t.is_made(any_spec)}

    def begin(self, outputs: Sequence[ArraySpec], targets: Sequence[Target]) -> NumberedPass | None:
        """The next pass. None if it writes to what a later call finds changed, so that it makes the pass again."""
        known = [self._knows(target, spec) for target, spec in zip(targets, outputs, strict=True)]
        if not all(known):
            return None
        number = next(self._numbers)
        path = os.path.join(self.folder, f"{number}{_DONE}")
        mark = Mark(path, self._claim.name, [target.name for target in targets if target.name in self._names])
        with translated(WriteError, f"cannot settle what a dead run left of {self._claim.name}", path, foreign=OSError):
            finish(path)  # also a mark that was not agreed on: it may name one that is made anew as what decides
        in_memory = [not hasattr(target, "claim") for target in targets]
        places = [os.path.join(self.folder, f"{number}.{i}.npy") for i in range(len(targets))]
        if os.path.lexists(path):
            found = [
                _loaded(place) if memory else self._found(target, spec)
                for target, spec, place, memory in zip(targets, outputs, places, in_memory, strict=True)
            ]
            # What tells of it at URLs is left; others end with the mark's claim.
            resume.tidy([target for target in targets if hasattr(target, "is_made")])
            return NumberedPass(self, [], in_memory, mark, tuple(found))
        chosen = [
            open_target(Between(place, None)) if memory else target
            for target, place, memory in zip(targets, places, in_memory, strict=True)
        ]
        return NumberedPass(self, chosen, in_memory, mark)

    def _knows(self, target: Target, spec: ArraySpec) -> bool:
        if hasattr(target, "claim"):
            return target.name in self._names or os.path.dirname(target.name) == self.folder
        return target.footprint is None and spec.storage.in_memory

    def _found(self, target: Any, spec: ArraySpec) -> Any:
        """What a pass that is done has written."""
        if os.path.dirname(target.name) == self.folder and not os.path.lexists(target.name):
            return _GoneArray(spec)
        if not _is_there(target):
            raise ResumeError(
                f"resume=True: {target.name} was finished by an earlier run of this call, and has been removed since: "
                "remove what is left of the call by `chunkflow clean`, and run again"
            )
        return target.opened(spec)

    def place(self, spec: ArraySpec) -> Between:
        """A place for an array between two passes: ``out=`` of the pass that makes it."""
        path = os.path.join(self.folder, f"{_BETWEEN}{'dry' if is_dry() else next(self._places)}")
        return Between(f"{path}.npy" if spec.chunks is None else f"{path}.zarr", spec.chunks)

    @staticmethod
    def has_read(place: Between) -> None:
        """Remove an array between two passes, which both are done."""
        with suppress(OSError):
            if os.path.lexists(place.path):
                os.rename(place.path, f"{place.path}{_READ}")  # a part of an array is none
            remove(f"{place.path}{_READ}")

    def end(self) -> None:
        """Remove all: the outputs have their names. By what goes last the same call still knows them."""
        with suppress(OSError):
            for entry in os.scandir(self.folder):
                if entry.name.startswith(_BETWEEN):
                    self.has_read(Between(entry.path.removesuffix(_READ), None))
        self._claim.end()

    def stop(self) -> None:
        """Leave what is done to a later call; remove all if that is nothing."""
        if self.is_begun:
            self._claim.leave()
        else:
            self._claim.end()


@dataclass
class NumberedPass:
    """One of the passes. Where it is `done`, that is what it gave; else its results go to the `targets`."""

    _passes: Passes
    targets: list[Target]
    _in_memory: list[bool]
    mark: Mark
    done: tuple[Any, ...] | None = None

    def open(self, target: Any, spec: ArraySpec) -> Sink:
        """A sink for a result that is written at once. At a URL, where none is hidden, it says whose it is."""
        if not hasattr(target, "left"):
            sink: Sink = target.open(spec)
            return sink
        call = {_CALL: os.path.basename(self._passes.folder), BOOT: resume.boot()}
        if hasattr(target, "earlier") and target.earlier.get(_CALL) == call[_CALL]:
            target.own()
        claim = target.claim()
        try:
            compare({**(claim.call or call), BOOT: call[BOOT]}, call, target.name)
            sink = target.open(spec, claim)
            claim.begin(call)
        except BaseException:
            claim.leave() if claim.is_left else claim.end()
            raise
        return sink

    def read(self, number: int, sink: Any) -> Any:
        """A result of a pass that is complete and not marked yet, where it is hidden."""
        return _loaded(sink.hidden, None if self._in_memory[number] else "r+")

    def stopped(self, resumption: Resumption | None) -> None:
        """The pass has ended early."""
        self.mark.abort()
        self._passes.is_begun |= resumption is not None and resumption.has_left

    def finished(self, results: Sequence[Any]) -> tuple[Any, ...]:
        """The results for the caller, after the mark and they have been published."""
        self._passes.is_begun = True
        return tuple(
            _loaded(target.name) if memory else result
            for target, memory, result in zip(self.targets, self._in_memory, results, strict=True)
        )


def _loaded(path: str, mode: Literal["r+"] | None = None) -> np.ndarray:
    """A result of a pass that is given in memory, or as a file that is mapped."""
    with translated(ReadError, f"cannot read an intermediate result from {path}", path):
        found: np.ndarray = np.load(path, mode, allow_pickle=False)
        return found


class _GoneArray:
    """In place of an array between two passes which both are done: it is gone, and nobody reads it."""

    footprint: Footprint | None = None

    def __init__(self, spec: ArraySpec) -> None:
        self.spec = spec
        self.shape, self.dtype, self.ndim = spec.shape, spec.dtype, len(spec.shape)

    def __chunkflow_source__(self) -> _GoneArray:
        return self

    def read(self, region: Region, out: np.ndarray) -> None:
        raise ReadError(f"{self.spec.name} has been read by a pass that is done, and removed")

    def view(self, region: Region) -> np.ndarray | None:
        return None

    def close(self) -> None:
        """See `Source.close`: nothing is open."""


def _claim(output: str) -> Claim:
    return Claim(passes_place(output), resumes=True, told=output)


_current: ContextVar[Passes | None] = run_variable("chunkflow_passes", None)


def current() -> Passes | None:
    """The passes of the present call, if a later one may go on with it."""
    return _current.get()


def refuse_left(outs: Any) -> None:
    """Refuse outputs among which are some that an earlier call has made in part.

    Each would be refused when its own pass begins: this is for calls of which that is not the first one.
    """
    if current() is None:
        for target in map(_resumable, outs if isinstance(outs, tuple) else (outs,)):
            if target is not None:
                _refuse_left(target)


def _refuse_left(target: Any, own: str = "") -> None:
    claims.refuse_left(target.name, own, also=[claim_path(*target.claimed)] if hasattr(target, "claimed") else ())
    if hasattr(target, "refuse_left"):
        target.refuse_left()


def _resumable(out: Any) -> Any:
    """The target of a path, if what goes there can be gone on with; else None."""
    if is_new(out):
        with suppress(ChunkflowError, OSError, ValueError):
            target = open_target(out, overwrite=True)
            return target if hasattr(target, "claim") else None
    return None


def as_published(outs: Any, *, overwrite: bool) -> Any:
    """Outputs as they are given, but for paths that an earlier call has published before it ended early.

    It had not come to the end of what it has to clean up, say. So the same call finds its outputs, and not that they
    exist already.
    """
    given = outs if isinstance(outs, tuple) else (outs,)
    targets = {out: target for out in given if is_new(out) and (target := _resumable(out))}
    names = ", ".join(target.name for target in targets.values())
    with translated(WriteError, f"cannot settle what a dead run left of {names}", names, foreign=OSError):
        calls = resume.left_by([*targets.values()])

    def found(out: Any) -> Any:
        target = targets.get(out) if is_new(out) else None
        if target is not None and target.name in calls:
            return Published(out, calls[target.name], overwrite)
        return Published(out) if target is not None and _is_marked(target) else out

    return tuple(map(found, outs)) if isinstance(outs, tuple) else found(outs)


def _is_marked(target: Any) -> bool:
    """Whether a pass of an earlier call has published a target's output."""
    place = passes_place(target.name)
    claim = claim_path(place, place)
    with suppress(OSError, ValueError):
        if os.path.lexists(claim) and settle.call_of(claim) is None:
            settle.settle(claim)  # nothing that a later call could know
        folder = settle.hidden_by(place)
        return folder is not None and _is_there(target) and target.name in Passes.marked(folder)
    return False


def _is_there(target: Any) -> bool:
    return bool(target.is_there if hasattr(target, "is_there") else os.path.lexists(target.name))


@contextmanager
def going_on(targets: Sequence[Target], call: Mapping[str, str], budget: Any, device: Device) -> Iterator[Any]:
    """A context for all passes of a call. It gives the budget for them: a share of what is free is fixed for good."""
    fixed = isinstance(budget, Budget)
    passes = Passes.open(targets, call, lambda: bytes_left(budget, device), fixed=fixed)
    before = _current.set(passes)
    try:
        with identity.going_on(passes.read):
            yield budget if fixed else int(passes.limit)
    except BaseException:
        _current.reset(before)
        passes.stop()
        raise
    _current.reset(before)
    passes.end()


def call_of_passes(
    function: str, arrays: Mapping[str, str], targets: Sequence[Target], budget: Any, device: Device
) -> dict[str, str]:
    """What a call of several passes is: equal for calls that give the same result to the bit."""
    limit = budget.limit_on(device) if isinstance(budget, Budget) else budget
    return {
        **versions(),
        "the device": device.model,
        "the function and its arguments": function,
        **arrays,
        **{f"output {i}": target.name for i, target in enumerate(targets)},
        **said_of(targets),
        _BUDGET: str(limit),
        BOOT: resume.boot(),
    }
