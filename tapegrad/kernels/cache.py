"""The cache folder: checking, reading and writing its files.

The folder holds code that is executed. It is ``$TAPEGRAD_CACHE_DIR``, else
``$XDG_CACHE_HOME/tapegrad``, else ``~/.cache/tapegrad``; a relative path starts where the process
was when it imported the package. A folder or file is used only if the user of the process owns it
and nobody else can write to it. Otherwise the folder is replaced by a private one, which is deleted
when the process ends.

The first line of every file is a checksum of its key and content. A file that was damaged,
truncated or swapped with another is reported and created again. The checksum is not secret: it
detects accidents, while the owner and mode of a file show who can have written it.

A file is written under another name, and locked meanwhile. Files that were not finished because
their process was killed have no lock, and the next process that writes deletes them.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import shutil
import stat
import tempfile
import warnings
from pathlib import Path

from tapegrad.forks import process_lock

try:
    import fcntl
except ImportError:  # Windows deletes no file that is open
    fcntl = None  # type: ignore[assignment]

_HEAD = b"# tapegrad "
_UNFINISHED = "tmp"
_lock = process_lock()
try:
    _START = Path.cwd()
except OSError:  # it was deleted
    _START = Path()


def chosen() -> Path:
    """Return the folder named by the environment (it need not exist)."""
    if given := os.environ.get("TAPEGRAD_CACHE_DIR"):
        return _START / given
    base = os.environ.get("XDG_CACHE_HOME")
    return (_START / base if base else Path.home() / ".cache") / "tapegrad"


def folder(*below: str) -> Path | None:
    """Return a trusted folder of the cache, or None if there is none.

    Parameters
    ----------
    *below
        Names of the nested folders below the cache folder.
    """
    with _lock:
        try:
            return _checked(chosen(), below)
        except RuntimeError:  # no home folder
            return None


@functools.cache
def _checked(root: Path, below: tuple[str, ...]) -> Path | None:
    path: Path | None = root
    if below:
        parent = _checked(root, below[:-1])
        path = None if parent is None else parent / below[-1]
    if path is None:
        return None
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700, exist_ok=True)
        reason = distrust(path.stat())
    except OSError:
        return None  # it cannot be created or inspected, so there is nothing to load
    if not path.is_dir():
        reason = "is no folder"
    elif not os.access(path, os.X_OK):
        reason = "cannot be entered"
    if reason is None:
        return path
    warnings.warn(
        f"tapegrad: the cache folder {path} is not used, for it {reason}; a private folder is used "
        "in this process (TAPEGRAD_CACHE_DIR names another one)",
        RuntimeWarning,
        stacklevel=2,
    )
    return _private(below)


def _private(below: tuple[str, ...]) -> Path | None:
    """Return a private folder of this process."""
    root = _temporary()
    if root is None:
        return None
    found = root.joinpath(*below)
    try:
        found.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return found


@functools.cache
def _temporary() -> Path | None:
    try:
        root = Path(tempfile.mkdtemp(prefix="tapegrad-"))  # mode 0700
    except OSError:
        return None
    atexit.register(_remove, root, os.getpid())
    return root


def _remove(root: Path, process: int) -> None:
    if os.getpid() == process:  # not in a forked process
        shutil.rmtree(root, ignore_errors=True)


def distrust(status: os.stat_result) -> str | None:
    """Return why a folder or file is not trusted, or None if it is."""
    if not hasattr(os, "getuid"):
        return None  # without uids, the user's own folder is private by location
    if status.st_uid != os.getuid():
        return f"belongs to another user (uid {status.st_uid})"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"can be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
    return None


def sealed(key: str, content: bytes) -> bytes:
    """Return the content of a file preceded by its checksum."""
    return _HEAD + checksum(key, content).encode() + b"\n" + content


def checksum(key: str, content: bytes) -> str:
    """Return the checksum of a key and its content."""
    name = key.encode()
    return hashlib.sha256(len(name).to_bytes(8, "little") + name + content).hexdigest()


def read(path: Path, key: str) -> bytes | None:
    """Return the content of a file, or None if it is missing or must not be used.

    Parameters
    ----------
    path
        The file.
    key
        Key that it was written with.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    flags |= getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        if path.is_symlink():
            report(path, "is a link")
            return None
        if path.is_dir():
            report(path, "is a folder", "delete it, for nothing can be kept there")
            return None
        with os.fdopen(os.open(path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            reason = distrust(status) if stat.S_ISREG(status.st_mode) else "is no plain file"
            if reason is not None:
                report(path, reason)
                return None
            blob = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        report(path, f"cannot be read ({error.strerror})")
        return None
    head, _, content = blob.partition(b"\n")
    if head != _HEAD + checksum(key, content).encode():
        report(path, "is damaged or belongs to something else")
        return None
    return content


def report(path: Path, reason: str, remedy: str = "it is made again") -> None:
    """Warn that a file is not used."""
    warnings.warn(
        f"tapegrad: the cache file {path} {reason}; {remedy}", RuntimeWarning, stacklevel=3
    )


def write(path: Path, key: str, content: bytes) -> bool:
    """Write a file atomically; return whether that succeeded."""
    temporary: str | None = None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # may have been deleted
        _delete_unfinished(path.parent)
        handle, temporary = _locked(path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(sealed(key, content))
            file.flush()
            if fcntl is not None:
                Path(temporary).replace(path)
        if fcntl is None:
            Path(temporary).replace(path)
    except BaseException as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
        if isinstance(error, OSError):  # such as a full disk or a read-only home folder
            return False
        raise
    return True


def _locked(folder: Path) -> tuple[int, str]:
    """Return the handle and the name of a new file, which is locked."""
    while True:
        handle, name = tempfile.mkstemp(prefix=_UNFINISHED, dir=folder)  # mode 0600
        if fcntl is None:
            return handle, name
        with contextlib.suppress(OSError):  # of file systems without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        if Path(name).exists():  # another process may have been faster, and deleted it
            return handle, name
        os.close(handle)


@functools.cache
def _delete_unfinished(folder: Path) -> None:
    """Delete what killed processes left of files that they were writing, once in a process."""
    for path in folder.glob(f"{_UNFINISHED}*"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
