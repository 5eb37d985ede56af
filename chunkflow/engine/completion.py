"""Passes that are complete: their outputs get their names at once, or together with those of later passes.

Several outputs of one call appear together, or none does. Where several passes make them, those of the first ones wait
under their hidden names. Later passes read them there, where the format allows it (`Growing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from chunkflow.engine.passes import NumberedPass
from chunkflow.engine.resume import Resumption, end
from chunkflow.stores.commit import commit_all
from chunkflow.stores.protocol import Sink, Target
from chunkflow.stores.publication.mark import Mark
from chunkflow.system import interrupts
from chunkflow.system.context import run_variable


@dataclass
class Complete:
    """A pass with all its elements written; or one that has `failed`, and leaves what can be gone on with.

    Attributes
    ----------
    sinks : list of Sink
        Of its outputs.
    turn : NumberedPass, optional
        Its place among the passes of a call that a later one may go on with.
    resumption : Resumption, optional
        How far it had come.
    is_published : bool
        Whether its outputs have their names: then there is nothing to undo.
    """

    sinks: list[Sink]
    turn: NumberedPass | None = None
    resumption: Resumption | None = None
    is_published: bool = False

    @property
    def marks(self) -> list[Mark]:
        """The mark that it is done. It decides for all, and is looked at first."""
        return [] if self.turn is None else [self.turn.mark]

    def failed(self) -> None:
        """Nothing appears, if nothing has."""
        if self.is_published:
            return
        if self.resumption is not None:
            self.resumption.stop()
        if self.turn is not None:
            self.turn.stopped(self.resumption)
        for sink in self.sinks if self.resumption is None else ():
            sink.abort()

    def done(self, results: Sequence[Any]) -> tuple[Any, ...]:
        """The results for the caller: the outputs have got their names."""
        self.is_published = True
        if self.resumption is not None:
            self.resumption.end()
        elif self.turn is not None:
            end(self.sinks)
        return tuple(results) if self.turn is None else self.turn.finished(results)


class PendingOutput:
    """An output that is complete, and gets its name at the end of the call.

    Its `result` is what the caller gets then, and itself before. Later passes read the `source`, if there is one.
    """

    def __init__(self, sink: Sink) -> None:
        self.source: Any = sink.so_far() if hasattr(sink, "so_far") else None
        self.result: Any = self
        self._finish: list[Callable[[Any], Any]] = []

    def then(self, finish: Callable[[Any], Any]) -> PendingOutput:
        """What a function makes of the result."""
        self._finish.append(finish)
        return self

    def settle(self, result: Any) -> None:
        for finish in self._finish:
            result = finish(result)
        self.result, self.source = result, None


def settled(result: Any) -> Any:
    """A result, or a tuple of them, of which some may have been pending."""
    if isinstance(result, tuple):
        return tuple(map(settled, result))
    return result.result if isinstance(result, PendingOutput) else result


@dataclass
class _Together:
    """The outputs of one call, by their names, and the passes that have made some."""

    names: frozenset[str]
    _complete: list[tuple[Complete, list[Any]]] = field(default_factory=list)

    def hold(self, made: Complete, targets: Sequence[Target], sync: bool | None) -> tuple[Any, ...]:
        """Keep the outputs of a pass hidden, and give what else it has made."""
        if made.resumption is not None:
            made.resumption.complete()
        waits = [target.name in self.names for target in targets]
        if made.turn is not None:  # a later call would not know the others without the pass's mark: they wait too
            sinks = enumerate(zip(made.sinks, waits, strict=True))
            found = [PendingOutput(sink) if wait else made.turn.read(i, sink) for i, (sink, wait) in sinks]
            self._complete.append((made, found))
            return tuple(found)
        others = [sink for sink, wait in zip(made.sinks, waits, strict=True) if not wait]
        given = iter(commit_all(others, sync=sync))
        found = [PendingOutput(sink) if wait else next(given) for sink, wait in zip(made.sinks, waits, strict=True)]
        made.sinks = [sink for sink, wait in zip(made.sinks, waits, strict=True) if wait]
        self._complete.append((made, [result for result, wait in zip(found, waits, strict=True) if wait]))
        return tuple(found)

    def publish(self, sync: bool | None) -> None:
        """Give all outputs their names."""
        marks = [mark for made, _ in self._complete for mark in made.marks]
        sinks = [sink for made, _ in self._complete for sink in made.sinks]
        given = iter(commit_all([*marks, *sinks], sync=sync)[len(marks) :])
        for made, _ in self._complete:
            made.is_published = True
        for made, results in self._complete:
            for result, output in zip(results, made.done([next(given) for _ in made.sinks]), strict=True):
                if isinstance(result, PendingOutput):
                    result.settle(output)

    def fail(self) -> None:
        """No output appears."""
        for made, _ in self._complete:
            made.failed()

    def forget(self) -> None:
        """Keep nothing open: threads of other libraries, which got the caller's context, may have this for long."""
        self._complete.clear()


_together: ContextVar[_Together | None] = run_variable("chunkflow_together", None)


def completed(made: Complete, targets: Sequence[Target], sync: bool | None) -> tuple[Any, ...]:
    """The results of a complete pass; a `PendingOutput` for each output that gets its name later."""
    together = _together.get()
    if together is not None and any(target.name in together.names for target in targets):
        return together.hold(made, targets, sync)
    return made.done(commit_all([*made.marks, *made.sinks], sync=sync)[len(made.marks) :])


@contextmanager
def together(targets: Sequence[Target], sync: bool | None) -> Iterator[None]:
    """A context in which passes make outputs that appear together, at its end: `settled` gives them then."""
    names = frozenset(target.name for target in targets if hasattr(target, "claim"))
    if not names or _together.get() is not None:
        yield
        return
    outputs = _Together(names)
    token = _together.set(outputs)
    with interrupts.deferred():
        try:
            yield
            outputs.publish(sync)
        except BaseException:
            outputs.fail()
            raise
        finally:
            outputs.forget()
            _together.reset(token)
