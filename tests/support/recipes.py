"""The recipes of CONTRIBUTING.md: taken from the page, put into a copy of the project, and run there."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import types
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "CONTRIBUTING.md"
NEW = r"A new file, `(\S+\.py)`:\n\n"
"""What the page says before a block with a file that the project does not have."""

_ADDED = r"An addition to `(\S+\.py)`:\n\n"
_BLOCK = r"```python\n(.*?)```"
_times = count(1)


@dataclass(frozen=True)
class Recipe:
    """The text of one recipe."""

    text: str

    @cached_property
    def files(self) -> dict[str, str]:
        """New files, by their paths."""
        return dict(re.findall(NEW + _BLOCK, self.text, re.S))

    @cached_property
    def rows(self) -> dict[str, str]:
        """What is added to files that exist: imports, and one assignment that shows the rows of a table."""
        return dict(re.findall(_ADDED + _BLOCK, self.text, re.S))

    @property
    def blocks(self) -> list[str]:
        return re.findall(_BLOCK, self.text, re.S)

    @property
    def tests(self) -> list[str]:
        return [path for path in self.files if path.startswith("tests/")]

    def put(self, tree: Path, old: str = "", new: str = "") -> None:
        """Follow the recipe in a copy of the project; with a mistake that has `new` in the place of `old`."""
        assert sum(code.count(old) for code in self.files.values()) == 1 or not old, old
        for path, code in self.files.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_text(code.replace(old, new) if old else code)
            os.utime(tree / path, (next(_times),) * 2)  # else Python might take the bytecode of what was there before
        for path, code in self.rows.items():
            (tree / path).write_text(_extended((ROOT / path).read_text(), code))

    def load(self, patch: pytest.MonkeyPatch) -> types.ModuleType:
        """Make the recipe's modules importable in this process, and register its rows; the last of the modules."""
        module = None
        for path, code in self.files.items():
            if path.startswith("chunkflow/"):
                name = path.removesuffix(".py").replace("/", ".")
                module = types.ModuleType(name)
                patch.setitem(sys.modules, name, module)
                exec(compile(code, path, "exec"), module.__dict__)
        for path, code in self.rows.items():
            there = import_module(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
            names = dict(vars(there))
            exec(compile(code, path, "exec"), names)
            table, rows = _table(code), names[_table(code)]
            before: Any = vars(there)[table]
            patch.setattr(there, table, before | rows if isinstance(rows, dict) else before + rows)
        assert module is not None
        return module


def recipes() -> dict[str, Recipe]:
    """The recipes by their headings, without the article."""
    page = PAGE.read_text()
    section = page[page.index("\n## Recipes\n") : page.index("\n## Commits\n")]
    titles = re.findall(r"^### An? (.*)$", section, re.M)
    return dict(zip(titles, map(Recipe, re.split(r"^### .*$", section, flags=re.M)[1:]), strict=True))


def copied(tree: Path) -> Path:
    """Copy what a contract suite needs of the project."""
    for name in ("chunkflow", "tests/support"):
        shutil.copytree(ROOT / name, tree / name)
    for name in ("pyproject.toml", "conftest.py"):
        shutil.copy(ROOT / name, tree / name)
    return tree


def run(tree: Path, tests: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    """Run tests in a copy of the project, as the page says."""
    hidden = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *options, *tests]
    return subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=300)


def _table(code: str) -> str:
    """Name of the table to which rows are added."""
    (node,) = (node for node in ast.parse(code).body if isinstance(node, ast.Assign))
    (target,) = node.targets
    assert isinstance(target, ast.Name)
    return target.id


def _extended(text: str, code: str) -> str:
    """A module's text with the imports of `code`, and the rows of its table behind those that are there."""
    lines, shown, tree = text.splitlines(), code.splitlines(), ast.parse(text)
    table = _table(code)
    (ours,) = (node for node in ast.parse(code).body if isinstance(node, ast.Assign))
    (theirs,) = (
        node
        for node in tree.body
        if (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == table)
        or (isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == table)
    )
    assert ours.end_lineno is not None
    assert theirs.end_lineno is not None
    lines[theirs.end_lineno - 1 : theirs.end_lineno - 1] = shown[ours.lineno : ours.end_lineno - 1]
    last = [node.end_lineno for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)][-1]
    lines[last:last] = [line for line in shown[: ours.lineno - 1] if line]
    return "\n".join(lines) + "\n"
