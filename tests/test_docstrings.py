"""Docstrings: each public name has one, but for methods that a protocol or a base class describes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "chunkflow"
TREES = {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
CLASSES = [node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def last_name(node: ast.expr) -> str:
    return ast.unparse(node).partition("[")[0].rpartition(".")[2]


def functions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef]:
    for node in body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            marks = {last_name(mark) for mark in node.decorator_list}
            if not marks & {"overload", "setter"}:
                yield node


BASES = {last_name(base) for node in CLASSES for base in node.bases}
DESCRIBING = [node for node in CLASSES if node.name in BASES or "Protocol" in map(last_name, node.bases)]
DESCRIBED = {f.name for node in DESCRIBING for f in functions(node.body) if ast.get_docstring(f)}
# A property may stand for an attribute, which its class describes.
DESCRIBED |= {ast.unparse(item.target) for node in DESCRIBING for item in node.body if isinstance(item, ast.AnnAssign)}


@pytest.mark.parametrize("path", TREES)
def test_public_names_have_docstrings(path: str) -> None:
    classes = [node for node in TREES[path].body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    bare = [node.name for node in (*classes, *functions(TREES[path].body)) if not ast.get_docstring(node)]
    methods = [(node.name, method) for node in classes for method in functions(node.body)]
    # The name of a test in a contract suite says what it tests.
    methods = [] if path.startswith("testing/") else methods
    bare += [f"{n}.{m.name}" for n, m in methods if not ast.get_docstring(m) and m.name not in DESCRIBED]
    assert not bare
