"""What runs that were killed left: hidden outputs, intermediate results, half of a change of names."""

from __future__ import annotations

import os

from chunkflow.errors import SourceNotFoundError, WriteError
from chunkflow.stores.failures import translated
from chunkflow.stores.paths import DATASET, hdf5_named, located
from chunkflow.stores.publication.settle import Left, beside, end, left_in
from chunkflow.system.deferred import at


def leftovers(path: str | os.PathLike[str]) -> tuple[Left, ...]:
    """What dead runs left in a directory and below, or beside an output.

    What belongs to runs that are alive, or to other users, does not count.

    Parameters
    ----------
    path : str or path
        A directory, or the path or URL of an output, be it there or not. How much lies at a URL is not known.

    Returns
    -------
    tuple of Left
        Each with the `output` that its run made, its `nbytes` on the disk, and whether it `is_begun`: some outputs of
        its run may have their names, and others not.

    Raises
    ------
    SourceNotFoundError
        There is no such directory, nor one in which the output would be.

    Examples
    --------
    >>> import chunkflow as cf
    >>> cf.leftovers(".")
    ()
    """
    if "://" in os.fspath(path):
        return tuple(at("chunkflow.stores.zarr.create_remote:left_at")(os.fspath(path)))
    parts = None if os.path.isdir(path) else hdf5_named(os.fspath(path))
    place = os.path.realpath(path if parts is None else parts[0])
    if not os.path.isdir(os.path.dirname(place)):
        raise SourceNotFoundError(f"there is no directory {os.path.dirname(place)}")
    inside = left_in(place) if os.path.isdir(place) else []
    of_dataset = [] if parts is None else beside(located(f"{place}:{parts[1] or DATASET}"))
    return (*beside(place), *of_dataset, *inside)


def recover(path: str | os.PathLike[str]) -> tuple[Left, ...]:
    """Finish or undo what dead runs had begun to publish: outputs are then the old ones or the new ones, whole.

    The next run that writes to such an output does so by itself, and so does chunkflow when it opens an HDF5 file.
    For other programs this is to be done first.

    Parameters
    ----------
    path : str or path
        A directory, or the path of an output.

    Returns
    -------
    tuple of Left
        What is settled.

    Raises
    ------
    SourceNotFoundError
        As for `leftovers`.
    WriteError
        Something cannot be changed; or another program has changed a file since.

    Examples
    --------
    >>> import chunkflow as cf
    >>> cf.recover("u.h5")
    ()
    """
    return _ended([left for left in leftovers(path) if left.is_begun], keep=True)


def clean(path: str | os.PathLike[str]) -> tuple[Left, ...]:
    """As `recover`, and remove what dead runs had not finished: hidden outputs and intermediate results.

    Parameters
    ----------
    path : str or path
        A directory, or the path of an output.

    Returns
    -------
    tuple of Left
        What is gone.

    Raises
    ------
    SourceNotFoundError, WriteError
        As for `recover`.

    Examples
    --------
    >>> import chunkflow as cf
    >>> sum(left.nbytes for left in cf.clean("."))
    0
    """
    return _ended(leftovers(path))


def _ended(found: tuple[Left, ...] | list[Left], *, keep: bool = False) -> tuple[Left, ...]:
    done = []
    for left in found:
        with translated(WriteError, f"cannot settle what a dead run left of {left.output}", left.output):
            if end(left, keep=keep):
                done.append(left)
    return tuple(done)
