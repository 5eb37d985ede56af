"""What code depends on besides itself: globals, imports and variables of the environment that it names; and libraries.

What is installed is known by its version. All else is the user's, and may be another in the next process.
"""

from __future__ import annotations

import builtins
import dis
import hashlib
import importlib
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import find_spec, resolve_name
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

_PACKAGES = {"site-packages", "dist-packages"}
"""Folders of installed libraries, as they are called in a user's home and by systems, too."""

_ANY = {"eval", "exec", "globals", "__import__"}
"""Builtins by which a function may use what it does not name."""

_ANY_ATTRIBUTE = {"import_module", "__globals__", "f_globals", "__builtins__"}
"""Attributes that do the same."""

_ENVIRONMENT = {"environ", "environb", "getenv"}

_COMPUTED = ("BINARY_OP", "BUILD_", "FORMAT_", "CONVERT_")
"""How instructions begin that make a name of others."""

_LEFT = ("STORE_", "CONTAINS_", "POP_", "RETURN_")
"""How instructions begin after which nothing is asked for by what was loaded."""


def codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code and that of its inner ones."""
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from codes(part)


def names(code: CodeType) -> set[str]:
    """Globals, attributes and imported things that code names, and its words, by one of which it may ask for them."""
    return {*code.co_names, *(word for word in _words(code) if word.isidentifier())}


def _words(code: CodeType) -> set[str]:
    return {part for part in code.co_consts if isinstance(part, str)}


def _asked_for(code: CodeType) -> set[str]:
    return {step.argval for step in dis.get_instructions(code) if "GLOBAL" in step.opname or step.opname == "LOAD_NAME"}


def used_globals(fn: FunctionType) -> dict[str, Any]:
    """The globals that a function names, inner functions included."""
    asked = set[str]().union(*map(_asked_for, codes(fn.__code__)))
    return {name: fn.__globals__[name] for name in sorted(asked) if name in fn.__globals__}


def unnamed_use(fn: FunctionType) -> str:
    """What a function calls by which it may use anything: whether that is the same cannot be told; or empty."""
    for code in codes(fn.__code__):
        for name in sorted(_asked_for(code) & _ANY - fn.__globals__.keys()):
            return name
        for name in sorted(_ANY_ATTRIBUTE & set(code.co_names)):
            return name
        if {"sys", "modules"} <= set(code.co_names):
            return "sys.modules"
        if _makes_a_name(code):
            return "a variable of the environment by a name that it makes"
    return ""


def is_any(value: Any) -> bool:
    """Whether something is one of those builtins, by whatever name."""
    return any(value is vars(builtins)[name] for name in _ANY)


def reads_environment(code: CodeType) -> bool:
    """Whether code reads variables of the environment, under the usual names."""
    return not _ENVIRONMENT.isdisjoint(code.co_names)


def is_environment(value: Any) -> bool:
    """Whether variables of the environment are read by something."""
    return any(value is getattr(os, name, None) for name in _ENVIRONMENT)


def _makes_a_name(code: CodeType) -> bool:
    """Whether code asks for a variable of the environment by a name that is put together there."""
    inside = called = False
    for step in dis.get_instructions(code):
        named = isinstance(step.argval, str) and step.argval in _ENVIRONMENT
        if named:
            inside, called = True, step.argval == "getenv"
        elif inside and not called and step.argval in {"get", "pop", "setdefault"}:
            called = True
        elif inside:
            ends = step.opname.startswith("CALL") if called else "SUBSCR" in step.opname or step.argrepr == "[]"
            if not ends and step.opname.startswith(_COMPUTED):
                return True
            inside = not ends and not step.opname.startswith(_LEFT)
    return False


def imported(fn: FunctionType) -> list[ModuleType | str]:
    """The modules that a function imports when it runs. Those of the user are imported for that."""
    found: list[ModuleType | str] = []
    for code in codes(fn.__code__):
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
    if in_library(name):
        yield f"{name} {version_of(name)}"
        return
    module = importlib.import_module(name)
    yield module
    for part in parts if hasattr(module, "__path__") else ():
        if not hasattr(module, part) and _found(f"{name}.{part}"):
            yield importlib.import_module(f"{name}.{part}")


# -- Libraries ---------------------------------------------------------------------------------------------------------


def is_importable(value: Any) -> bool:
    """Whether something is what its module has under its name, and not made by another thing."""
    found: Any = sys.modules.get(getattr(value, "__module__", None) or "")
    for name in getattr(value, "__qualname__", "").split("."):
        found = getattr(found, name, None)
    return found is value


def is_installed(value: Any) -> bool:
    """Whether something is defined in an installed library or in Python's own, and has a name there."""
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", "<")
    return isinstance(module, str) and "<" not in name and in_library(module)


@cache
def in_library(module: str) -> bool:
    """Whether a module is of an installed library, or Python's own."""
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


def name_in_library(value: Any, *, anywhere: bool = False) -> str:
    """A library's name and version, and the name that an object has in it; or empty.

    It is looked for in the library of its type, or `anywhere`.
    """
    top = type(value).__module__.partition(".")[0]
    for name, module in list(sys.modules.items()):
        own = name.partition(".")[0]
        if isinstance(module, ModuleType) and (anywhere or own == top) and in_library(name):
            for key, part in list(vars(module).items()):
                if part is value:
                    return f"{own} {version_of(own)} {key}"
    return ""


@cache
def version_of(module: str) -> str:
    """Version of the library that a module is of; Python's for its own."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or not top:
        return sys.version
    loaded = sys.modules.get(top)
    if isinstance(loaded, ModuleType) and "__version__" in vars(loaded):
        return str(vars(loaded)["__version__"])
    from importlib import metadata  # not at the top: it takes as long as a tenth of this library

    try:
        return metadata.version(top)
    except metadata.PackageNotFoundError:
        return ""


def compiled(module: str) -> str:
    """A digest of a compiled module of the user's, which has no version; empty for others."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if not isinstance(file, str) or not file.endswith(tuple(EXTENSION_SUFFIXES)) or in_library(module):
        return ""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()
