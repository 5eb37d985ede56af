"""Without cosmic-ray, which ``make mutants`` installs, no mutants are drawn."""

from __future__ import annotations

import importlib.util

collect_ignore = [] if importlib.util.find_spec("cosmic_ray") else ["draw.py", "__main__.py"]
