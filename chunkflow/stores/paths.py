"""Names on the file system: which exist, which may be replaced, and names for outputs and intermediate results."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise

from chunkflow.core.settings import temporary_directory
from chunkflow.errors import ArgumentError, OutputExistsError
from chunkflow.system.files import open_regular, remove_tree

_HDF5 = re.compile(r"(.+?\.(?:h5|hdf5|hdf|nc))(?::(.*))?", re.IGNORECASE | re.DOTALL)

HDF5 = (".h5", ".hdf5", ".hdf", ".nc")
"""How paths of HDF5 files end."""

TIFF = (".tif", ".tiff", ".btf")
"""How paths of TIFF files end."""

_NPY = b"\x93NUMPY"
"""How ``.npy`` files begin."""

NETCDF3 = (b"CDF\x01", b"CDF\x02", b"CDF\x05")
"""How netCDF files of version 3 begin."""

DATASET = "data"
"""An HDF5 dataset's name if the path of an output gives none."""

_LISTED = 20

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
"""How an HDF5 file begins, or goes on behind a user block (HDF5's format specification, section II.A)."""


def hdf5_named(path: str) -> tuple[str, str | None] | None:
    """File, and dataset if there is one, of a path that ends as those of HDF5 datasets do; None for any other path.

    >>> hdf5_named("run/sim.h5:/fields/u"), hdf5_named("sim.nc"), hdf5_named("sim.h5.npy")
    (('run/sim.h5', '/fields/u'), ('sim.nc', None), None)
    """
    found = _HDF5.fullmatch(path)
    return found and (found[1], found[2] or None)


def hdf5_parts(path: str) -> tuple[str, str | None] | None:
    """As `hdf5_named`. If the path ends otherwise, the file shows whether it is one of HDF5.

    >>> hdf5_parts("run/sim.h5:/fields/u"), hdf5_parts("/nowhere/scan.nxs:/u")
    (('run/sim.h5', '/fields/u'), None)
    """
    named = hdf5_named(path)
    if named is not None or path.endswith(".npy"):
        return named
    for i in [i for i, letter in enumerate(path) if letter == ":"]:
        if is_hdf5(path[:i]):
            return path[:i], path[i + 1 :] or None
    bare = path.rstrip("/")
    return (bare, None) if is_hdf5(bare) else None


def is_hdf5(path: str) -> bool:
    """Whether there is a file that has HDF5's signature. Does not load h5py."""
    if not os.path.isfile(path):
        return False
    with suppress(OSError), open(open_regular(path), "rb") as file:
        size, at = os.fstat(file.fileno()).st_size, 0
        while at < size:
            file.seek(at)
            if file.read(len(_SIGNATURE)) == _SIGNATURE:
                return True
            at = max(512, 2 * at)
    return False


def format_beside_zarr(path: str) -> str:
    """The format that the end of a path names, if it is none of zarr's.

    >>> format_beside_zarr("mask.tif"), format_beside_zarr("run.h5:/u"), format_beside_zarr("x.zarr")
    ('TIFF', 'HDF5', '')
    """
    low = path.lower()
    return "TIFF" if low.endswith(TIFF) else "HDF5" if hdf5_named(path) else ".npy" if low.endswith(".npy") else ""


def is_npy(path: str) -> bool:
    """Whether there is a file that is named as ``.npy`` files are, or begins as they do."""
    if not os.path.isfile(path):
        return False
    if path.endswith(".npy"):
        return True
    with suppress(OSError), open(open_regular(path), "rb") as file:
        return file.read(len(_NPY)) == _NPY
    return False


def tiff_files(path: str) -> list[str]:
    """The TIFF file of a path, or all that match a pattern, in order of their names. None of any other path.

    >>> tiff_files("/nowhere/frames/*.tif"), tiff_files("x.zarr")
    ([], [])
    """
    if not path.lower().endswith(TIFF) or "://" in path:
        return []
    found = [path] if os.path.exists(path) else sorted(glob.glob(path))
    return [each for each in found if os.path.isfile(each)]


def netcdf3_parts(path: str) -> tuple[str, str] | None:
    """File and name of a path ``file.nc:name`` of a netCDF file of version 3; None of any other path.

    >>> netcdf3_parts("/nowhere/t.nc:t2m")
    """
    head, _, name = (path, "", "") if os.path.exists(path) else path.rpartition(":")
    if not os.path.isfile(head):
        return None
    with suppress(OSError), open(open_regular(head), "rb") as file:
        return (head, name.strip("/")) if file.read(4) in NETCDF3 else None
    return None


def absolute(path: str | os.PathLike[str]) -> str:
    """The path of an array from the root, or its URL: what it means in whatever directory the process is."""
    text = os.fspath(path).removeprefix("file://")
    return text if "://" in text else os.path.join(os.getcwd(), text)


def located(path: str | os.PathLike[str]) -> str:
    """The one name of an array among all its paths: links followed, those of the file that an HDF5 dataset is in too.

    >>> located("s3://bucket/u.zarr/"), located("/nowhere/sim.h5:u//v"), located("/nowhere/../u.npy")
    ('s3://bucket/u.zarr', '/nowhere/sim.h5:/u/v', '/u.npy')
    """
    text = absolute(path)
    if "://" in text:
        return text.rstrip("/")
    parts = hdf5_parts(text)
    if parts is None or parts[1] is None or os.path.isdir(text):
        return resolve(text)
    return f"{resolve(parts[0])}:/{'/'.join(part for part in parts[1].split('/') if part not in ('', '.'))}"


def resolve(path: str | os.PathLike[str]) -> str:
    """Absolute path with symbolic links followed, so that a later rename replaces what they point to."""
    return os.path.realpath(os.fspath(path))


def scratch_place(path: str, purpose: str) -> str:
    """Name for intermediate results: beside an output, and outside of any zarr group. No other output has it.

    For an output that is no file it is an unused one in the system's temporary directory.
    """
    if not os.path.isabs(path):
        path = os.path.join(temporary_directory(), f"chunkflow.{os.urandom(16).hex()}")
    above, marks = os.path.dirname(path), ("zarr.json", ".zgroup", ".zarray")
    while above != os.path.dirname(above) and (
        above.endswith(".zarr")
        or not os.path.isdir(above)
        or any(os.path.exists(os.path.join(above, mark)) for mark in marks)
    ):
        above = os.path.dirname(above)
    name = os.path.basename(path)
    if above != os.path.dirname(path):  # members of two groups, or of two files, may have one name
        import hashlib  # not at the top: few outputs are such

        name = f"{name}.{hashlib.sha256(os.fsencode(os.path.relpath(path, above))).hexdigest()[:12]}"
    return os.path.join(above, f"{name}.{purpose}")


def passes_place(output: str) -> str:
    """Name of the intermediate results of a call of several passes that a later one goes on with.

    >>> passes_place("/u.npy")
    '/u.npy.passes'
    """
    return _lasting_place(output, "passes")


def blocks_place(output: str) -> str:
    """Name of the finished blocks of a dataset, which are copied into its file when all are there.

    >>> blocks_place("/u.h5:/run/v")
    '/v.49952c5e4263.blocks'
    """
    return _lasting_place(output, "blocks")


def _lasting_place(output: str, purpose: str) -> str:
    """A `scratch_place` that is the same in another process, and no other output's.

    For one behind a URL it is in the system's temporary directory.
    """
    if "://" in output:
        import hashlib

        name = hashlib.sha256(os.fsencode(output)).hexdigest()[:32]
        return os.path.join(temporary_directory(), f"chunkflow.{name}.{purpose}")
    return scratch_place(output, purpose)


def remove_directory(path: str) -> None:
    """Remove a directory and what is in it, as far as that is possible."""
    with suppress(OSError):
        remove_tree(path)


def require_directory(path: str, wanted_for: str) -> None:
    """Refuse an output whose directory does not exist."""
    if not os.path.isdir(path):
        raise ArgumentError(f"the output {wanted_for} cannot be created: there is no directory {path}")


def refuse_nested(names: Sequence[str]) -> None:
    """Refuse new arrays of which one has the name of another, or would lie within it.

    Raises
    ------
    ArgumentError
        Two of these resolved names do.

    >>> refuse_nested(["/m.zarr/u", "/m.zarr/v", "/m.zarr2"])
    """
    # After a name comes what lies within it, with nothing in between that does not.
    known = sorted(name.rstrip("/") + "/" for name in names)
    for outer, inner in pairwise(known):
        if inner == outer:
            raise ArgumentError(f"out names the same path twice, and outputs may not overlap: {outer[:-1]}")
        if inner.startswith(outer):
            raise ArgumentError(
                f"the output {inner[:-1]} would lie within the output {outer[:-1]}, which is an array: give each its "
                "own place"
            )


def refuse_existing(path: str, overwrite: bool) -> None:
    """Refuse (`OutputExistsError`) an output that exists, unless it may be overwritten."""
    if not overwrite and os.path.lexists(path):
        raise existing(path, "array")


def existing(name: str, what: str) -> OutputExistsError:
    """The error of an output that exists; `what` is opened to write into it."""
    return OutputExistsError(
        f"{name} exists: pass overwrite=True to replace it once the run has succeeded, or pass the {what} itself, "
        "opened for writing, to write into it. If a call with resume=True stored it, that call has finished"
    )


def listed(names: Iterable[str], most: int = _LISTED) -> str:
    """Names as text for people, not all of many.

    >>> listed(["u", "v"]), listed([]), listed("abc", 2)
    ("'u', 'v'", 'none', "'a', 'b', ...")
    """
    names = sorted(names)
    return ", ".join([*map(repr, names[:most]), *["..."] * (len(names) > most)]) or "none"


def file_system_of(device: int) -> str:
    """Kind of the file system on a device (`os.stat_result.st_dev`); empty if unknown."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                fields = line.split()
                if fields[2] == number:
                    return fields[fields.index("-") + 1]
    except (OSError, ValueError, IndexError):
        pass
    return ""
