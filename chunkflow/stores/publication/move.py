"""A finished file or directory gets its name, or loses it again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from chunkflow.stores.publication.record import steps
from chunkflow.stores.publication.rename import exchange, rename_new
from chunkflow.system.files import remove_tree


@dataclass(frozen=True)
class Move:
    """A finished file or directory under a hidden name, and the name that it gets.

    `inode` is its own. `old` is a hidden name for what has the name now, which loses it only where this `replaces`
    something. Of a new group `inner` is the path of the output in it, and `leaf` the output's inode: others may put
    something into the group once it has its name.
    """

    partial: str
    name: str
    old: str
    inode: int
    inner: str = "."
    leaf: int = 0
    replaces: bool = False

    def forward(self, by_steps: Callable[[], object]) -> None:
        """Give it its name, if it has not got it yet. `by_steps` is called first where one step does not do.

        Raises
        ------
        FileExistsError
            Something else has the name, and is not to be replaced.
        """
        if inode_of(self.name) == self.inode:
            return
        if not self.replaces or not os.path.lexists(self.name):
            rename_new(self.partial, self.name)
        elif not exchange(self.partial, self.name):
            by_steps()
            os.rename(self.name, self.old)
            rename_new(self.partial, self.name)

    def back(self) -> None:
        """Take its name from it, and give it back to what had it before."""
        if self.inner != ".":
            self._back_from_group()
        elif inode_of(self.name) != self.inode:
            if not os.path.lexists(self.name) and os.path.lexists(self.old):
                os.rename(self.old, self.name)
        elif os.path.lexists(self.old):
            os.rename(self.name, self.partial)
            os.rename(self.old, self.name)
        elif not os.path.lexists(self.partial):
            os.rename(self.name, self.partial)
        elif not exchange(self.partial, self.name):
            os.rename(self.partial, self.old)
            os.rename(self.name, self.partial)
            os.rename(self.old, self.name)

    def _back_from_group(self) -> None:
        """Take the output out of its new group, and remove the groups above it that have no other member."""
        if inode_of(self.name) != self.inode:
            return
        output = os.path.join(self.name, self.inner)
        if inode_of(output) == self.leaf:
            for hidden, group in steps(self.partial, self.name, os.path.dirname(self.inner) or "."):
                os.makedirs(hidden, exist_ok=True)
                for member in DOCUMENTS:
                    with suppress(FileNotFoundError):
                        shutil.copyfile(os.path.join(group, member), os.path.join(hidden, member))
            os.rename(output, os.path.join(self.partial, self.inner))
        above = os.path.dirname(output)
        while len(above) >= len(self.name):
            with suppress(FileNotFoundError):
                members = os.listdir(above)
                if not all(member in DOCUMENTS for member in members):
                    return
                for member in members:
                    os.unlink(os.path.join(above, member))
                os.rmdir(above)
            above = os.path.dirname(above)


DOCUMENTS = ("zarr.json", ".zgroup", ".zattrs", ".zmetadata")
"""What a zarr group has besides its members."""


def inode_of(path: str) -> int:
    """The inode of a path; 0 if there is nothing."""
    try:
        return os.lstat(path).st_ino
    except FileNotFoundError:
        return 0


def remove(path: str) -> None:
    """Remove a file or a directory, if there is one."""
    if os.path.isdir(path) and not os.path.islink(path):
        remove_tree(path)
    elif os.path.lexists(path):
        os.unlink(path)
