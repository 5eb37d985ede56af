"""``python -m torture.sanitize``: the tests of the compiled modules, built with sanitizers in a copy of the tree.

AddressSanitizer sees each access beyond a buffer or to memory that was given back, UndefinedBehaviorSanitizer what C
leaves undefined. Either ends the process. Python's own memory comes from the C library then, so that it is watched too.
Arguments are pytest's, in place of `TESTS`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("_transfer", "_chunks")
FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-O1", "-g")
TESTS = (
    "tests/system/test_crc32c.py",
    "tests/system/test_host.py",
    "tests/devices/test_mover.py",
    "tests/devices/cpu",
    "tests/engine/staged",
    "tests/stores/file",
    "tests/stores/codecs",
    "tests/stores/caches",
    "tests/stores/kvstore/test_folder.py",
    "tests/stores/zarr",
    "tests/stores/hdf5",
    "tests/stores/test_mutated_files.py",
    "tests/api/test_mapping.py",
)
"""Those that call the modules, most with random or damaged input."""

MEASURES = "tests/stores/codecs/test_codecs.py::test_coding_takes_no_more_than_the_chain_says"
"""Compares memory, of which sanitizers take some."""


def main() -> int:
    arguments = sys.argv[1:] or ["-q", *TESTS, "--deselect", MEASURES]
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    libraries = [_found(compiler, name) for name in ("libasan.so", "libubsan.so")]
    if None in libraries:
        print(f"{compiler} has no sanitizers")
        return 2
    with tempfile.TemporaryDirectory(prefix="sanitize") as place:
        for name in ("chunkflow", "tests", "docs", "conftest.py", "pyproject.toml"):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
            copy(ROOT / name, Path(place) / name)
        native = Path(place, "chunkflow", "system", "native")
        for name in MODULES:
            library = native / f"{name}.abi3.so"
            include = f"-I{sysconfig.get_path('include')}"
            command = [compiler, *FLAGS, "-shared", "-fPIC", "-pthread", include, native / f"{name}.c", "-o", library]
            subprocess.run(command, check=True)
        environment = os.environ | {
            "LD_PRELOAD": ":".join(map(str, libraries)),
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",  # what Python keeps until its end is no leak
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "PYTHONMALLOC": "malloc",
            "PYTHONPATH": os.pathsep.join([place, str(Path(place, "tests"))]),
        }
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
        return subprocess.run(command, cwd=place, env=environment, check=False).returncode


def _found(compiler: str, library: str) -> Path | None:
    """Path of one of the compiler's libraries."""
    said = subprocess.run([compiler, f"-print-file-name={library}"], capture_output=True, text=True, check=False)
    path = Path(said.stdout.strip())
    return path.resolve() if path.is_absolute() and path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
