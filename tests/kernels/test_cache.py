"""The cache folder: which files are trusted, and how they are read and written."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tapegrad.kernels import cache

posix = pytest.mark.skipif(not hasattr(os, "getuid"), reason="owners and modes are POSIX")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder that is the cache, and is forgotten afterwards."""
    found = tmp_path / "cache"
    monkeypatch.setenv("TAPEGRAD_CACHE_DIR", str(found))
    return found


def test_what_was_written_is_read(place):
    file = cache.folder() / "a.o"
    for content in (b"", b"\0\1\n# tapegrad \n", os.urandom(100_000)):
        assert cache.write(file, "key", content)
        assert cache.read(file, "key") == content


def test_new_folders_and_files_are_private(place):
    file = cache.folder("njit") / "a.py"
    cache.write(file, "key", b"text")
    assert file.parent == place / "njit"
    if hasattr(os, "getuid"):
        modes = [stat.S_IMODE(p.stat().st_mode) for p in (place, file.parent, file)]
        assert modes == [0o700, 0o700, 0o600]


def test_missing_file_is_no_fault(place):
    assert cache.read(cache.folder() / "none.o", "key") is None


def test_every_damage_is_noticed(place):
    """Each byte of a file changed, every length that it can be cut to, and some that are longer."""
    file = cache.folder() / "a.o"
    cache.write(file, "key", b"some machine code\0\1")
    good = file.read_bytes()
    flipped = [good[:k] + bytes([good[k] ^ 1]) + good[k + 1 :] for k in range(len(good))]
    cut = [good[:k] for k in range(len(good))]
    for blob in [*flipped, *cut, good + b"\0", good * 2, b"\n" + good, b"\xff" * 200]:
        file.write_bytes(blob)
        with pytest.warns(RuntimeWarning, match="a.o is damaged") as caught:
            assert cache.read(file, "key") is None
        assert len(caught) == 1
        assert "\n" not in str(caught[0].message)
    file.write_bytes(good)
    assert cache.read(file, "key") == b"some machine code\0\1"


def test_exchanged_files_are_noticed(place):
    one, two = cache.folder() / "one.o", cache.folder() / "two.o"
    cache.write(one, "one", b"1")
    cache.write(two, "two", b"2")
    one.replace(two)
    with pytest.warns(RuntimeWarning, match="belongs to something else"):
        assert cache.read(two, "two") is None


@posix
@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o777])
def test_file_that_others_can_write_is_not_read(place, mode):
    file = cache.folder() / "a.o"
    cache.write(file, "key", b"text")
    file.chmod(mode)
    with pytest.warns(RuntimeWarning, match=rf"can be written by others \(mode {mode:04o}\)"):
        assert cache.read(file, "key") is None
    cache.write(file, "key", b"new")  # another file takes its place
    assert cache.read(file, "key") == b"new"


@posix
@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777, 0o1777])
def test_folder_that_others_can_write_is_not_used(place, mode):
    place.mkdir()
    place.chmod(mode)
    with pytest.warns(RuntimeWarning, match="is not used, for it can be written by others") as told:
        found = cache.folder("njit")
    assert len(told) == 1
    assert place not in found.parents
    assert stat.S_IMODE(found.stat().st_mode) == 0o700
    assert cache.write(found / "a.py", "key", b"text")
    assert cache.folder("njit") == found  # without another warning
    assert list(place.iterdir()) == []


@posix
def test_inner_folder_that_others_can_write_is_not_used(place):
    (place / "njit").mkdir(parents=True)
    (place / "njit").chmod(0o777)
    with pytest.warns(RuntimeWarning, match="njit is not used"):
        assert place not in cache.folder("njit").parents


@posix
def test_another_owner_is_not_trusted(place, monkeypatch):
    """Seen from the other side: the same file, by a process of another user."""
    file = cache.folder() / "a.o"
    cache.write(file, "key", b"text")
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.warns(RuntimeWarning, match=f"belongs to another user .uid {owner}"):
        assert cache.read(file, "key") is None
    cache._checked.cache_clear()
    with pytest.warns(RuntimeWarning, match=f"is not used, for it belongs to another .*{owner}"):
        assert cache.folder() != place
    cache._checked.cache_clear()


@posix
def test_links(place, tmp_path):
    """A link to a folder of one's own is followed, a link in place of a file is not."""
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    place.symlink_to(real)
    file = cache.folder() / "a.o"
    cache.write(file, "key", b"text")
    assert (real / "a.o").exists()
    (real / "b.o").symlink_to(real / "a.o")
    with pytest.warns(RuntimeWarning, match="is a link"):
        assert cache.read(place / "b.o", "key") is None
    assert cache.write(place / "b.o", "key", b"new")
    assert cache.read(file, "key") == b"text"  # what the link led to is left alone


@posix
def test_what_is_no_file_does_not_hang(place):
    root = cache.folder()
    os.mkfifo(root / "a.o", 0o600)
    with pytest.warns(RuntimeWarning, match="a.o is no plain file; it is made again"):
        assert cache.read(root / "a.o", "key") is None
    assert cache.write(root / "a.o", "key", b"text")
    assert cache.read(root / "a.o", "key") == b"text"


def test_folder_in_the_place_of_a_file(place):
    root = cache.folder()
    (root / "a.o").mkdir()
    with pytest.warns(RuntimeWarning, match="a.o is a folder; delete it"):
        assert cache.read(root / "a.o", "key") is None
    assert not cache.write(root / "a.o", "key", b"text")
    assert [p.name for p in root.iterdir()] == ["a.o"]


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() == 0, reason="root reads everything")
def test_file_that_cannot_be_read(place):
    file = cache.folder() / "a.o"
    cache.write(file, "key", b"text")
    file.chmod(0o200)
    with pytest.warns(RuntimeWarning, match="a.o cannot be read .Permission denied.; it is made"):
        assert cache.read(file, "key") is None


def test_file_in_the_place_of_a_folder(place, tmp_path, monkeypatch):
    monkeypatch.setenv("TAPEGRAD_CACHE_DIR", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    with pytest.warns(RuntimeWarning, match="file is not used, for it is no folder"):
        found = cache.folder("njit")
    assert cache.write(found / "a.py", "key", b"text")
    assert (tmp_path / "file").read_text() == ""


def test_folder_that_moves_with_nothing(tmp_path, monkeypatch):
    """A relative path starts where the process was when it imported the package."""
    for name in ("TAPEGRAD_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "below")
        found = cache.chosen()
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            assert cache.chosen() == found
        assert found.is_absolute() and found.is_relative_to(Path.cwd() / "below")
        monkeypatch.delenv(name)


KILLED = """
import os, signal, sys
from pathlib import Path
from tapegrad.kernels import cache
def sealed(key, content):
    os.kill(os.getpid(), signal.SIGKILL)
cache.sealed = sealed
cache.write(cache.folder("njit") / "a.py", "key", b"text")
"""


@posix
def test_unfinished_files_of_killed_processes(place):
    root = cache.folder("njit")
    for _ in range(2):
        subprocess.run([sys.executable, "-c", KILLED], check=False)
        assert len(list(root.iterdir())) == 1  # the second has deleted that of the first
    with (root / "tmp_being_written").open("wb") as file:
        cache.fcntl.flock(file, cache.fcntl.LOCK_EX)
        assert cache.write(root / "b.py", "key", b"text")
        assert {p.name for p in root.iterdir()} == {"b.py", "tmp_being_written"}


def test_interrupted_write(place, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    root = cache.folder()
    monkeypatch.setattr(cache, "sealed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.write(root / "a.o", "key", b"text")
    assert list(root.iterdir()) == []


def test_folder_that_cannot_be_made(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    for path in (blocked / "below", blocked / "further" / "below"):
        monkeypatch.setenv("TAPEGRAD_CACHE_DIR", str(path))
        assert cache.folder() is None
        assert cache.folder("njit") is None


def test_full_disk(place, monkeypatch):
    """What cannot be written leaves no parts behind."""
    root = cache.folder()
    cache.write(root / "a.o", "key", b"old")

    def full(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "sealed", full)
    assert not cache.write(root / "a.o", "key", b"new")
    assert cache.read(root / "a.o", "key") == b"old"
    assert [p.name for p in root.iterdir()] == ["a.o"]


def test_folder_deleted_meanwhile(place):
    root = cache.folder("njit")
    cache.write(root / "a.py", "key", b"text")
    (root / "a.py").unlink()
    root.rmdir()
    place.rmdir()
    assert cache.write(root / "a.py", "key", b"text")
    assert cache.read(root / "a.py", "key") == b"text"


def test_readers_see_all_or_nothing(place):
    """Writers and readers of one file at the same time."""
    file = cache.folder() / "a.o"
    contents = [bytes([k]) * 200_000 for k in range(4)]
    cache.write(file, "key", contents[0])
    wrong = []

    def write(content):
        for _ in range(40):
            cache.write(file, "key", content)

    def read():
        wrong.extend(1 for _ in range(100) if cache.read(file, "key") not in contents)

    threads = [threading.Thread(target=write, args=(c,)) for c in contents]
    threads += [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


KEYS = """
import os
from tapegrad.kernels import native
for name in ["NO_SETTING", "NUMBA_OPT", "NUMBA_CPU_NAME", "NUMBA_BOUNDSCHECK"]:
    os.environ[name] = "0"
    native._environment.cache_clear()
    print(native.fingerprint(b"x"))
    del os.environ[name]
"""


def test_code_of_other_settings_of_the_compiler_is_not_used():
    """Code that was compiled without optimization, for tests, would slow everything down."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")}

    def keys():
        done = subprocess.run(
            [sys.executable, "-c", KEYS],
            check=True,
            capture_output=True,
            text=True,
            env=environment,
        )
        return done.stdout.split()

    found = keys()
    assert keys() == found
    assert len({*found}) == 4
