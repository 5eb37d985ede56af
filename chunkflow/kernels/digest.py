"""What a computation is, as a digest that is the same in another process: of functions by their code, of data by value.

A function of the user's is known by its code, its defaults, its attributes, what it closes over, and the globals, the
imports and the variables of the environment that it names; a class by its attributes and its bases; a module by those
of its attributes that any function met names. What is installed is known by its name and version, and a function that
such a one has made also by what it closes over. Other objects are known by what pickle would store of them, of which
nothing is loaded. What none of this tells is refused. Fields of dataclasses of ours that hold for one process only have
the metadata ``fleeting``.
"""

from __future__ import annotations

import copyreg
import dataclasses
import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable
from enum import Enum
from fractions import Fraction
from functools import cached_property, partial
from pathlib import PurePath
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
from chunkflow.kernels import dependencies
from chunkflow.kernels.dependencies import in_library, is_importable, is_installed, name_in_library, version_of

_PLAIN = (type(None), bool, int, float, complex, str, bytes, slice, range, Fraction, EllipsisType, np.dtype, PurePath)

_PROTOCOL = 4
"""Of pickle: the first one in which every object says its class, its state and its items by one method."""

_BOOKKEEPING = {
    *("__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__firstlineno__", "__static_attributes__"),
    *("__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__orig_bases__", "_abc_impl"),
    *("__dataclass_fields__", "__dataclass_params__", "__match_args__", "__abstractmethods__", "__slotnames__"),
}
"""Attributes of classes that Python or a decorator derives from the others, or that hold for one process only."""


_STORED = {"zarr", "h5py", "netCDF4", "tensorstore", "dask"}
"""Libraries whose arrays lie elsewhere: what is in them is no part of the object."""

_BESIDE = "; an array that is stored may be given to the call beside the other, as map(fn, x, y)"
"""What to do with one of them."""

_LARGEST = 1 << 30
"""Bytes of the largest labelled array that is known by its elements."""

_SHORT = 16
"""Digits that are kept of the digest of a part: they only tell which one differs."""

_NUMBERS = (int, float, complex, bool, type(None))
_FEW, _LONG = 8, 40
"""Most numbers of a part, and most letters, that are kept to be told."""

_BY_WORD = {"getattr", "vars", "__dict__", "attrgetter"}
"""Names by which a function may ask for attributes that it does not name."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Those of a call, each of which is a part of its outline."""

    kwargs: dict[str, Any]


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
    return _walked(value).whole()


def outline(value: Any) -> str:
    """The digest of a value, and of each of its parts that a name tells people, as JSON: `changed` names them."""
    walk = _walked(value)
    return json.dumps({"": walk.whole()} | walk.parts)


def changed(then: str, now: str) -> list[str]:
    """The names of what differs between two outlines, or of what one lacks if it is that; none where it has no name.

    Numbers are told with their names.
    """
    was, found = json.loads(then), json.loads(now)
    differ = [name for name in {**was, **found} if name and was.get(name) != found.get(name)]
    differ = [name for name in differ if name in was and name in found] or differ
    values = [[each.get(name, "").partition(" ")[2] for each in (was, found)] for name in differ]
    return [f"{name}: {v} then, {w} now" if v and w else name for name, (v, w) in zip(differ, values, strict=True)]


def is_outline(text: str) -> bool:
    """Whether `outline` has made a text."""
    return text.startswith('{"": "')


def _walked(value: Any) -> _Walk:
    walk = _Walk()
    try:
        walk.add(value)
        walk.finish()
    except RecursionError:
        _refuse(value)
    return walk


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
        return {key: _argument(part) for key, part in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        lasting = [f.name for f in dataclasses.fields(value) if not f.metadata.get("fleeting")]
        return [type(value), {name: without_functions(getattr(value, name)) for name in lasting}]
    if isinstance(value, _CALLED) or (callable(value) and not is_installed(type(value))) or hasattr(value, "py_func"):
        return "a function"
    return _known(value)


def _argument(value: Any) -> Any:
    """The same of what is given by name: an object that can be called is a value there, and has attributes."""
    if isinstance(value, (*_CALLED, type)) or dataclasses.is_dataclass(value) or is_installed(type(value)):
        return without_functions(value)
    return _known(value)


def _known(value: Any) -> Any:
    """The digest of a value; of one that has none its class, and what is known of its attributes."""
    try:
        return digest(value)
    except ArgumentError:
        known = vars(value) if hasattr(value, "__dict__") and not is_installed(type(value)) else {}
        return [type(value).__qualname__, {name: without_functions(part) for name, part in known.items()}]


_CALLED = (FunctionType, MethodType, partial, np.vectorize)
"""What a name stands for. Other objects of libraries that can be called, as a polynomial, are values."""


class _Walk:
    """Feeds a digest. What was met before, as in a function that calls itself, is known by its place.

    Parts that have names are digested apart, and what they are parts of takes their digests.
    """

    def __init__(self) -> None:
        self.parts: dict[str, str] = {}
        """Digests of parts by their names, without those of parts of their own; numbers come behind them."""
        self._sha = hashlib.sha256()
        self._inner: list[str] = []
        """The digests of the parts of what is being walked."""
        self._part = ""
        """What is being walked, by a name that no other part has."""
        self._counts = Counter[str]()
        self._met: dict[int, str] = {}
        self._kept: list[Any] = []  # or an object's number may become another's
        self._names: set[str] = set()
        self._words: set[str] = set()
        """All texts that were met: names of attributes, or of variables of the environment, perhaps."""
        self._modules: list[ModuleType] = []
        self._reads_environment = False

    def whole(self) -> str:
        """The digest of all that was added, parts included."""
        return hashlib.sha256("".join([self._sha.hexdigest(), *self._inner]).encode()).hexdigest()

    def part(self, name: str, value: Any) -> None:
        """Add a part that has a name."""
        self._say("part", name)
        outer = self._sha, self._inner, self._part
        self._sha, self._inner, self._part = hashlib.sha256(), [], self._numbered(f"part {name}")
        self.add(value)
        own, whole = self._sha.hexdigest(), self.whole()
        self._sha, self._inner, self._part = outer
        self._inner.append(whole)
        if name in self.parts:  # of another thing that is called so, too
            own = hashlib.sha256(f"{self.parts[name]}{own}".encode()).hexdigest()
            value = ...  # so there is no one value to tell
        self.parts[name] = f"{own[:_SHORT]} {_shown(value)}".rstrip()

    def _numbered(self, name: str) -> str:
        """A name with a number, by which it is another one each time."""
        self._counts[name] += 1
        return f"{name} #{self._counts[name]}"

    def finish(self) -> None:
        """Add what functions use of the modules that were met, the user's, and of the environment."""
        added = set[tuple[str, str]]()
        while used := [
            (module, name)
            for module in self._modules
            for name in sorted(self._used(module))
            if (module.__name__, name) not in added
        ]:
            for module, name in used:
                added.add((module.__name__, name))
                self.part(f"{module.__name__}.{name}", vars(module)[name])
        for name in sorted(self._words & os.environ.keys()) if self._reads_environment else ():
            self.part(f"{name} of the environment", os.environ[name])

    def _used(self, module: ModuleType) -> set[str]:
        known = vars(module).keys()
        named = self._names | {word for word in self._words if word.isidentifier()}
        if self._names & _BY_WORD:  # a module in it comes with whatever imports that
            named |= {n for n, part in vars(module).items() if n[:2] != "__" and not isinstance(part, ModuleType)}
        return (named | {"__getattr__"}) & known

    def add(self, value: Any) -> None:
        if (isinstance(value, _PLAIN) and is_installed(type(value))) or (type(value) is tuple and not value):
            self._say(type(value).__name__, repr(value))
            if isinstance(value, str | bytes):
                self._words.add(os.fsdecode(value))
            return
        if id(value) in self._met:
            self._say("met", self._met[id(value)])
            return
        self._met[id(value)] = self._numbered(self._part)
        self._kept.append(value)
        self._add(value)

    def _add(self, value: Any) -> None:
        kind = type(value)  # `isinstance` is deceived by proxies
        if value is NotImplemented:
            self._say("not implemented")
        elif dependencies.is_environment(value):
            self._reads_environment = True
            self._say("environment")
        elif (kind in (np.ndarray, np.memmap) or isinstance(value, np.generic)) and not value.dtype.hasobject:
            array = np.ascontiguousarray(value)
            self._say("array", kind.__name__, repr(array.dtype), str(np.shape(value)))
            self._sha.update(array.reshape(-1).view(np.uint8).data)
        elif kind in (tuple, list):
            self._each(kind.__name__, value)
        elif kind in (dict, MappingProxyType):
            self._each("mapping", (part for item in value.items() for part in item))
        elif kind in (set, frozenset):
            self._each("set", sorted(value, key=digest))
        elif issubclass(kind, Enum):
            self._each("enum", (kind, value.name, value.value, _set_on(value)))
        elif kind is MethodType:
            self._each("method", (value.__func__, value.__self__))
        elif kind is CodeType:
            self._add_code(value)
        elif issubclass(kind, ModuleType):
            self._add_module(value)
        elif kind is np.ufunc:
            self._add_found(value, name_in_library(value, anywhere=True))
        elif issubclass(kind, type):
            self._add_class(value)
        elif kind is FunctionType:
            self._add_function(value)
        elif kind is BuiltinFunctionType and isinstance(value.__self__, ModuleType | NoneType):
            self._add_named(value)
        elif issubclass(kind, staticmethod | classmethod):
            self._each(kind.__name__, [value.__func__])
        elif issubclass(kind, property):
            self._each("property", (value.fget, value.fset, value.fdel))
        elif issubclass(kind, cached_property):
            self._each("cached property", [value.func])
        elif kind.__module__.partition(".")[0] in _STORED:
            _refuse(value, _BESIDE)
        elif dataclasses.is_dataclass(value) and is_installed(kind):
            self._add_fields(value)
        else:
            self._add_object(value, kind)

    def _add_fields(self, value: Any) -> None:
        """Add a dataclass of ours: an operation, or how one is made."""
        self._each("dataclass", [type(value)])
        for field in dataclasses.fields(value):
            found = getattr(value, field.name)
            if field.name == "kwargs" and _is_named(found):
                for name, argument in found.items():
                    self.part(f"{name}=", argument)
            elif not field.metadata.get("fleeting"):
                self.part(f"{field.name.strip('_')} of {_operation(type(value))}", found)

    def _add_code(self, code: CodeType) -> None:
        self._names.update(dependencies.names(code))
        self._reads_environment |= dependencies.reads_environment(code)
        called = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags, code.co_varnames
        kept = code.co_cellvars, code.co_freevars, code.co_exceptiontable
        self._each("code", (code.co_code, code.co_names, code.co_consts, *called, *kept))

    def _add_named(self, value: Any) -> None:
        if dependencies.is_any(value):
            _refuse(value)
        if getattr(value, "__name__", "") in _BY_WORD:
            self._names.add(value.__name__)
        module = getattr(value, "__module__", None) or ""
        name = getattr(value, "__qualname__", type(value).__qualname__)
        self._say("named", module, name, version_of(module), dependencies.compiled(module))

    def _add_found(self, value: Any, name: str) -> None:
        """Add what a library has under a name; refuse what none has, which may be made of any function."""
        if not name:
            _refuse(value)
        self._say("found", type(value).__qualname__, name)

    def _add_module(self, module: ModuleType) -> None:
        self._say("module", module.__name__, version_of(module.__name__), dependencies.compiled(module.__name__))
        if not in_library(module.__name__):
            self._modules.append(module)

    def _add_class(self, value: type) -> None:
        self._add_named(value)
        if is_installed(value):
            return
        self._each("class", (type(value), *value.__bases__))
        parts = {name: part for name, part in vars(value).items() if name not in _BOOKKEEPING}
        if issubclass(value, Enum):
            members = {name: (member.value, _set_on(member)) for name, member in value.__members__.items()}
            own = {name: part for name, part in parts.items() if not name.startswith("_") or callable(part)}
            parts = members | {name: part for name, part in own.items() if name not in members}
        for name, part in parts.items():
            self.part(f"{value.__qualname__}.{name}", part)

    def _add_function(self, fn: FunctionType) -> None:
        if in_library(str(fn.__globals__.get("__name__"))):  # whatever it says of itself: decorators copy names
            self._add_named(fn)
            met = self._names, self._words, self._reads_environment
            self._names, self._words = set(), set()  # what it names is known by its version
            self.add(fn.__code__)
            self._names, self._words, self._reads_environment = met
            if hasattr(fn, "registry") and hasattr(fn, "dispatch"):
                self._each("dispatch", (part for item in fn.registry.items() for part in item))
            elif fn.__closure__ and not (is_installed(fn) and is_importable(fn)):
                self._each("of", (fn.__defaults__, fn.__kwdefaults__))
                for variable, value in zip(fn.__code__.co_freevars, _cells(fn), strict=True):
                    self.part(f"{variable} of {_operation(fn)}", value)
            return
        if called := dependencies.unnamed_use(fn):
            _refuse(fn, f", as it uses {called}")
        name, code, last = fn.__qualname__.rpartition(".")[2], fn.__code__, fn.__defaults__ or ()
        self.part(f"the code of {name}", code)
        with_default = code.co_varnames[code.co_argcount - len(last) : code.co_argcount]
        defaults = dict(zip(with_default, last, strict=True)) | (fn.__kwdefaults__ or {})
        for argument, default in defaults.items():
            self.part(f"{argument}= of {name}", default)
        self._each("attributes", [vars(fn)])
        for variable, value in zip(code.co_freevars, _cells(fn), strict=True):
            self.part(f"{variable} in {name}", value)
        for variable, value in dependencies.used_globals(fn).items():
            self.part(f"{variable} in {name}", value)
        self._each("imports", dependencies.imported(fn))

    def _add_object(self, value: Any, kind: type) -> None:
        """Add an object by its class, its state and its items, as pickle would; some by what matters of it alone."""
        if kind is partial:
            self._each("partial", (value.func, value.args, vars(value)))
            for name, argument in value.keywords.items():
                self.part(f"{name}=", argument)
        elif kind is np.vectorize:  # it keeps a compiled form once it was called
            self._each("vectorize", (value.pyfunc, value.otypes, value.signature, value.excluded))
        elif hasattr(value, "py_func"):  # compiled by numba, which gives each a random number
            makers = value, getattr(value, "_dispatcher", None), getattr(value, "gufunc_builder", None)
            self._each("compiled", (kind, value.py_func, *(getattr(each, "targetoptions", None) for each in makers)))
        elif hasattr(value, "detach") and hasattr(value, "__array__"):  # of torch, which would say where it lies
            self._each("tensor", (kind, np.asarray(value.detach().cpu())))
        elif isinstance(value, np.ndarray) and kind not in (np.ndarray, np.memmap, np.ma.MaskedArray):
            self._each("subclass", (kind, np.asarray(value), getattr(value, "__dict__", None)))
        elif kind.__module__.startswith("xarray.") and hasattr(value, "to_dict"):
            if value.nbytes > _LARGEST or getattr(value, "chunks", None):
                _refuse(value, _BESIDE)
            self._each("labelled", (kind, value.to_dict(data="array")))
        elif callable(value) and is_installed(value) and is_importable(value):
            self._add_named(value)
        elif (
            is_installed(kind)
            and (callable(value) or kind is np.random.RandomState)
            and (own := name_in_library(value))
        ):
            self._add_found(value, own)
        else:
            self._add_state(value, kind)

    def _add_state(self, value: Any, kind: type) -> None:
        reduce = copyreg.dispatch_table.get(kind)
        try:
            found = value.__reduce_ex__(_PROTOCOL) if reduce is None else reduce(value)
        except Exception:  # whatever a class raises that is not to be pickled
            found = None
        if isinstance(found, tuple):
            make, arguments, *rest = found
            items = [None if part is None else list(part) for part in rest[1:]]  # of a list's, and of a mapping's kind
            state = [_lasting(kind, part) for part in rest[:1]]
            if state and _is_named(state[0]):
                self._each("object", (make, arguments, *items))
                for name, part in state[0].items():
                    self.part(f"{name} of {kind.__qualname__}", part)
            else:
                self._each("object", (make, arguments, *state, *items))
        elif kind.__name__ == "_lru_cache_wrapper":
            self._each("cached", (kind, value.__wrapped__))
        elif isinstance(found, str) and getattr(sys.modules.get(module := kind.__module__), found, None) is value:
            self._say("global", module, found)
        else:
            _refuse(value)

    def _each(self, kind: str, parts: Iterable[Any]) -> None:
        self._say(kind)
        for part in parts:
            self.add(part)
        self._say("end")

    def _say(self, *words: str) -> None:
        for word in words:
            encoded = word.encode(errors="surrogatepass")
            self._sha.update(b"%d:%b" % (len(encoded), encoded))


def _shown(value: Any) -> str:
    """A number, or a few; nothing of another value: a text may be a secret."""
    flat = [value] if type(value) not in (tuple, list) else value
    text = repr(value) if len(flat) <= _FEW and all(type(each) in _NUMBERS for each in flat) else ""
    return text if len(text) <= _LONG else ""


def _refuse(value: Any, why: str = "") -> NoReturn:
    try:
        said = repr(value)
    except Exception:  # of the user's class
        said = f"an object of {type(value).__qualname__}"
    raise ArgumentError(
        f"resume=True: whether {said} is the same in another process cannot be told{why}: give name=, a name that "
        "stands for the function, and change it with the function"
    )


def _operation(value: Any) -> str:
    """What people call what something of a library is a part of."""
    return "the operation" if value.__module__.startswith("chunkflow.") else str(value.__name__)


def _set_on(member: Enum) -> dict[str, Any]:
    """Attributes that were set on a member."""
    return {name: part for name, part in vars(member).items() if not name.startswith("_")}


def _is_named(value: Any) -> bool:
    """Whether something has parts with names."""
    return type(value) is dict and all(isinstance(name, str) for name in value)


def _cells(fn: FunctionType) -> list[Any]:
    """What a function closes over; an empty list for a name that has no value yet."""
    found: list[Any] = []
    for cell in fn.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            found.append([])
    return found


def _lasting(kind: type, state: Any) -> Any:
    """The state of an object without what its class computes again, and keeps."""
    kept = {name for base in kind.__mro__ for name, part in vars(base).items() if isinstance(part, cached_property)}
    if not kept or type(state) is not dict:
        return state
    return {name: part for name, part in state.items() if name not in kept} or None
