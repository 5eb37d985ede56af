"""Rows of tests/peers whose values are others on a GPU, and why: docs/gpu.md tells users."""

from __future__ import annotations

import re

_DIFFERENT = (
    (
        r"(floor_divide|remainder|divmod|true_divide|divide|less|equal|quantile|argmin|spacing)\(f4\[6, 8\].*",
        "numbers below 1.2e-38 count as zero",
    ),
    (
        r"((sum|nansum|prod|nanprod|mean|astype)\([fc]\d+\[4, 9, 3\]|concatenate\(\[i8\[3\], f4\[3\]\]).*'u\d'.*",
        "negative numbers cast to unsigned integers are 0",
    ),
    (r"reciprocal\(i8\[3, 4\]\)", "integers divided by zero"),
    (r"(round|around)\([iu]\d\[6, 8\], -1\)", "rounded as floats"),
    (r"(float_)?power\(c(8|16)\[3, 4\], .*\)", "complex powers at zero and infinity"),
    (r"interp\(f8\[4, 9, 3\], \[1, 0\], \[1, 2\]\)", "points that do not increase"),
    (r"fft\.(ifft|irfft|ifftn|irfftn)\(f8\[4, 9, 3\].*\)", "NaN spreads to both parts of a complex number"),
    (r"i0\(f8\[3, 3\]\)", "infinite at infinity, where NumPy's is NaN"),
)


def why_different(row: str) -> str | None:
    """Why a row, as it is printed, has other values on a GPU; None for NumPy's."""
    return next((why for pattern, why in _DIFFERENT if re.fullmatch(pattern, row)), None)
