"""Random mutants: a comparison, an operator or a condition of a module is changed, by cosmic-ray's operators."""

from __future__ import annotations

import ast
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

CHANGES = re.compile(
    r"core/(ReplaceBinaryOperator_|ReplaceUnaryOperator_|ReplaceComparisonOperator_|AddNot|ReplaceTrueWithFalse"
    r"|ReplaceFalseWithTrue|ReplaceAndWithOr|ReplaceOrWithAnd|ReplaceBreakWithContinue|ReplaceContinueWithBreak)"
)
SAME = re.compile(r"_(Eq|NotEq|Lt|LtE|Gt|GtE)_(Is|IsNot)$|_(Is|IsNot)_(Eq|NotEq|Lt|LtE|Gt|GtE)$")
"""Identity for equality: the same for the small numbers and names that are compared."""

ELSEWHERE = ("devices/cuda/", "system/native/_")
"""Modules whose lines run on a GPU only, or where they are built."""


class Mutant(NamedTuple):
    """One changed module: its path in the project, the first line that differs, before and after, and all of it."""

    path: str
    line: int
    was: str
    now: str
    code: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What stays the same when lines move."""
        return self.path, self.was.strip(), self.now.strip()


def drawn(root: Path, number: int, seed: int, under: str = "") -> Iterator[Mutant]:
    """As many mutants, of modules by their number of spots."""
    modules = [
        path
        for path in sorted((root / "chunkflow").rglob("*.py"))
        if under in str(path) and not any(part in str(path) for part in ELSEWHERE)
    ]
    rng, seen = random.Random(seed), set()
    sizes = [path.stat().st_size for path in modules]
    while len(seen) < number:
        path = rng.choices(modules, sizes)[0]
        spots = _spots(path)
        if not spots:
            continue
        operator, occurrence = rng.choice(rng.choice(spots))
        mutant = _mutant(root, path, operator, occurrence)
        if mutant is not None and mutant.key not in seen:
            seen.add(mutant.key)
            yield mutant


@cache
def _spots(path: Path) -> list[list[tuple[str, int]]]:
    """Each place of a module that can be changed, with the operators that do so, and how often each was met before."""
    tree, found = get_ast(path.read_text()), defaultdict(list)
    for name in filter(CHANGES.match, operator_names()):
        operator = get_operator(name)()
        places = (place for node in ast_nodes(tree) for place in operator.mutation_positions(node))
        for occurrence, place in enumerate(places):
            if not SAME.search(name):
                found[place].append((name, occurrence))
    return list(found.values())


def _mutant(root: Path, path: Path, operator: str, occurrence: int) -> Mutant | None:
    """The changed module; None if it is known to do the same."""
    code = path.read_text()
    changed = mutate_code(code, get_operator(operator)(), occurrence)
    if changed is None or _meaning(changed) in (None, _meaning(code)):
        return None
    lines = list(zip(code.splitlines(), changed.splitlines(), strict=False))
    line = next(i for i, (before, after) in enumerate(lines) if before != after)
    return Mutant(str(path.relative_to(root)), line + 1, *lines[line], changed)


class _Effect(ast.NodeTransformer):
    """Leaves out what does nothing in a program that is right: annotations, assertions, and how strict things are."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(node.arg)

    def visit_keyword(self, node: ast.keyword) -> ast.AST | None:
        return None if node.arg in ("strict", "frozen", "slots", "eq") else self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return ast.Pass()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        return ast.AnnAssign(node.target, ast.Constant(0), node.value, node.simple)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)


def _meaning(code: str) -> str | None:
    """What a module does; None if it is no Python."""
    try:
        return ast.dump(_Effect().visit(ast.parse(code)))
    except SyntaxError:
        return None
