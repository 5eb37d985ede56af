"""How many examples Hypothesis draws: a share of what the profile asks for, few in CI and many in `make thorough`."""

from __future__ import annotations

from hypothesis import settings


def examples(share: float) -> int:
    """Number of a test's examples, as a share of those that the profile asks for.

    A test that runs in ten places draws other ones in each: a quarter for each is more than one place would draw.
    """
    return max(1, round(share * settings().max_examples))
