"""Finished outputs get their names, all of them or none.

What replaces something is exchanged with it in one step, where the file system can, and is on the disk before. The old
one is removed last. The file of a claim says how far that is, in up to four lines:

1. what is written, and under which hidden name;
2. "ready": the inode by which the finished file or directory is known, or that an existing file is changed
   (`chunkflow.stores.publication.patch`), and the claim that decides for all;
3. "commit", in the claim that decides, with those of the call's other outputs, its followers. Who finds the claims of
   a dead run finishes what is committed, and undoes what is not (`chunkflow.stores.publication.settle`);
4. "done", there too: nothing is left to be finished.

The claim that decides is removed last: where it is gone, its followers have nothing but hidden files left.

An output alone that gets its name in one step needs the first line only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from chunkflow.stores.paths import refuse_existing
from chunkflow.stores.publication.claim import Claim
from chunkflow.stores.publication.move import Move, inode_of
from chunkflow.stores.publication.patch import Patch
from chunkflow.stores.publication.rename import flush, flush_name

T = TypeVar("T")
Step: TypeAlias = tuple[Claim, Move | Patch, dict[str, int]]
"""An output's claim, what is done for it, and how the claim says that."""


def publish(claims: Sequence[Claim], finish: Callable[[], T], *, sync: bool = False) -> T:
    """Give finished outputs their names, and return what `finish` gives.

    If one name, or `finish`, fails, no output has its name, and what had it before has it again.

    Parameters
    ----------
    claims : sequence of Claim
        Of the outputs, each complete and closed under its hidden name. They end here, if all goes well.
    finish : callable
        Called once all have their names.
    sync : bool
        Whether all is on the disk when this returns. What replaces something is in any case.
    """
    durable = sync or any(os.path.lexists(claim.name) for claim in claims)
    while True:
        if durable:
            for claim in claims:
                flush(claim.partial)
        moves = _moves(claims)
        try:
            return _moved(moves, finish, durable)
        except FileExistsError as error:
            late = {move.name: move for _, move, _ in moves if isinstance(move, Move)}.get(error.filename2)
            if late is None:
                raise
            if late.inner == ".":  # else another run has made the group meanwhile: the output goes into it
                refuse_existing(late.name, late.replaces)


def _moved(moves: Sequence[Step], finish: Callable[[], T], durable: bool) -> T:
    claims, said = [claim for claim, _, _ in moves], False
    followers = [claim.path for claim in claims[1:]]

    def agree() -> None:
        """Say what has to be finished, before the first of several steps."""
        nonlocal said
        if not said:
            for claim, _, ready in moves:
                claim.say({**ready, "leader": claims[0].path}, sync=durable)
            claims[0].say({"commit": True, "followers": followers}, sync=durable)
            said = True

    try:
        if len(moves) > 1:
            agree()
        for _, move, _ in moves:
            move.forward(agree)
        if durable:
            for claim in claims:
                flush_name(claim.name)
        if said:
            claims[0].say({"done": True}, sync=durable)  # from here on others may change what is published
        result = finish()
    except BaseException:
        try:
            if said:
                claims[0].say({"commit": False, "followers": followers}, sync=durable)
            for _, move, _ in reversed(moves):
                move.back()
        except BaseException:
            for claim in claims:
                claim.leave()  # what is under the hidden names is needed
            raise
        raise
    for claim in reversed(claims):
        claim.end(published=True)
    return result


def _moves(claims: Sequence[Claim]) -> list[Step]:
    """What is done for each output, and how its claim says that.

    A new file or directory is renamed: the outermost part of the output that is not there, also not by an earlier one
    of these, or the output itself. Its depth is the number of parts below the root.
    """
    found: list[Step] = []
    there = set[str]()
    for claim in claims:
        if claim.patches:
            found.append((claim, Patch(claim.partial, claim.name), {"ready": 0}))
            continue
        names = [name for _, name in claim.steps]
        lacking = [i for i, name in enumerate(names) if name not in there and not os.path.lexists(name)]
        depth = lacking[0] if lacking else len(names) - 1
        there.update(names)
        partial, name = claim.steps[depth]
        inner, leaf = os.path.relpath(claim.name, name), inode_of(claim.steps[-1][0])
        move = Move(partial, name, claim.old, inode_of(partial), inner, leaf, claim.overwrite and inner == ".")
        found.append((claim, move, {"ready": move.inode, "depth": depth, "leaf": leaf, "replaces": move.replaces}))
    return found
