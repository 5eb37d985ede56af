"""The page with every error and warning that the package words itself, found in its source when the site is built."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

WORDS = 4
"""Messages of fewer words are of errors that are caught within."""

HEAD = "```{list-table}\n:header-rows: 1\n:widths: 72 28\n\n* - message\n  - module of chunkflow"


def messages(package: Path) -> Iterator[tuple[str, str, str]]:
    """Class, text and module of each message; what is filled in stands in braces."""
    own = vars(importlib.import_module("chunkflow.errors"))
    known = {name for name, one in own.items() if isinstance(one, type)}
    for path in sorted(package.rglob("*.py")):
        module = ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
        if ".testing" in module:
            continue
        tree = ast.parse(path.read_text())
        constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else ""  # a class of ours: others are attributes
            if _name(node.func) == "warn" and len(node.args) > 1:
                name = _name(node.args[1])
            said = node.args[0]
            text = _text(constants.get(said.id, said) if isinstance(said, ast.Name) else said)
            if name in known and len(text.split()) >= WORDS:
                yield name, text, module


def page(package: Path) -> str:
    """The page."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name, text, module in messages(package):
        found.setdefault(name, []).append((module, text))
    parts = [
        "# Messages",
        "Every error and warning that chunkflow words, by its class, and the module that raises it. What a message "
        "fills in stands in braces: names of arrays, shapes, bytes. This page is made from the source.",
    ]
    for name in sorted(found):
        rows = "\n".join(map(_row, sorted({*found[name]})))
        parts += [f"## {name}", f"{HEAD}\n{rows}\n```"]
    return "\n\n".join(parts) + "\n"


def _row(entry: tuple[str, str]) -> str:
    module, text = entry
    escaped = text.replace("\\", "\\\\")
    for sign in "<>*_`[]$#":
        escaped = escaped.replace(sign, f"\\{sign}")
    return f"* - {' '.join(escaped.split())}\n  - `{module.removeprefix('chunkflow.')}`"


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.expr) -> str:
    """A literal's text, with what is filled in by the last word of its expression."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.FormattedValue):
        return "{" + _filled(node.value) + "}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return "{...}" if isinstance(node, ast.IfExp | ast.Call | ast.Name) else ""


def _filled(node: ast.expr) -> str:
    if isinstance(node, ast.Call) and node.args:
        return _filled(node.args[0])
    if isinstance(node, ast.Attribute) and node.attr in ("name", "spec", "__name__"):
        return _filled(node.value)
    if isinstance(node, ast.Subscript):
        return _filled(node.value)
    return _name(node).strip("_") or "..."
