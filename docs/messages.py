"""The page with every error and warning that the package words itself, found in its source when the site is built."""

import ast
import builtins
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

INNER = {"AssertionError", "CancelledError", "NotImplementedError", "StopIteration", "SystemExit"}
"""Exceptions that tell a user nothing: mistakes of chunkflow's own, and ends."""

HEAD = "```{list-table}\n:class: messages\n:header-rows: 1\n:widths: 75 25\n\n* - message\n  - module of chunkflow"
ABOUT = """# Messages

Every error and warning that chunkflow words, by its class, and the module that raises it. This page is made from the
source, and a test finds what would be missing.

What a message fills in stands in braces: names of arrays, shapes, bytes. What is said in some cases alone stands in
square brackets, with a bar between two cases. [Errors and warnings](../errors.md) says what each class is for."""
OTHERS = """## Python's own, and causes

Errors that are Python's own classes, as NumPy raises them for its arrays. And causes: they stand behind the colon of a
message above, as of a `ReadError`, or in a plan behind the name of the library that reads an array."""
DEPTH = 4
"""How far texts are followed from function to function."""
SAID = 3
"""Words from which on a function's text is a part of a message."""


class Message(NamedTuple):
    """What is said, by which class, and by which module."""

    kind: str
    text: str
    module: str


class Scope(NamedTuple):
    """Where a text stands: its module, the function around it, and what that function's parameters are, if known."""

    module: "Module"
    function: ast.FunctionDef | None
    bound: Mapping[str, tuple[ast.expr, "Scope"]]
    depth: int = 0


class Module:
    """The syntax of a module: its functions, classes and constants, and where what it imports is from."""

    def __init__(self, name: str, tree: ast.Module) -> None:
        self.name, self.tree = name, tree
        self.parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self.functions: dict[str, ast.FunctionDef] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.constants: dict[str, ast.expr] = {}
        self.imported: dict[str, str] = {}
        for node in self.parents:
            if isinstance(node, ast.FunctionDef):
                self.functions.setdefault(node.name, node)
            elif isinstance(node, ast.ClassDef):
                self.classes[node.name] = node
            elif isinstance(node, ast.ImportFrom):
                self.imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        for node in tree.body:
            if isinstance(node, ast.Assign):
                self.constants |= {target.id: node.value for target in node.targets if isinstance(target, ast.Name)}

    def around(self, node: ast.AST) -> ast.ClassDef | None:
        """The class in which a node stands."""
        while node in self.parents and not isinstance(node, ast.ClassDef):
            node = self.parents[node]
        return node if isinstance(node, ast.ClassDef) else None

    def scope(self, node: ast.AST) -> Scope:
        """The scope in which a node stands."""
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, ast.FunctionDef):
                return Scope(self, node, {})
        return Scope(self, None, {})


class Package:
    """All modules of the package, but the suites that it has for others."""

    def __init__(self, folder: Path) -> None:
        self.modules: dict[str, Module] = {}
        for path in sorted(folder.rglob("*.py")):
            name = ".".join(path.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__")
            if ".testing" not in name:
                self.modules[name] = Module(name, ast.parse(path.read_text()))

    @cached_property
    def own(self) -> dict[str, type]:
        """The classes of `chunkflow.errors`."""
        found = vars(importlib.import_module("chunkflow.errors"))
        return {name: one for name, one in found.items() if isinstance(one, type) and issubclass(one, Exception)}

    @cached_property
    def kinds(self) -> dict[str, str]:
        """All classes of exceptions: each with the public one under which its messages are listed."""
        found = {name: name for name in self.own}
        found |= {n: n for n, o in vars(builtins).items() if isinstance(o, type) and issubclass(o, Exception)}
        bases = {n: c.bases for module in self.modules.values() for n, c in module.classes.items() if c.bases}
        for _ in bases:  # until nothing is new
            new = {n: found[_name(b)] for n, of in bases.items() for b in of if n not in found and _name(b) in found}
            if not new:
                break
            found |= {n: kind if kind in self.own else n for n, kind in new.items()}
        return found

    def said(self) -> Iterator[tuple[Module, ast.Call, list[Message]]]:
        """Each call that raises or warns, or makes an error, and what it says; nothing where that is not known."""
        for module in self.modules.values():
            for node in module.parents:
                if isinstance(node, ast.Call):
                    kinds, text = self._of(node, module)
                    found = [Message(kind, text, module.name) for kind in kinds if len(text.split()) > 1]
                    parent = module.parents[node]
                    if found or isinstance(parent, ast.Raise) or _name(node.func) == "warn":
                        yield module, node, found

    def _of(self, node: ast.Call, module: Module) -> tuple[list[str], str]:
        """Classes and text of what a call makes."""
        scope = module.scope(node)
        first = node.args[0] if node.args else None
        if len(node.args) > 1 and self.kinds.get(_name(node.func), "") in _WITH_NUMBERS:
            first = node.args[1]  # behind the number of the error
        if _name(node.func) == "warn" and isinstance(node.func, ast.Attribute) and _name(node.func.value) == "warnings":
            kind = _name(node.args[1]) if len(node.args) > 1 else "UserWarning"
            return [kind], self.text(first, scope)
        if _is_init(node.func):
            around = module.around(node)
            is_ours = around is not None and self.kinds.get(around.name) in self.own and around.name not in self.own
            return ([self.kinds[around.name]], self.text(first, scope)) if is_ours else ([], "")
        named = isinstance(module.parents[node], ast.Raise) or _name(node.func)[:1].isupper()
        if kinds := self._classes(node.func, scope) if named else []:
            return kinds, self.text(first, scope)
        helper = self._function(node.func, scope) if isinstance(module.parents[node], ast.Raise) else None
        for made in _returned(*helper[::-1]) if helper else ():
            if isinstance(made, ast.Call) and (kinds := self._classes(made.func, Scope(helper[0], helper[1], {}))):
                inner = Scope(helper[0], helper[1], _bound(node, helper[1], scope), 1)
                return kinds, self.text(made.args[0] if made.args else None, inner)
        return [], ""

    def _classes(self, node: ast.expr, scope: Scope) -> list[str]:
        """Classes that an expression may stand for."""
        if isinstance(node, ast.IfExp):
            return self._classes(node.body, scope) + self._classes(node.orelse, scope)
        name = _name(node)
        if isinstance(node, ast.Attribute):
            return [self.kinds[name]] if name in self.kinds and name[:1].isupper() else []
        if name in self.kinds:
            return [] if name in INNER else [self.kinds[name]]
        if scope.function is None or not isinstance(node, ast.Name):
            return []
        for assigned in _assigned(name, scope.function):
            if isinstance(assigned, ast.IfExp):
                return self._classes(assigned, scope)
        said = next((arg.annotation for arg in scope.function.args.args if arg.arg == name), None)
        return [n.id for n in ast.walk(said) if isinstance(n, ast.Name) and n.id in self.own] if said else []

    def _function(self, node: ast.expr, scope: Scope) -> tuple[Module, ast.FunctionDef] | None:
        """The function of the package that an expression names."""
        name = _name(node)
        module = scope.module
        if name not in module.functions and isinstance(node, ast.Name) and name in module.imported:
            where, _, name = module.imported[name].rpartition(".")
            module = self.modules.get(where, module)
        found = module.functions.get(name)
        return None if found is None else (module, found)

    def text(self, node: ast.expr | None, scope: Scope) -> str:
        """What an expression says; what is filled in stands in braces."""
        if node is None or scope.depth > DEPTH:
            return ""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else ""
        if isinstance(node, ast.JoinedStr):
            return "".join(self.text(value, scope) for value in node.values)
        if isinstance(node, ast.FormattedValue):
            known = self._known(node.value, scope) if node.conversion == -1 else ""
            return known or "{" + _filled(node.value) + "}"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self.text(node.left, scope) + self.text(node.right, scope)
        if isinstance(node, ast.IfExp):
            cases = list(filter(None, (self.text(case, scope) for case in (node.body, node.orelse))))
            return f"[{' | '.join(cases)}]" if any(map(_words, cases)) else "{...}" if cases else ""
        return self._known(node, scope) or "{" + _filled(node) + "}"

    def _known(self, node: ast.expr, scope: Scope) -> str:
        """The text that a name, a call or a property stands for, where it is known; else nothing."""
        deeper = scope._replace(depth=scope.depth + 1)
        if isinstance(node, ast.IfExp | ast.BinOp | ast.JoinedStr):
            return self.text(node, deeper)
        if isinstance(node, ast.Name):
            if node.id in scope.bound:
                value, there = scope.bound[node.id]
                return self.text(value, there) if isinstance(value, ast.Constant | ast.JoinedStr | ast.BinOp) else ""
            for value in _assigned(node.id, scope.function) if scope.function else ():
                return self.text(value, deeper) if isinstance(value, _TEXTS) else ""
            return self._constant(node.id, deeper)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr == "join" and node.args:
                each = node.args[0]
                return (
                    f"[{self.text(each.elt, deeper)}]"
                    if isinstance(each, ast.GeneratorExp) and isinstance(each.elt, ast.JoinedStr)
                    else ""
                )
            if found := self._function(node.func, scope) if isinstance(node.func, ast.Name) else None:
                inner = Scope(found[0], found[1], _bound(node, found[1], scope), scope.depth + 1)
                values = [value for value in _returned(found[1], found[0]) if isinstance(value, _TEXTS)]
                texts = [self.text(value, inner) for value in values]
                if max(map(_words, texts), default=0) < SAID:  # it makes a figure, a region or a list readable
                    return ""
                return texts[0] if len(texts) == 1 and not _may_be_empty(found[1]) else f"[{' | '.join(texts)}]"
        if isinstance(node, ast.Attribute):
            named = [(m, m.functions[node.attr]) for m in self.modules.values() if node.attr in m.functions]
            if len(named) == 1 and "property" in map(_name, named[0][1].decorator_list):
                inner = Scope(*named[0], {}, scope.depth + 1)
                return "".join(self.text(v, inner) for v in _returned(*named[0][::-1]) if isinstance(v, ast.JoinedStr))
        return ""

    def _constant(self, name: str, scope: Scope) -> str:
        """The text of a constant of a module, or one that it imports."""
        module = scope.module
        if name not in module.constants and name in module.imported:
            where, _, name = module.imported[name].rpartition(".")
            module = self.modules.get(where, module)
        value = module.constants.get(name)
        return self.text(value, Scope(module, None, {}, scope.depth)) if isinstance(value, _TEXTS) else ""


_WITH_NUMBERS = {n for n, o in vars(builtins).items() if isinstance(o, type) and issubclass(o, OSError)}
_TEXTS = ast.Constant | ast.JoinedStr | ast.BinOp | ast.IfExp


def page(folder: Path) -> str:
    """The page."""
    package = Package(folder)
    found: dict[str, set[tuple[str, str]]] = {}
    others: set[tuple[str, str]] = set()
    for _, _, messages in package.said():
        for kind, text, module in messages:
            if kind in package.own:
                found.setdefault(kind, set()).add((module, text))
            else:
                others.add((module, f"{kind}: {text}"))
    parts = [ABOUT]
    for name in sorted(found):
        about = " ".join((inspect.getdoc(package.own[name]) or "").partition("\n\n")[0].split())
        parts += [f"## {name}", about, _table(found[name])]
    return "\n\n".join([*parts, OTHERS, _table(others)]) + "\n"


def unknown(folder: Path) -> Iterator[str]:
    """Calls that raise or warn, of which the page does not have what they say."""
    for module, node, messages in Package(folder).said():
        if not messages:
            yield f"{module.name}: {ast.unparse(node)}"


def _table(entries: set[tuple[str, str]]) -> str:
    return "\n".join([HEAD, *map(_row, sorted(entries)), "```"])


def _row(entry: tuple[str, str]) -> str:
    module, text = entry
    escaped = text.replace("\\", "\\\\")
    for sign in "<>*_`[]$#":
        escaped = escaped.replace(sign, f"\\{sign}")
    shown = module.removeprefix("chunkflow.").replace(".", ".\u200b")  # where a narrow column may break it
    return f"* - {' '.join(escaped.split())}\n  - `{shown}`"


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_init(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "__init__" and isinstance(node.value, ast.Call)


def _assigned(name: str, function: ast.FunctionDef) -> Iterator[ast.expr]:
    """What a function assigns to a name of its own, the longest text first."""
    found = [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets)
    ]
    yield from sorted(found, key=lambda value: len(ast.unparse(value)), reverse=True)


def _returned(function: ast.FunctionDef, module: Module) -> Iterator[ast.expr]:
    """What a function returns, where it is not empty."""
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None and module.scope(node).function is function:
            is_empty = isinstance(node.value, ast.Constant) and not node.value.value
            yield from () if is_empty else (node.value,)


def _may_be_empty(function: ast.FunctionDef) -> bool:
    """Whether a function may return an empty text."""
    values = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    values += [value.orelse for value in values if isinstance(value, ast.IfExp)]
    return any(isinstance(value, ast.Constant) and value.value == "" for value in values)


def _words(text: str) -> int:
    """Words of a text beside those that are filled in."""
    return len(re.findall(r"[A-Za-z]{2,}", re.sub(r"\{[^{}]*\}", "", text)))


def _bound(call: ast.Call, function: ast.FunctionDef, scope: Scope) -> dict[str, tuple[ast.expr, Scope]]:
    """A function's parameters, as a call gives them."""
    names = [arg.arg for arg in function.args.args if arg.arg not in ("self", "cls")]
    given = dict(zip(names, call.args, strict=False)) | {each.arg: each.value for each in call.keywords if each.arg}
    defaults = zip(reversed(names), reversed(function.args.defaults), strict=False)
    own = Scope(scope.module, None, {}, scope.depth)
    return {name: (value, own) for name, value in defaults} | {name: (value, scope) for name, value in given.items()}


def _filled(node: ast.expr) -> str:
    """The last word of an expression that is filled in."""
    if isinstance(node, ast.Call) and node.args:
        return _filled(node.args[0])
    if isinstance(node, ast.Attribute) and node.attr in ("name", "spec", "__name__"):
        return _filled(node.value)
    if isinstance(node, ast.Subscript):
        return _filled(node.value)
    return re.sub(r"^_+|_+$", "", _name(node)) or "..."
