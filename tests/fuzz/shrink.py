"""Makes a failing program small: fewer numbers are drawn, and smaller ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from tests.fuzz.drawing import Drawing
from tests.fuzz.drawn import program_of
from tests.fuzz.program import Program


def shrunk(drawn: Drawing, fails: Callable[[Program], bool], seconds: float = 30) -> Program:
    """The smallest program found that still fails, from one that was drawn."""
    ends = time.monotonic() + seconds
    best = again(drawn, drawn.drawn)
    found = program_of(best)
    seen = {found.short()}

    def smaller(tried: Sequence[int]) -> bool:
        nonlocal best, found
        drawing = again(drawn, tried)
        try:
            program = program_of(drawing)
        except (AssertionError, ValueError, IndexError):
            return False
        if _size(drawing.drawn) >= _size(best.drawn):
            return False
        same = program.short() == found.short()  # what does not change the program is left out without a run
        if not same and (program.short() in seen or not fails(program)):
            seen.add(program.short())
            return False
        best, found = drawing, program
        return True

    progress = True
    while progress and time.monotonic() < ends:
        progress = False
        for change in _changes(lambda: best.drawn):
            if time.monotonic() > ends:
                break
            progress = smaller(change) or progress
    return found


def again(drawn: Drawing, numbers: Sequence[int]) -> Drawing:
    """What draws these numbers, of the same kinds."""
    return Drawing(numbers, device=drawn.device, among=drawn.among)


def _size(numbers: Sequence[int]) -> tuple[int, list[int]]:
    while numbers and numbers[-1] == 0:  # those that follow are 0 anyway
        numbers = numbers[:-1]
    return len(numbers), list(numbers)


def _changes(now: Callable[[], list[int]]) -> Iterator[list[int]]:
    """Numbers to try in place of those that there are `now`: without some, with zeros, with smaller ones."""
    for length in (32, 16, 8, 4, 3, 2, 1):
        place = 0
        while place < len(now()):
            before = now()
            yield before[:place] + before[place + length :]
            if now() is before:
                yield before[:place] + [0] * length + before[place + length :]
                place += max(1, length // 2)
    place = 0
    while place < len(now()):
        low, high = 0, now()[place]
        while low < high:
            middle = (low + high) // 2
            before = now()
            yield [*before[:place], middle, *before[place + 1 :]]
            if now() is before:
                low = middle + 1
            else:
                high = middle
        place += 1
