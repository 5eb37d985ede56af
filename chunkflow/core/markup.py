"""Pieces of HTML, as notebooks show arrays, plans and reports. Whatever is put into them is text, and no markup."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape as text

__all__ = ["Printed", "bullets", "preformatted", "table", "text"]


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table.

    >>> table(["a", "b"], [[1, "<"]])
    '<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>&lt;</td></tr></tbody></table>'
    """
    cells = "".join([f"<th>{text(cell)}</th>" for cell in head])
    lines = "".join(["<tr>" + "".join([f"<td>{text(str(cell))}</td>" for cell in row]) + "</tr>" for row in rows])
    return f"<table>{f'<thead><tr>{cells}</tr></thead>' if head else ''}<tbody>{lines}</tbody></table>"


def bullets(lines: Sequence[str]) -> str:
    """A list, or nothing if it is empty."""
    return f"<ul>{''.join([f'<li>{text(line)}</li>' for line in lines])}</ul>" if lines else ""


def preformatted(lines: str) -> str:
    """Text whose spaces and line ends stay."""
    return f'<pre style="overflow-x: auto">{text(lines)}</pre>'


class Printed:
    """Of a class whose ``str()`` is meant for people: notebooks show it too."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return preformatted(str(self))
