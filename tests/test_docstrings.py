"""Docstrings: each public name has one, but for methods that a protocol or a base class describes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "chunkflow"
PATHS = [str(path.relative_to(PACKAGE)) for path in sorted(PACKAGE.rglob("*.py"))]


@cache
def tree(path: str) -> ast.Module:
    return ast.parse((PACKAGE / path).read_text())


def last_name(node: ast.expr) -> str:
    return ast.unparse(node).partition("[")[0].rpartition(".")[2]


def functions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef]:
    for node in body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            marks = {last_name(mark) for mark in node.decorator_list}
            if not marks & {"overload", "setter"}:
                yield node


@cache
def described() -> set[str]:
    """Methods that a protocol or a base class describes."""
    classes = [node for path in PATHS for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)]
    bases = {last_name(base) for node in classes for base in node.bases}
    describing = [node for node in classes if node.name in bases or "Protocol" in map(last_name, node.bases)]
    names = {f.name for node in describing for f in functions(node.body) if ast.get_docstring(f)}
    # A property may stand for an attribute, which its class describes.
    return names | {ast.unparse(item.target) for n in describing for item in n.body if isinstance(item, ast.AnnAssign)}


@pytest.mark.parametrize("path", PATHS)
def test_public_names_have_docstrings(path: str) -> None:
    body = tree(path).body
    classes = [node for node in body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    bare = [node.name for node in (*classes, *functions(body)) if not ast.get_docstring(node)]
    methods = [(node.name, method) for node in classes for method in functions(node.body)]
    # The name of a test in a contract suite says what it tests.
    methods = [] if path.startswith("testing/") else methods
    bare += [f"{n}.{m.name}" for n, m in methods if not ast.get_docstring(m) and m.name not in described()]
    assert not bare
