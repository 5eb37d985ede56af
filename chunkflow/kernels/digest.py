"""What a computation is, as a digest that is the same in another process: of functions by their code, of data by value.

A function of the user's is known by its code, its defaults, its attributes, what it closes over and the globals that it
names; a class by all its attributes and its bases; a module by those of its attributes that any function met names, by
the way that `mymodule.K` and `getattr(mymodule, "K")` need no reading of code. What is installed is known by its name
and version, and a function that such a one has made also by what it closes over. Other objects are known by what pickle
would store of them, of which nothing is loaded. Fields of dataclasses that hold for one process only have the metadata
``fleeting``.
"""

from __future__ import annotations

import copyreg
import dataclasses
import dis
import hashlib
import importlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from enum import Enum
from fractions import Fraction
from functools import cache, cached_property
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, resolve_name
from pathlib import Path, PurePath
from types import (
    BuiltinFunctionType,
    CodeType,
    EllipsisType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
    NoneType,
)
from typing import Any, NoReturn

import numpy as np

from chunkflow.errors import ArgumentError

_PLAIN = (type(None), bool, int, float, complex, str, bytes, slice, range, Fraction, EllipsisType, np.dtype, PurePath)

_PROTOCOL = 4
"""Of pickle: the first one in which every object says its class, its state and its items by one method."""

_BOOKKEEPING = {
    "__dict__",
    "__weakref__",
    "__doc__",
    "__module__",
    "__qualname__",
    "__annotations__",
    "__annotate__",
} | {
    *("__firstlineno__", "__static_attributes__", "__orig_bases__", "__abstractmethods__", "_abc_impl"),
    *("__dataclass_fields__", "__dataclass_params__", "__match_args__", "__annotate_func__", "__annotations_cache__"),
}
"""Attributes of classes that Python or a decorator derives from the others, or that hold for one process only."""


_PACKAGES = {"site-packages", "dist-packages"}
"""Folders of installed libraries, as they are called in a user's home and by systems, too."""


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
    walk.finish()
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
        self._names: set[str] = set()
        self._modules: list[ModuleType] = []

    def finish(self) -> None:
        """Add what functions use of the modules that were met: the user's, which are known by no version."""
        added = set[tuple[str, str]]()
        while used := [
            (module, name)
            for module in self._modules
            for name in sorted(self._names & vars(module).keys())
            if (module.__name__, name) not in added
        ]:
            for module, name in used:
                added.add((module.__name__, name))
                self._say("attribute", module.__name__, name)
                self.add(vars(module)[name])

    def add(self, value: Any) -> None:
        if isinstance(value, _PLAIN) and _is_installed(type(value)):
            self._say(type(value).__name__, repr(value))
            return
        if id(value) in self._met:
            self._say("met", str(self._met[id(value)]))
            return
        self._met[id(value)] = len(self._met)
        self._kept.append(value)
        self._add(value)

    def _add(self, value: Any) -> None:
        if (type(value) in (np.ndarray, np.memmap) or isinstance(value, np.generic)) and not value.dtype.hasobject:
            array = np.ascontiguousarray(value)
            self._say("array", type(value).__name__, array.dtype.str, str(np.shape(value)))
            self.sha.update(array.reshape(-1).view(np.uint8).data)
        elif type(value) in (tuple, list):
            self._each(type(value).__name__, value)
        elif type(value) in (dict, MappingProxyType):
            self._each("mapping", (part for item in sorted(value.items(), key=repr) for part in item))
        elif type(value) in (set, frozenset):
            self._each("set", sorted(value, key=repr))
        elif isinstance(value, Enum):
            self._each("enum", (type(value), value.name))
        elif isinstance(value, MethodType):
            self._each("method", (value.__func__, value.__self__))
        elif isinstance(value, CodeType):
            self._names.update(_names(value))
            self._each("code", (value.co_code, value.co_names, value.co_flags, value.co_consts))
        elif isinstance(value, ModuleType):
            self._add_module(value)
        elif isinstance(value, np.ufunc):
            self._add_ufunc(value)
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, FunctionType):
            self._add_function(value)
        elif isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, ModuleType | NoneType):
            self._add_named(value)
        elif isinstance(value, staticmethod | classmethod):
            self._each(type(value).__name__, [value.__func__])
        elif isinstance(value, property):
            self._each("property", (value.fget, value.fset, value.fdel))
        elif isinstance(value, cached_property):
            self._each("cached property", [value.func])
        elif dataclasses.is_dataclass(value):
            lasting = [f.name for f in dataclasses.fields(value) if not f.metadata.get("fleeting")]
            self._each("dataclass", (type(value), {name: getattr(value, name) for name in lasting}))
        elif isinstance(value, np.vectorize):  # it keeps a compiled form once it was called
            self._each("vectorize", (value.pyfunc, value.otypes, value.signature, value.excluded))
        elif hasattr(value, "py_func"):  # compiled by numba, which gives each a random number
            self._each("compiled", (type(value), value.py_func))
        elif hasattr(value, "detach") and hasattr(value, "__array__"):  # of torch, which would say where it lies
            self._each("tensor", (type(value), np.asarray(value.detach().cpu())))
        elif _is_installed(value) and callable(value) and _is_importable(value):
            self._add_named(value)
        else:
            self._add_object(value)

    def _add_named(self, value: Any) -> None:
        module = getattr(value, "__module__", None) or ""
        self._say("named", module, getattr(value, "__qualname__", type(value).__qualname__), version_of(module))

    def _add_module(self, module: ModuleType) -> None:
        self._say("module", module.__name__, version_of(module.__name__))
        if not _in_library(module.__name__):
            self._modules.append(module)

    def _add_class(self, value: type) -> None:
        self._add_named(value)
        if _is_installed(value):
            return
        self._each("class", (type(value), *value.__bases__))
        if issubclass(value, Enum):
            parts: dict[str, Any] = {name: member.value for name, member in value.__members__.items()}
            parts |= {name: part for name, part in vars(value).items() if isinstance(part, FunctionType)}
        else:
            parts = {name: part for name, part in vars(value).items() if name not in _BOOKKEEPING}
        self.add(parts)

    def _add_ufunc(self, value: np.ufunc) -> None:
        name = value.__name__
        for module in (np, *list(sys.modules.values())):
            if vars(module).get(name) is value and _in_library(module.__name__):
                self._say("ufunc", module.__name__, name, version_of(module.__name__))
                return
        _refuse(value)  # it may be made of any function

    def _add_function(self, fn: FunctionType) -> None:
        if not _is_installed(fn):
            self._each(
                "function", (fn.__code__, fn.__defaults__, fn.__kwdefaults__, _cells(fn), _globals(fn), vars(fn))
            )
            self._each("imports", _imported(fn))
            return
        self._add_named(fn)
        self.sha.update(fn.__code__.co_code)
        if fn.__closure__ and not _is_importable(fn):
            self._each("of", (fn.__code__, fn.__defaults__, fn.__kwdefaults__, _cells(fn)))

    def _add_object(self, value: Any) -> None:
        """Add an object by its class, its state and its items, as pickle would."""
        reduce = copyreg.dispatch_table.get(type(value))
        try:
            found = value.__reduce_ex__(_PROTOCOL) if reduce is None else reduce(value)
        except Exception:  # whatever a class raises that is not to be pickled
            found = None
        if isinstance(found, tuple):
            make, arguments, *rest = found
            items = [None if part is None else list(part) for part in rest[1:]]  # of a list's, and of a mapping's kind
            self._each("object", (make, arguments, *rest[:1], *items))
            return
        wrapped = getattr(value, "__wrapped__", None)
        if wrapped is None:
            _refuse(value)
        self._each("wrapped", (type(value), wrapped))

    def _each(self, kind: str, parts: Iterable[Any]) -> None:
        self._say(kind)
        for part in parts:
            self.add(part)
        self._say("end")

    def _say(self, *words: str) -> None:
        for word in words:
            encoded = word.encode(errors="surrogatepass")
            self.sha.update(b"%d:%b" % (len(encoded), encoded))


def _refuse(value: Any) -> NoReturn:
    raise ArgumentError(
        f"resume=True: whether {value!r} is the same in another process cannot be told: give name=, a name that "
        "stands for the function, and change it with the function"
    )


def _cells(fn: FunctionType) -> list[Any]:
    """What a function closes over; an empty list for a name that has no value yet."""
    found: list[Any] = []
    for cell in fn.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            found.append([])
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code and that of its inner ones."""
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _codes(part)


def _names(code: CodeType) -> set[str]:
    """Globals, attributes and imported things that code names, and its words, by one of which it may ask for them."""
    return {*code.co_names, *(part for part in code.co_consts if isinstance(part, str) and part.isidentifier())}


def _globals(fn: FunctionType) -> dict[str, Any]:
    """The globals that a function names, inner functions included."""
    names = {name for code in _codes(fn.__code__) for name in code.co_names}
    return {name: fn.__globals__[name] for name in names if name in fn.__globals__}


def _imported(fn: FunctionType) -> list[ModuleType | str]:
    """The modules that a function imports when it runs. Those of the user are imported for that."""
    found: list[ModuleType | str] = []
    for code in _codes(fn.__code__):
        steps = list(dis.get_instructions(code))
        for level, parts, step in zip(steps, steps[1:], steps[2:], strict=False):
            if step.opname == "IMPORT_NAME":  # the two constants before it are its other operands
                said = "." * int(level.argval or 0) + step.argval
                try:
                    found += _modules(resolve_name(said, fn.__globals__.get("__package__")), parts.argval or ())
                except Exception:  # the function's own import says why, if it comes to that
                    found.append(said)
    return found


def _modules(name: str, parts: Iterable[str]) -> Iterator[ModuleType | str]:
    """A module, and those of its parts that are modules, too. What is installed is known by its version."""
    if _in_library(name):
        yield f"{name} {version_of(name)}"
        return
    module = importlib.import_module(name)
    yield module
    for part in parts if hasattr(module, "__path__") else ():
        if not hasattr(module, part) and _found(f"{name}.{part}"):
            yield importlib.import_module(f"{name}.{part}")


def _is_importable(fn: FunctionType) -> bool:
    """Whether a function is the one that its module has under its name, and none that another one has made."""
    found: Any = sys.modules.get(fn.__module__)
    for name in fn.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is fn


def _is_installed(value: Any) -> bool:
    """Whether something is defined in an installed library or in Python's own, and has a name there."""
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", "<")
    return isinstance(module, str) and "<" not in name and _in_library(module)


@cache
def _in_library(module: str) -> bool:
    top = module.partition(".")[0]
    if top in {"chunkflow", "builtins"}:
        return True
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None) if loaded else getattr(_found(top), "origin", None)
    if file is None or file in {"built-in", "frozen"}:
        return top in sys.stdlib_module_names
    installed = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return not _PACKAGES.isdisjoint(Path(file).parts) or any(Path(file).is_relative_to(path) for path in installed)


def _found(module: str) -> ModuleSpec | None:
    try:
        return find_spec(module)
    except ValueError:  # of one that has no specification, as that of a notebook
        return None


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
