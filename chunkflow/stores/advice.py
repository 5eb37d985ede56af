"""What is said of a path under which nothing can be opened: what lies there, and which library reads it."""

from __future__ import annotations

import difflib
import glob
import os
from contextlib import suppress
from typing import NamedTuple

from chunkflow.errors import ArgumentError, ChunkflowError, SourceNotFoundError
from chunkflow.stores.paths import HDF5, TIFF, hdf5_named, is_hdf5, listed
from chunkflow.stores.patterns import pattern_of, unmatched
from chunkflow.stores.zarr.node import zarr_node
from chunkflow.system.deferred import at
from chunkflow.system.files import open_regular


class Reader(NamedTuple):
    """A format that others read: its name, the call that gives an array, and how its paths end and its files begin."""

    name: str
    call: str
    endings: tuple[str, ...]
    beginnings: tuple[bytes, ...] = ()


READERS = (
    Reader(
        "a TIFF file",
        "tifffile.memmap({path}, mode='r'), or of zarr.open(tifffile.imread({path}, aszarr=True), mode='r') if it is "
        "compressed",
        (".tif", ".tiff", ".btf", ".lsm", ".svs"),
        (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
    ),
    Reader(
        "a netCDF file of version 3, and no HDF5 file",
        "xarray.open_dataset({path})['name']",
        (),
        (b"CDF\x01", b"CDF\x02", b"CDF\x05"),
    ),
    Reader("an HDF4 file, and no HDF5 file", "pyhdf.SD.SD({path}).select('name')[:]", (), (b"\x0e\x03\x13\x01",)),
    Reader("a MATLAB file before version 7.3", "scipy.io.loadmat({path})['name']", (".mat",), (b"MATLAB 5.0",)),
    Reader("a FITS file", "astropy.io.fits.open({path})[0].data", (".fits", ".fit", ".fts"), (b"SIMPLE  =",)),
    Reader("a NIfTI file", "nibabel.load({path}).dataobj", (".nii", ".nii.gz", ".mgz")),
    Reader("an MRC file", "mrcfile.mmap({path}).data", (".mrc", ".mrcs", ".map", ".ccp4", ".rec")),
    Reader("a NumPy archive", "np.load({path})['name']", (".npz",)),
    Reader("a zarr array or group in a zip file", "zarr.open(zarr.storage.ZipStore({path}), mode='r')", (".zip",)),
    Reader("a file without a header", "np.memmap({path}, dtype, mode='r', shape=shape)", (".raw", ".bin", ".dat")),
    Reader("a table of text", "np.loadtxt({path}, delimiter=',')", (".csv", ".tsv", ".txt")),
    Reader("a spreadsheet", "pandas.read_excel({path}).to_numpy()", (".xlsx", ".xls", ".ods")),
    Reader("a Parquet file", "pandas.read_parquet({path})['name'].to_numpy()", (".parquet",), (b"PAR1",)),
    Reader(
        "an image",
        "imageio.v3.imread({path})",
        (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".jp2"),
        (b"\x89PNG", b"\xff\xd8\xff"),
    ),
    Reader("a DICOM file", "pydicom.dcmread({path}).pixel_array", (".dcm",)),
    Reader("an NRRD file", "nrrd.read({path})[0]", (".nrrd", ".nhdr"), (b"NRRD000",)),
    Reader("a MetaImage file", "SimpleITK.GetArrayViewFromImage(SimpleITK.ReadImage({path}))", (".mha", ".mhd")),
    Reader("a microscope's file", "bioio.BioImage({path}).dask_data", (".nd2", ".czi", ".lif", ".oib", ".vsi")),
    Reader(
        "a GRIB file",
        "xarray.open_dataset({path}, engine='cfgrib')['name']",
        (".grib", ".grib2", ".grb", ".grb2"),
        (b"GRIB",),
    ),
    Reader("a SEG-Y file", "segyio.tools.cube({path})", (".sgy", ".segy")),
    Reader("a VTK file", "pyvista.read({path})['name']", (".vtk", ".vti", ".vtu", ".vtr", ".vts")),
    Reader("a file of torch's", "torch.load({path})", (".pt", ".pth")),
    Reader("a pickle", "pickle.load(open({path}, 'rb'))", (".pkl", ".pickle")),
)
"""Formats that chunkflow leaves to others. How a file begins comes before how its name ends."""

FEW = 3
"""Names of a directory that are listed."""

UNKNOWN = ":/name"
"""What stands for the name of a dataset that is not known."""

CHECKED = 16
"""Files of a directory of which it is looked whether they have the same dataset."""

MARKS = {"attributes.json": "N5", "manifest.ocdbt": "OCDBT, a database of zarr arrays", "info": "neuroglancer's"}
"""Files by which directories of other formats are known."""


def advice(path: str) -> str:
    """What a file is and what reads it, as the end of a sentence that names the file; empty if that is unknown.

    >>> advice("/nowhere/u.npz")
    "a NumPy archive, which chunkflow does not read itself: pass the array of np.load('/nowhere/u.npz')['name']"
    """
    begins = b""
    if os.path.isfile(path):  # to open a pipe would wait
        with suppress(OSError), open(open_regular(path), "rb") as file:
            begins = file.read(16)
    rows = [row for row in READERS if begins.startswith(row.beginnings)]
    for row in rows or [row for row in READERS if path.lower().endswith(row.endings)]:
        how = row.call.replace("{path}", repr(path))
        return f"{row.name}, which chunkflow does not read itself: pass the array of {how}"
    return ""


_LIKE = 0.75
"""Likeness of a name to that of a file, from which on it may be a misspelling of it."""


def refusal(given: str, kinds: str) -> ChunkflowError:
    """The error for a path that is in no format of ours; `kinds` says what can be opened."""
    path = os.path.abspath(given)
    if not os.path.exists(path):
        return SourceNotFoundError(_missing(given, path))
    if is_file := os.path.isfile(path):
        known = advice(path)
        if known:
            return ArgumentError(f"{path} is {known}")
    elif inside := _inside(given, path):
        return ArgumentError(f"{path} is a directory, and no zarr array: {inside}")
    what = "" if is_file else f"is a directory without metadata of zarr{_if_empty(path)}: it "
    return ArgumentError(f"{path} {what}is neither a .npy file nor a zarr array: open it and pass {kinds}")


def misplaced(given: str) -> str:
    """How a name inside a file or group is written, if a path writes it otherwise: the end of a sentence, or empty."""
    path = os.path.abspath(given)
    above, inner = _existing(path)
    if inner and is_hdf5(above):
        head = given.removesuffix(inner).rstrip("/") if given.endswith(inner) else above
        return f": {above} is an HDF5 file, and names in it follow a colon, as in '{head}:/{inner}'"
    for head, tail in _splits(given):
        if os.path.isdir(head) and zarr_node(os.path.abspath(head)) is not None:
            return f": names in a zarr group follow a slash, as in '{head.rstrip('/')}/{tail.lstrip('/')}'"
    return ""


def _missing(given: str, path: str) -> str:
    """Why there is nothing under a path."""
    none = f"there is no array under {path}"
    wrong = misplaced(given)
    if wrong:
        return none + wrong
    for head, _ in _splits(path):
        if os.path.isfile(head):
            known = "" if head.endswith(".npy") else advice(head)
            return f"{none}: {head} is {known or 'no HDF5 file, and only those take a name behind a colon'}"
    if os.path.islink(path):
        return f"{none}: it is a link to {os.path.realpath(path)}, which does not exist"
    above, inner = _existing(path)
    node = zarr_node(above)
    if node is not None and node.kind == "array":
        return f"{none}: {above} is a zarr array, which holds no others"
    if node is not None:
        with suppress(ChunkflowError):
            names = listed(at("chunkflow.stores.zarr.array:members")(above))
            return f"there is no array {inner!r} in the zarr group {above}, but: {names} (asked for was {path})"
    if os.path.isfile(above):
        return f"{none}: {above} is a file, and no directory"
    if given.startswith("~"):
        return f"{none}: '~' is not expanded, which os.path.expanduser does"
    if said := pattern(given):
        return none + said
    if ":" in inner:
        return f"{none}: there is no file {path.rpartition(':')[0]}"
    if above != os.path.dirname(path):
        return f"{none}: there is no directory {os.path.dirname(path)}"
    return none + _near(path)


def _near(path: str) -> str:
    """What lies beside a path and has almost its name: the end of a sentence, or empty."""
    folder, name = os.path.split(path)
    with suppress(OSError):
        names = [each for each in os.listdir(folder) if not each.startswith(".")]
        if close := difflib.get_close_matches(name, names, 3, _LIKE):
            return f", but beside it: {listed(close)}"
    return ""


def pattern(given: str) -> str:
    """What takes a pattern of paths: the end of a sentence, or empty where a path is none.

    >>> pattern("x.zarr")
    ''
    """
    if not any(letter in given for letter in "*?["):
        return ""
    if given.lower().endswith(TIFF) or not glob.glob(_head(given)):
        return f": no file matches the pattern{unmatched(given)}"
    return f": chunkflow.open({_named(given)!r}) is one array of all that match"


def _named(given: str) -> str:
    """A pattern of files, with the name of a dataset if they need one."""
    head = _head(given)
    return given if given[len(head) :] else given + _dataset(min(glob.glob(head), default=head))


def _head(given: str) -> str:
    """The pattern of files, without the name of a dataset."""
    named = hdf5_named(given)
    return given.partition(":")[0] if named is None else named[0]


def _dataset(file: str) -> str:
    """How the first dataset of an HDF5 file is named behind the file's path; empty of files in other formats."""
    if not file.lower().endswith(HDF5):
        return ""
    with suppress(Exception):  # it is damaged, or h5py is missing
        return f":/{at('chunkflow.stores.hdf5.dataset:inside')(file)[0][len(file) :].lstrip(':/')}"
    return UNKNOWN


def _holds(file: str, dataset: str) -> bool:
    """Whether a file has a dataset that the first one has; true where that has none, or its name is not known."""
    if dataset in ("", UNKNOWN):
        return True
    with suppress(Exception):
        return f"{file}{dataset}" in at("chunkflow.stores.hdf5.dataset:inside")(file)
    return False


def _existing(path: str) -> tuple[str, str]:
    """The longest part of a path that exists, and the rest."""
    above = path
    while not os.path.lexists(above) and above != os.path.dirname(above):
        above = os.path.dirname(above)
    return above, path[len(above) :].strip("/")


def _splits(path: str) -> list[tuple[str, str]]:
    """A path's parts before and behind each of its colons."""
    return [(path[:i], path[i + 1 :]) for i, letter in enumerate(path) if letter == ":"]


def _if_empty(path: str) -> str:
    with suppress(OSError):
        return "" if os.listdir(path) else " (it is empty)"
    return ""


def _inside(given: str, path: str) -> str:
    """How to open what a directory holds: the line first, then a few names. Empty if that is not known."""
    with suppress(OSError):
        names = sorted(os.listdir(path))
        for mark, name in MARKS.items():
            if mark in names:
                return f"it is of {name}. Open it with tensorstore.open, and pass the TensorStore"
        for endings in (TIFF, HDF5, (".npy", ".zarr")):
            files = [name for name in names if name.lower().endswith(endings)]
            if not files:
                continue
            ending = os.path.splitext(files[0])[1]
            same, some = [name for name in files if name.endswith(ending)], pattern_of(given, ending)
            if endings == TIFF:
                return f"{some!r} is one array of its files ({listed(same, FEW)})"
            dataset = _dataset(os.path.join(given, files[0]))
            one = os.path.join(given, files[0]) + dataset
            if not all(_holds(os.path.join(given, name), dataset) for name in same[:CHECKED]):
                return f"{one!r} is one of its arrays (its files are {listed(files, FEW)})"
            some += dataset
            return f"{one!r} is one of its arrays; chunkflow.open({some!r}) is one array of all ({listed(same, FEW)})"
    return ""
