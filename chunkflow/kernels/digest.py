"""What a computation is, as a digest that is the same in another process: of functions by their code, of data by value.

A function of the user's is known by its code, its defaults, what it closes over and the globals that it names. What is
installed is known by its name and version, and a function that such a one has made also by what it closes over. Fields
of dataclasses that hold for one process only have the metadata ``fleeting``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from fractions import Fraction
from functools import cache, partial
from pathlib import Path, PurePath
from types import BuiltinFunctionType, CodeType, EllipsisType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from chunkflow.errors import ArgumentError

_PLAIN = (type(None), bool, int, float, complex, str, bytes, slice, range, Fraction, EllipsisType, np.dtype, PurePath)

_PYTHONS = 1 << 9
"""Flag of a type that a program has defined: its objects are what their attributes are."""


def digest(value: Any) -> str:
    """The digest of a function, of its arguments, or of a kernel.

    Raises
    ------
    ArgumentError
        It has a part that may be another one in each process, as an open file.

    Examples
    --------
    >>> digest(lambda x: x + 1) == digest(lambda x: x + 1), digest(lambda x: x + 1) == digest(lambda x: x + 2)
    (True, False)
    """
    walk = _Walk()
    walk.add(value)
    return walk.sha.hexdigest()


def without_functions(value: Any) -> Any:
    """What a digest takes of a value in which a name stands for functions, and for what has no digest.

    >>> digest(without_functions((max, abs, 1))) == digest(without_functions((lambda x: x, abs, 1)))
    False
    >>> made = [partial(lambda x, y: x, y) for y in (1, 2)]
    >>> [without_functions(fn) for fn in made]
    ['a function', 'a function']
    """
    if isinstance(value, tuple | list):
        return [without_functions(part) for part in value]
    if isinstance(value, dict):
        return {key: without_functions(part) for key, part in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        lasting = [f.name for f in dataclasses.fields(value) if not f.metadata.get("fleeting")]
        return [type(value), {name: without_functions(getattr(value, name)) for name in lasting}]
    if callable(value) and not isinstance(value, np.ufunc | type | BuiltinFunctionType):
        return "a function"
    try:
        return digest(value)
    except ArgumentError:
        return type(value).__qualname__


class _Walk:
    """Feeds a digest. What was met before, as in a function that calls itself, is known by its place."""

    def __init__(self) -> None:
        self.sha = hashlib.sha256()
        self._met: dict[int, int] = {}
        self._kept: list[Any] = []  # or an object's number may become another's

    def add(self, value: Any) -> None:
        if isinstance(value, _PLAIN):
            self._say(type(value).__name__, repr(value))
            return
        if id(value) in self._met:
            self._say("met", str(self._met[id(value)]))
            return
        self._met[id(value)] = len(self._met)
        self._kept.append(value)
        self._add(value)

    def _add(self, value: Any) -> None:
        if isinstance(value, np.ndarray | np.generic):
            array = np.ascontiguousarray(value)
            self._say("array", array.dtype.str, str(np.shape(value)))
            self.sha.update(array.reshape(-1).view(np.uint8).data)
        elif isinstance(value, tuple | list):
            self._each(type(value).__name__, value)
        elif isinstance(value, Mapping):
            self._each("mapping", (part for item in sorted(value.items(), key=repr) for part in item))
        elif isinstance(value, set | frozenset):
            self._each("set", sorted(value, key=repr))
        elif isinstance(value, Enum):
            self._say("enum", type(value).__qualname__, value.name)
        elif isinstance(value, partial):
            self._each("partial", (value.func, value.args, value.keywords))
        elif isinstance(value, MethodType):
            self._each("method", (value.__func__, value.__self__))
        elif isinstance(value, CodeType):
            self._each("code", (value.co_code, value.co_names, value.co_flags, value.co_consts))
        elif isinstance(value, ModuleType):
            self._say("module", value.__name__, version_of(value.__name__))
        elif isinstance(value, np.ufunc):
            self._say("ufunc", value.__name__, np.__version__)
        elif isinstance(value, type | BuiltinFunctionType) or _is_installed(value):
            module = getattr(value, "__module__", None) or ""
            self._say("named", module, getattr(value, "__qualname__", type(value).__qualname__), version_of(module))
            if isinstance(value, FunctionType):
                self.add(value.__code__)
                if value.__closure__ and not _is_importable(value):
                    self._each("of", (value.__defaults__, value.__kwdefaults__, _cells(value)))
            elif isinstance(value, type) and not _is_installed(value):
                self._each("methods", [part for part in vars(value).values() if isinstance(part, FunctionType)])
        elif isinstance(value, FunctionType):
            uses = _cells(value), _globals(value)
            self._each("function", (value.__code__, value.__defaults__, value.__kwdefaults__, *uses))
        elif dataclasses.is_dataclass(value):
            lasting = [f.name for f in dataclasses.fields(value) if not f.metadata.get("fleeting")]
            self._each("dataclass", (type(value), {name: getattr(value, name) for name in lasting}))
        elif type(value).__flags__ & _PYTHONS and hasattr(value, "__dict__"):
            self._each("object", (type(value), vars(value)))
        else:
            raise ArgumentError(
                f"resume=True: whether {value!r} is the same in another process cannot be told: give name=, a "
                "name that stands for the function, and change it with the function"
            )

    def _each(self, kind: str, parts: Iterable[Any]) -> None:
        self._say(kind)
        for part in parts:
            self.add(part)
        self._say("end")

    def _say(self, *words: str) -> None:
        for word in words:
            encoded = word.encode(errors="surrogatepass")
            self.sha.update(b"%d:%b" % (len(encoded), encoded))


def _cells(fn: FunctionType) -> list[Any]:
    """What a function closes over; an empty list for a name that has no value yet."""
    found: list[Any] = []
    for cell in fn.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            found.append([])
    return found


def _globals(fn: FunctionType) -> dict[str, Any]:
    """The globals that a function names, inner functions included."""
    names = set[str]()

    def collect(code: CodeType) -> None:
        names.update(code.co_names)
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                collect(inner)

    collect(fn.__code__)
    return {name: fn.__globals__[name] for name in names if name in fn.__globals__}


def _is_importable(fn: FunctionType) -> bool:
    """Whether a function is the one that its module has under its name, and none that another one has made."""
    found: Any = sys.modules.get(fn.__module__)
    for name in fn.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is fn


def _is_installed(value: Callable[..., Any]) -> bool:
    """Whether something is defined in an installed library or in Python's own, and has a name there."""
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", "<")
    return isinstance(module, str) and "<" not in name and _in_library(module)


@cache
def _in_library(module: str) -> bool:
    if module.partition(".")[0] in {"chunkflow", "builtins"}:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return module in sys.builtin_module_names
    paths = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return any(Path(file).is_relative_to(path) for path in paths)


@cache
def version_of(module: str) -> str:
    """Version of the library that a module is of; Python's for its own."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or not top:
        return sys.version
    found = getattr(sys.modules.get(top), "__version__", None)
    if found is not None:
        return str(found)
    from importlib import metadata  # not at the top: it takes as long as a tenth of this library

    try:
        return metadata.version(top)
    except metadata.PackageNotFoundError:
        return ""
