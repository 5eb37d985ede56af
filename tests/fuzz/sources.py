"""Where a program's arrays come from, and where its results go."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tests.fuzz.drawing import MOST, Drawing

DTYPES = ("f8", "i4", "f4", "?", "u1", "i8", "i2", "u8", "c16", "i1", "u2", "u4", "f2", "c8")
SPECIAL = ("nan", "0.0", "-0.0", "inf", "-inf", "3.0")


def shape(d: Drawing) -> tuple[int, ...]:
    """A shape of few elements, or of none."""
    if d.chance(4):
        return (d.integer(1, MOST),)
    sides = [d.integer(1, 9) for _ in range(d.choice([2, 1, 3, 2, 4, 0]))]
    if sides and d.chance(4):
        sides[d.integer(0, len(sides) - 1)] = 0
    elif sides and d.chance(25):
        place = d.integer(0, len(sides) - 1)
        sides[place] = d.integer(1, max(1, MOST // max(1, math.prod(sides))))
    return tuple(sides)


def data(d: Drawing) -> str:
    """A NumPy array, in text."""
    sides, dtype = shape(d), np.dtype(d.choice(DTYPES))
    if dtype.itemsize > 1 and d.chance(15):
        dtype = dtype.newbyteorder(">")
    named, begin = f"{dtype.str!r}", f"np.random.default_rng({d.seed()})"
    if dtype.kind == "b":
        return f'np.asarray({begin}.integers(0, 2, {sides})).astype("?")'
    if dtype.kind in "iu":
        if d.chance(20):  # numbers of all sizes: sums wrap around, and are no longer doubles
            limits = np.iinfo(dtype)
            native = dtype.newbyteorder("=").str
            how = f"{limits.min}, {limits.max}, {sides}, {native!r}, endpoint=True"
            return f"np.asarray({begin}.integers({how})).astype({named})"
        return f"np.asarray({begin}.integers({-9 if dtype.kind == 'i' else 0}, 10, {sides})).astype({named})"
    if dtype.kind == "f" and d.chance(35):
        some = [*(SPECIAL[d.integer(0, len(SPECIAL) - 1)] for _ in range(d.integer(1, 3))), "1.5", "-2.25", "1.5"]
        return f"np.asarray({begin}.choice([{', '.join(some)}], {sides})).astype({named})"
    if dtype.kind == "f" and d.chance(40):
        return f"np.asarray({begin}.standard_normal({sides})).astype({named})"
    values = f"{begin}.integers(-20, 21, {sides}) / 4"
    if dtype.kind == "c":
        values += f" + 1j * np.random.default_rng({d.seed()}).integers(-20, 21, {sides})"
    return f"np.asarray({values}).astype({named})"


# -- Sources -------------------------------------------------------------------------------------------------


class SourceKind(NamedTuple):
    """A kind of sources: the lines that make one of the array ``<a>`` under the name ``<x>``."""

    name: str
    lines: Callable[[Drawing, np.ndarray], list[str]]
    suits: Callable[[np.ndarray], bool] = lambda array: True
    must_raise: bool = False


def _zarr_options(d: Drawing, array: np.ndarray, version: int) -> str:
    """Keyword arguments of a new zarr array, in text."""
    sides = d.sides(array.shape)
    options = [f"zarr_format={version}", f"chunks={sides}"]
    if version == 3 and array.ndim and d.chance(35):
        options.append(f"shards={tuple(side * d.integer(1, 3) for side in sides)}")
    if array.dtype.kind != "b" and d.chance(20):  # chunks that hold nothing else are not stored
        options.append("fill_value=1")
    packed = d.choice(["None", "auto", "zstd", "gzip", "blosc", "crc32c"])
    if version == 3 and packed in CODECS:
        options.append(f"compressors=[zarr.codecs.{CODECS[packed]}]")
    elif packed == "None":
        options.append("compressors=None")
    if version == 2 and array.ndim and d.chance(20):
        options.append('order="F"')
    return ", ".join(options)


CODECS = {
    "zstd": "ZstdCodec()",
    "gzip": "GzipCodec()",
    "blosc": 'BloscCodec(cname="lz4", shuffle="shuffle")',
    "crc32c": "Crc32cCodec()",
}


def _zarr(version: int, as_path: bool) -> Callable[[Drawing, np.ndarray], list[str]]:
    def lines(d: Drawing, array: np.ndarray) -> list[str]:
        make = f'zarr.create_array(folder / "<x>.zarr", data=<a>, {_zarr_options(d, array, version)})'
        return [f"<x> = {make}", *(['<x> = folder / "<x>.zarr"'] if as_path else [])]

    return lines


def _hdf5_options(d: Drawing, array: np.ndarray) -> str:
    """Further keyword arguments of a new dataset, in text."""
    if not array.size or not array.ndim or not d.chance(70):
        return ""
    options = f", chunks={d.sides(array.shape)}"
    return options + d.choice(["", ', compression="gzip"', ', compression="gzip", shuffle=True', ", fletcher32=True"])


def _hdf5(as_path: bool) -> Callable[[Drawing, np.ndarray], list[str]]:
    def lines(d: Drawing, array: np.ndarray) -> list[str]:
        make = f'create_dataset("d", data=<a>{_hdf5_options(d, array)})'
        if not as_path:
            return [f'<x> = h5py.File(folder / "<x>.h5", "w").{make}']
        return [
            'with h5py.File(folder / "<x>.h5", "w") as file:',
            f"    _ = file.{make}",
            '<x> = f"{folder}/<x>.h5:/d"',
        ]

    return lines


def _dims(array: np.ndarray) -> list[str]:
    return [f"d{axis}" for axis in range(array.ndim)]


def _native(array: np.ndarray) -> bool:
    return array.dtype.isnative


SOURCES = (
    SourceKind("array", lambda d, a: ["<x> = <a>.copy()"]),
    SourceKind("Fortran order", lambda d, a: ['<x> = <a>.copy(order="F")'], lambda a: a.ndim > 1),
    SourceKind(
        "strides",
        lambda d, a: [f"<x> = np.repeat(<a>, 2, {(axis := d.integer(0, a.ndim - 1))})[{':, ' * axis}::2]"],
        lambda a: a.ndim > 0,
    ),
    SourceKind(
        "negative strides",
        lambda d, a: [f"<x> = np.flip(np.flip(<a>, {(axis := d.integer(0, a.ndim - 1))}).copy(), {axis})"],
        lambda a: a.ndim > 0,
    ),
    SourceKind("read-only", lambda d, a: ["<x> = <a>.copy()", "<x>.flags.writeable = False"]),
    SourceKind("npy", lambda d, a: ['np.save(folder / "<x>.npy", <a>)', '<x> = folder / "<x>.npy"']),
    SourceKind(
        "npy in Fortran order",
        lambda d, a: ['np.save(folder / "<x>.npy", <a>.copy(order="F"))', '<x> = folder / "<x>.npy"'],
        lambda a: a.ndim > 1,
    ),
    SourceKind(
        "memmap",
        lambda d, a: ['np.save(folder / "<x>.npy", <a>)', '<x> = np.load(folder / "<x>.npy", mmap_mode="r")'],
        lambda a: a.size > 0,
    ),
    SourceKind("zarr 2 path", _zarr(2, True)),
    SourceKind("zarr 3 path", _zarr(3, True), _native),
    SourceKind("zarr 2 array", _zarr(2, False)),
    SourceKind("zarr 3 array", _zarr(3, False), _native),
    SourceKind(
        "url",
        lambda d, a: [
            '<x> = f"memory://{folder.name}/<x>.zarr"',
            f"_ = zarr.create_array(<x>, data=<a>, {_zarr_options(d, a, 3)})",
        ],
        _native,
    ),
    SourceKind("hdf5 path", _hdf5(True)),
    SourceKind("hdf5 dataset", _hdf5(False)),
    SourceKind("dask", lambda d, a: [f"<x> = da.from_array(<a>, chunks={d.sides(a.shape)})"]),
    SourceKind("xarray", lambda d, a: [f"<x> = xr.DataArray(<a>.copy(), dims={_dims(a)})"]),
    SourceKind(
        "xarray of dask",
        lambda d, a: [f"<x> = xr.DataArray(da.from_array(<a>, chunks={d.sides(a.shape)}), dims={_dims(a)})"],
    ),
    SourceKind("array-like", lambda d, a: ["<x> = ArrayLike(<a>)"]),
    SourceKind(
        "array-like, masked",
        lambda d, a: ["<x> = ArrayLike(np.ma.masked_array(<a>, np.ones(<a>.shape, bool)))"],
        lambda a: a.size > 0,
        must_raise=True,
    ),
    SourceKind(
        "dask, masked",
        lambda d, a: [
            f"<x> = da.from_array(<a>, chunks={d.sides(a.shape)})",
            "<x> = <x>.map_blocks(lambda b: np.ma.masked_array(b, np.ones(b.shape, bool)), meta=<x>._meta)",
        ],
        lambda a: a.size > 0,
        must_raise=True,
    ),
)


# -- Outs ----------------------------------------------------------------------------------------------------


class Out(NamedTuple):
    """A place for a result: lines before the call, what ``out=`` is, and what to read afterwards."""

    name: str
    before: list[str]
    out: str
    read: str


WIDER = {"f4": "f8", "f2": "f4", "c8": "c16", "i4": "f8", "i2": "i8", "u1": "i4"}
"""Dtypes of outputs that hold another one, which are read in that."""


def zarr_out(y: str) -> Out:
    """A zarr array that the run creates."""
    path = f'folder / "{y}.zarr"'
    return Out("zarr path", [], path, f'zarr.open_array({path}, mode="r")[...]')


def out(d: Drawing, y: str, array: np.ndarray) -> Out | None:
    """Where a result goes: in most cases into a new array."""
    if not d.chance(35) and not any(name.startswith("out=") for name in d.among):
        return None
    dtype = array.dtype.newbyteorder("=")
    if dtype.itemsize > 1 and d.chance(10):
        dtype = dtype.newbyteorder(">")
    like = f"{array.shape}, {dtype.str!r}"
    version = d.choice([2, 3])
    zarr_options = _zarr_options(d, array, version)
    npy, zarr, hdf5 = (f'folder / "{y}.{ending}"' for ending in ("npy", "zarr", "h5"))
    choices: list[Out] = [
        Out("array", [f"{y} = np.empty({like})"], y, y),
        Out("array in Fortran order", [f'{y} = np.empty({like}, order="F")'], y, y),
        Out("npy path", [], npy, f"np.load({npy})"),
        zarr_out(y),
        Out("url", [f'{y} = f"memory://{{folder.name}}/{y}.zarr"'], y, f'zarr.open_array({y}, mode="r")[...]'),
        Out("hdf5 path", [], f'str({hdf5}) + ":/d"', f'h5py.File({hdf5})["d"][()]'),
        Out(
            f"zarr {version} array",
            [f"{y} = zarr.create_array({zarr}, shape={array.shape}, dtype={array.dtype.str!r}, {zarr_options})"],
            y,
            f"{y}[...]",
        ),
        Out(
            "hdf5 dataset",
            [f'{y} = h5py.File({hdf5}, "w").create_dataset("d", {like}{_hdf5_options(d, array)})'],
            y,
            f"{y}[()]",
        ),
    ]
    wider = WIDER.get(array.dtype.newbyteorder("=").str[1:])
    if wider:
        choices.append(
            Out("wider", [f"{y} = np.empty({array.shape}, {wider!r})"], y, f"{y}.astype({array.dtype.str!r})")
        )
    if array.ndim:
        axis = d.integer(0, array.ndim - 1)
        wide = tuple(2 * n if a == axis else n for a, n in enumerate(array.shape))
        choices.append(
            Out("strided array", [f"{y} = np.empty({wide}, {dtype.str!r})[{':, ' * axis}::2]"], y, y),
        )
    if array.size:
        make = f'np.lib.format.open_memmap({npy}, "w+", {dtype.str!r}, {array.shape})'
        choices.append(Out("memmap", [f"{y} = {make}"], y, f"np.load({npy})"))
    return d.only("out", choices)


def in_place(d: Drawing, y: str, array: np.ndarray) -> Out:
    """An array that is both read and written: ``<0>`` is what it holds before."""
    writable = ("array", "strides", "zarr 2 array", "zarr 3 array", "hdf5 dataset")
    kind = d.choice([kind for kind in SOURCES if kind.name in writable and kind.suits(array)])
    return Out("in place", named(kind.lines(d, array), a="<0>", x=y), y, f"{y}[()]")


def named(lines: list[str], **texts: Any) -> list[str]:
    """Lines with names in the places of ``<x>`` and so on."""
    found = []
    for line in lines:
        for name, text in texts.items():
            line = line.replace(f"<{name}>", text)
        found.append(line)
    return found
