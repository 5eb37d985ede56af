"""What other libraries' words are here: functions, attributes of arrays and keywords, with the line that works."""

from __future__ import annotations

from collections.abc import Iterable

_OPEN = "chunkflow.open(x) takes arrays, paths and URLs; and so does each operation"
_BLOCKS = "its blocks are planned when it runs, and chunkflow.explain(x) shows them"
_CHUNKS = (
    f"{_BLOCKS}. repr() of an opened array shows the chunks that it is stored in; x.to_zarr(path, chunks=...), or "
    "chunkflow.rechunk(path, chunks, out), stores others. Inside an xarray object an expression has chunks: "
    "import chunkflow.xarray before the object is made"
)
_STORE = "chunkflow.store(x, path) writes it: the path ends in .zarr, .npy, .h5:/name or .tif"
_COMPUTE = "x.compute() gives a NumPy array"
_MAP = "x.map(fn), or chunkflow.map(fn, x, y), calls a function with blocks"

_LABELS = (
    "labels are xarray's: after import chunkflow.xarray, xarray.open_dataset(path, chunks={}, "
    "chunked_array_type='chunkflow') streams what it computes"
)
_NUMPYS = "NumPy's functions take it, as np.quantile(x, q, axis) and np.nanmean(x, axis)"

_FILTER = (
    "chunkflow.map_overlap(fn, x, depth=...) gives each block the neighbours that a filter needs, as "
    "scipy.ndimage.gaussian_filter; chunkflow.convolve(x, weights) has weights"
)
_LABEL = (
    "objects of a whole array are found by other libraries, as scipy.ndimage.label; chunkflow.label_statistics(x, "
    "labels) measures them"
)

FUNCTIONS = {
    "array": _OPEN,
    "asarray": _OPEN,
    "from_array": _OPEN,
    "from_zarr": _OPEN,
    "from_npy_stack": _OPEN,
    "imread": _OPEN,
    "load": _OPEN,
    "open_array": _OPEN,
    "open_dataset": f"{_OPEN}. import chunkflow.xarray has what xarray opens streamed",
    "open_zarr": _OPEN,
    "open_mfdataset": f"{_OPEN}. import chunkflow.xarray has what xarray opens streamed",
    "polyfit": "np.polyfit takes expressions",
    "rolling": "chunkflow.sliding_window_view(x, window, axis) has reductions",
    "groupby": "chunkflow.groupby_reduce(x, labels, func=..., axis=...) reduces groups",
    "read": _OPEN,
    "map_blocks": _MAP,
    "apply": _MAP,
    "stats": "chunkflow.mean(x), min, max and std are functions, and `chunkflow stats FILE` is a command of the shell",
    "info": "repr(chunkflow.open(path)) shows an array, and `chunkflow info FILE` is a command of the shell",
    "run": "chunkflow.map(fn, x) and chunkflow.store(x, path) compute, and `chunkflow run` is a command of the shell",
    "convert": "chunkflow.copy(path, out) copies into any format",
    "doctor": "`chunkflow doctor` is a command of the shell",
    "delayed": "there are no tasks of any objects: chunkflow.map(fn, x) calls a function with blocks",
    "persist": "x.persist() keeps an expression's parts on dask's workers, and x.to_zarr(path) in a file",
    "visualize": "chunkflow.explain(x) shows the plan",
    "save": _STORE,
    "to_hdf5": _STORE,
    "to_npy": _STORE,
    "to_tiff": _STORE,
    "to_zarr": _STORE,
    "asnumpy": _COMPUTE,
    **dict.fromkeys(("filter", "gaussian_filter", "median_filter", "uniform_filter", "maximum_filter"), _FILTER),
    **dict.fromkeys(("gaussian", "gaussian_blur", "laplace", "sobel", "minimum_filter", "percentile_filter"), _FILTER),
    **dict.fromkeys(("label", "regionprops", "connected_components", "find_objects", "watershed"), _LABEL),
}
"""Functions that the package does not have."""

_OF_NUMPY = (
    *("nanmax", "nanmean", "nanmedian", "nanmin", "nanquantile", "nanstd", "nansum", "nanvar"),
    *("percentile", "polyfit", "quantile"),
)
_OF_XARRAY = (
    *("assign_coords", "attrs", "chunk", "coords", "dims", "groupby", "isel", "name", "rename", "resample"),
    *("rolling", "sel", "to_dataset", "to_netcdf"),
)

ATTRIBUTES = {
    "chunks": _CHUNKS,
    "rechunk": _CHUNKS,
    "chunksize": _CHUNKS,
    "numblocks": _BLOCKS,
    "npartitions": _BLOCKS,
    "blocks": _BLOCKS,
    "partitions": _BLOCKS,
    "map_blocks": _MAP,
    "to_hdf5": _STORE,
    "to_npy_stack": _STORE,
    "to_tiff": _STORE,
    "save": _STORE,
    "store": _STORE,
    "write": _STORE,
    "load": _COMPUTE,
    "get": _COMPUTE,
    "numpy": _COMPUTE,
    "to_numpy": _COMPUTE,
    "explain": "chunkflow.explain(x, budget=...) shows the plan",
    "show": "chunkflow.explain(x) shows the plan",
    "stats": "x.mean(), x.min(), x.max() and x.std() are expressions: chunkflow.compute(...) has one pass for all",
    "median": "np.median(x, axis) is an expression",
    **dict.fromkeys(("avg", "average"), "x.mean() is an expression, and chunkflow.average(x, weights=...)"),
    **dict.fromkeys(_OF_NUMPY, _NUMPYS),
    **dict.fromkeys(_OF_XARRAY, _LABELS),
    "values": _COMPUTE,
    "view": "astype() converts elements, and numpy.ma's own functions take no expressions. Of masked ones NumPy's do "
    "what these do: np.dot(x, y), not np.ma.dot(x, y)",
}
"""Attributes that expressions do not have."""

_RUNNING = "device= says where it is computed, and budget= in how much memory"

KEYWORDS = {
    "scheduler": _RUNNING,
    "num_workers": _RUNNING,
    "n_workers": _RUNNING,
    "processes": _RUNNING,
    "memory_limit": _RUNNING,
    "max_memory": _RUNNING,
    "allowed_mem": _RUNNING,
    "gpu": _RUNNING,
    "chunks": "blocks are planned; chunks of an output are for store(), to_zarr() and rechunk()",
    "chunksize": "blocks are planned; chunks= of an output are for store(), to_zarr() and rechunk()",
    "compute": "this call computes; what is not computed yet is the expression",
    "out": "chunkflow.store(x, path) writes an expression: the path ends in .zarr, .npy, .h5:/name or .tif",
    "dtype": "x.astype(dtype) of what chunkflow.open gives converts it",
    "mode": "arrays are opened for reading, and overwrite=True replaces an output that exists",
    "region": "chunkflow.ExistingArray(path, region=...) is an output",
    "component": "the path of a member names it, as 'x.zarr/u' or 'x.h5:/u'",
    "compressor": "chunkflow.NewArray(path, compressors=...) is an output",
    "compressors": "chunkflow.NewArray(path, compressors=...) is an output",
    "compression": "chunkflow.NewArray(path, compressors=...) is an output",
    "return_stored": "what is stored is opened again by chunkflow.open(path)",
    "lock": "no lock is needed",
    "meta": "dtype= says what a function gives",
    "optimize_graph": "expressions are always optimized",
}
"""Keywords that functions do not have."""


def hint(unknown: Iterable[str]) -> str:
    """What other libraries' keywords are here: the end of a sentence, or empty.

    >>> hint(["foo"])
    ''
    """
    return "".join(f"; {said}" for said in dict.fromkeys(KEYWORDS.get(name, "") for name in sorted(unknown)) if said)
