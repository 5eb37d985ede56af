"""A drawing of an array and its chunks, as SVG for notebooks."""

from __future__ import annotations

from collections.abc import Iterator

from chunkflow.core.grid import Shape

LONGEST, SHORTEST = 150.0, 24.0
"""Pixels of the longest side, and of the shortest one at least."""

LINES = 12
"""Chunks that are drawn along a side at most: of more, lines are left out evenly."""

SLANT = 0.45
"""How far the third side goes across and down, for each pixel of its length."""

LEFT, TOP, ROOM = 4.0, 4.0, 62.0


def svg(shape: Shape, chunks: Shape | None = None) -> str:
    """The last three axes as a box, two as a rectangle, one as a bar; lines are borders of chunks.

    Nothing is drawn of arrays without axes or elements.

    >>> svg((4, 6), chunks=(2, 3)).count("<line")
    6
    >>> svg(())
    ''
    """
    shape, chunks = shape[-3:], None if chunks is None else chunks[-3:]
    if not shape or not all(shape):
        return ""
    sides = [LONGEST * (n / max(shape)) ** 0.4 for n in shape]  # long and short sides can both be seen
    sides = [max(SHORTEST, side) for side in sides]
    places = [[*_lines(n, c or n, side)] for n, c, side in zip(shape, chunks or shape, sides, strict=True)]
    depth = sides[0] * SLANT if len(shape) == 3 else 0.0
    height = sides[-2] if len(shape) > 1 else SHORTEST
    width = sides[-1]
    down = places[-2] if len(shape) > 1 else [0.0, height]
    # the face in front, which is the lower one on the right
    lines = [(depth, depth + y, depth + width, depth + y) for y in down]
    lines += [(depth + x, depth, depth + x, depth + height) for x in places[-1]]
    faces = [((depth, depth), (depth + width, depth), (depth + width, depth + height), (depth, depth + height))]
    if depth:
        faces.append(((0, 0), (width, 0), (depth + width, depth), (depth, depth)))
        faces.append(((0, 0), (depth, depth), (depth, depth + height), (0, height)))
        for z in (place * SLANT for place in places[0]):
            lines += [(z, z, z + width, z), (z, z, z, z + height)]
        lines += [(x, 0, x + depth, depth) for x in places[-1]] + [(0, y, depth, depth + y) for y in down]
    shades = ("#9db8d9", "#c3d4e8", "#7f9fc6")
    drawn = "".join(
        f'<polygon points="{" ".join(f"{x + LEFT:.1f},{y + TOP:.1f}" for x, y in face)}" fill="{shade}"/>'
        for face, shade in zip(faces, shades, strict=False)
    )
    drawn += "".join(
        f'<line x1="{a + LEFT:.1f}" y1="{b + TOP:.1f}" x2="{c + LEFT:.1f}" y2="{d + TOP:.1f}" stroke="#34506f"/>'
        for a, b, c, d in lines
    )
    across, below = LEFT + depth + width, TOP + depth + height
    texts = [(LEFT + depth + width / 2, below + 16, "middle", shape[-1])]
    if len(shape) > 1:
        texts.append((across + 6, TOP + depth + height / 2 + 4, "start", shape[-2]))
    if depth:
        texts.append((LEFT + depth / 2, below - depth / 2 + 14, "end" if depth > 40 else "middle", shape[0]))
    drawn += "".join(
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="12" fill="currentColor">{n}</text>'
        for x, y, anchor, n in texts
    )
    size = f'width="{across + ROOM:.0f}" height="{below + 24:.0f}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{drawn}</svg>'


def _lines(length: int, chunk: int, side: float) -> Iterator[float]:
    """Where the borders of chunks lie along a side, the ends too."""
    number = -(-length // chunk)
    step = -(-number // LINES)
    yield 0.0
    for n in range(step, number, step):
        yield side * n * chunk / length
    yield side
