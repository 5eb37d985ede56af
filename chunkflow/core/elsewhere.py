"""What other libraries' words are here: functions, attributes of arrays and keywords, with the line that works."""

from __future__ import annotations

from collections.abc import Callable, Iterable

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

_DASKS = "x.to_dask() is a dask array, whose tasks run it"

_LABELS = (
    "labels are xarray's: after import chunkflow.xarray, xarray.open_dataset(path, chunks={}, "
    "chunked_array_type='chunkflow') streams what it computes"
)
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
    "rolling": "chunkflow.sliding_window_view(x, window, axis) has reductions",
    "groupby": "chunkflow.groupby_reduce(x, labels, func=..., axis=...) reduces groups",
    "read": _OPEN,
    "push": "chunkflow.ffill(x, axis) fills forward",
    **dict.fromkeys(("svd", "svd_compressed", "tsqr", "pca"), "np.linalg.svd and np.linalg.qr take expressions"),
    **dict.fromkeys(("solve", "inv", "det", "eigh", "cholesky"), "np.linalg's functions take expressions"),
    "linalg": "NumPy's functions of that module take expressions",
    "ma": "NumPy's functions take expressions of masked arrays, which chunkflow.open(array) makes",
    **dict.fromkeys(("zoom", "downsample", "pyramid"), "chunkflow.coarsen(fn, x, {0: 2}) has coarser levels"),
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

_OF_XARRAY = (
    *("assign_coords", "attrs", "chunk", "coords", "dims", "dt", "encoding", "equals", "groupby", "groupby_bins"),
    *("idxmax", "idxmin", "identical", "isel", "loc", "name", "plot", "rank", "rename", "resample", "rolling", "sel"),
    *("sizes", "to_dataframe", "to_dataset", "to_netcdf", "unstack"),
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
    **dict.fromkeys(
        ("isnull", "notnull", "dropna"), "np.isnan(x) is an expression, and reductions of NaN are nansum and so on"
    ),
    "fillna": "np.where(np.isnan(x), value, x) is an expression, or np.nan_to_num(x)",
    **dict.fromkeys(("sort_values", "sortby"), "np.sort(x, axis) is an expression, and chunkflow.sort"),
    "reduce": "np.add.reduce(x, axis) and so on are expressions, and chunkflow.reduction(x, chunk, aggregate)",
    "shift": "np.roll(x, shift, axis) is an expression, and chunkflow.pad(x[1:], ...) has other values at the edge",
    "weighted": "chunkflow.average(x, weights=...) is an expression",
    "count": "(~np.isnan(x)).sum(axis) is an expression",
    "vindex": "x[rows, columns] takes arrays of places, as NumPy's",
    "moment": "((x - x.mean()) ** order).mean() is an expression",
    "argtopk": "np.argsort(x, axis) is an expression, and chunkflow.topk(x, k) has the values",
    "pipe": "call the function with it: fn(x)",
    "numel": "x.size is the number of elements",
    "dim": "x.ndim is the number of axes",
    "unsqueeze": "np.expand_dims(x, axis) is an expression, and x[None]",
    "permute": "x.transpose(axes) is an expression",
    **dict.fromkeys(("tolist", "tobytes", "tostring", "flat", "to_pandas", "to_series"), _COMPUTE),
    **dict.fromkeys(("cuda", "cpu", "to", "to_backend"), "x.compute(device='cuda') says where it is computed"),
    **dict.fromkeys(("dask", "to_delayed", "compute_chunk_sizes", "unify_chunks", "to_dask_dataframe"), _DASKS),
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
    "output_dtypes": "dtype= says what a function gives",
    "axes": "core dimensions are the last axes: np.moveaxis brings others there",
    "meta": "dtype= says what a function gives",
    "optimize_graph": "expressions are always optimized",
}
"""Keywords that functions do not have."""


def attribute(name: str, functions: Iterable[str], numpys: Callable[[str], bool]) -> str:
    """The line that does what an attribute of other arrays does; empty where none is known.

    `functions` are the package's own, and `numpys` says which of NumPy's take expressions.

    >>> attribute("topk", ["topk"], lambda name: False)
    'chunkflow.topk does it'
    """
    if name in ATTRIBUTES:
        return ATTRIBUTES[name]
    if name in functions:
        return f"chunkflow.{name} does it"
    return f"np.{name}(x, ...) does it" if numpys(name) else ""


def function(name: str, numpys: Callable[[str], bool]) -> str:
    """The line that does what a function of other libraries does; empty where none is known.

    >>> function("tile", lambda name: True)
    'np.tile(chunkflow.open(x), ...) does it'
    """
    return FUNCTIONS.get(name) or (f"np.{name}(chunkflow.open(x), ...) does it" if numpys(name) else "")


def hint(unknown: Iterable[str]) -> str:
    """What other libraries' keywords are here: the end of a sentence, or empty.

    >>> hint(["foo"])
    ''
    """
    return "".join(f"; {said}" for said in dict.fromkeys(KEYWORDS.get(name, "") for name in sorted(unknown)) if said)
