"""File systems of our own: mounted where nobody else sees them, and gone with the process."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

WITH_SBIN = os.environ | {"PATH": f"{os.environ.get('PATH', os.defpath)}:/sbin:/usr/sbin"}
NEW_NAMESPACE = 0x20000  # linux/sched.h: CLONE_NEWNS


def alone() -> list[str]:
    """Words of a command that starts another one where its mounts are its own."""
    return ["unshare", "--mount"] if not os.geteuid() else ["unshare", "--mount", "--map-root-user"]


def unshare() -> None:
    """Let what this process mounts from now on be its own."""
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_NAMESPACE):
        raise OSError(ctypes.get_errno(), "unshare")


def mount(what: str | Path, place: Path, *options: str, kind: str = "tmpfs") -> None:
    """Mount a file system, or mount it anew with other options."""
    subprocess.run(["mount", "-t", kind, "-o", ",".join(options), str(what), str(place)], check=True)


def unmount(place: Path) -> None:
    subprocess.run(["umount", str(place)], check=True)


def why_not(folder: Path, *kinds: str) -> str:
    """What keeps this machine from mounting file systems of some kinds, "tmpfs" or "ext4"; empty if nothing does."""
    for kind in kinds:
        place = folder / f"try {kind}"
        place.mkdir(exist_ok=True)
        needed = ("unshare", "mount") if kind == "tmpfs" else ("unshare", "mount", "mkfs.ext4")
        lacking = [program for program in needed if shutil.which(program, path=WITH_SBIN["PATH"]) is None]
        if lacking:
            return f"there is no {lacking[0]}"
        tried = [sys.executable, "-m", "torture.mounts", kind, str(place)]
        done = subprocess.run([*alone(), *tried], capture_output=True, text=True, check=False)
        if done.returncode:
            return f"{kind} cannot be mounted: {(done.stderr or 'no reason is given').splitlines()[0]}"
    return ""


def image(path: Path, megabytes: int = 16) -> None:
    """Make a file with an empty ext4 in it."""
    with path.open("wb") as file:
        file.truncate(megabytes << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-b", "1024", "-J", "size=2", str(path)], check=True, env=WITH_SBIN)


def _try(kind: str, place: Path) -> None:
    what: str | Path = "tmpfs"
    if kind == "ext4":
        what = place.with_name("try.img")
        image(what)
    mount(what, place, "loop" if kind == "ext4" else "size=1m", kind=kind)
    unmount(place)


if __name__ == "__main__":
    _try(sys.argv[1], Path(sys.argv[2]))
