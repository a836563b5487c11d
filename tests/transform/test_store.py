"""Generated modules on disk, memory, and calls from several threads."""

import os
import textwrap
import threading

import numpy as np
import pytest
from processes import FORBIDDEN, check_stored, finish, run, start, written

import tapegrad as tg

PROGRAM = """
    import math

    import numba
    import numpy as np

    import tapegrad as tg

    @numba.njit
    def weight(x):
        return math.exp(-x * x)

    @tg.njit
    def own(x):
        return x * x

    @own.defvjp
    def own_vjp(x, z, g):
        return (3.0 * g,)

    @tg.njit
    def total(x, n):
        s = 0.0
        for i in range(n):
            x[0] = math.sin(x[0]) + 0.1
            s += weight(x[0]) * x[1]
        return s + own(x[1])

    @tg.njit
    def power(x, n):
        if n == 1:
            return x
        return x * power(x, n - 1)

    slope = tg.grad(own)

    @tg.njit
    def nested(y):
        return slope(y) * y

    x = np.array([0.3, 0.7])
    print(tg.grad(total)(x.copy(), 4).tolist())
    print(tg.hvp(total)(x.copy(), 4, np.ones(2)).tolist())
    print(tg.jacobian(tg.grad(total))(x.copy(), 4).tolist())
    print(tg.grad(tg.grad(weight))(0.5))
    print(tg.grad(nested)(2.0))
    print(tg.value_and_grad(power)(2.0, 5))
"""


def test_second_process_analyses_nothing(ran, tmp_path):
    check_stored(*ran(PROGRAM, tmp_path))


def test_second_process_imports_no_rules(ran, tmp_path):
    path, cache, first = ran(
        """
        import numpy as np

        import tapegrad as tg

        @tg.njit
        def total(x, n):
            s = 0.0
            for i in range(n):
                s += np.sin(x[i]) * x[i] ** 2
            return s

        print(tg.value_and_grad(total)(np.linspace(0.0, 1.0, 50), 50))
        """,
        tmp_path,
    )
    rules = 'sys.modules["tapegrad.transform.rules.arrays"] = None'
    assert run(path, cache, FORBIDDEN + rules) == first


def test_edited_callee_is_seen(ran, tmp_path):
    path, cache, first = ran(PROGRAM, tmp_path)
    path.write_text(textwrap.dedent(PROGRAM).replace("-x * x", "-2.0 * x * x"))
    assert run(path, cache) != first


SMALL = """
    import math
    import numpy as np
    import tapegrad as tg

    @tg.njit
    def one(x):
        return math.sin(x) * x

    @tg.njit
    def two(x):
        return math.cos(x) * x

    @tg.njit
    def swept(v):
        s = 0.0
        for i in range(v.size):
            s += v[i] ** 3
        return s

    @tg.njit
    def spread(v, m):
        return np.sum(v * m)

    print(tg.grad(one)(0.5), tg.grad(two)(0.5), tg.grad(swept)(np.ones(2)).tolist())
    for dtype in (np.float32, np.float64):  # of functions of our own there is code for both
        print(tg.grad(spread)(np.ones(2, dtype), np.ones((3, 2), dtype)).tolist())
    x = tg.tensor(0.5, requires_grad=True)
    (tg.sin(x) * x).backward()
    print(x.grad)
"""


@pytest.mark.parametrize("damage", ["cut", "flipped", "exchanged"])
def test_damaged_files_are_made_again(ran, tmp_path, damage):
    """Modules, the machine code of their functions, and that of kernels."""
    path, cache, first = ran(SMALL, tmp_path)
    files = sorted([*cache.glob("*.o"), *(cache / "njit").iterdir()])
    assert {file.suffix for file in files} == {".o", ".py", ".nbc"}
    blobs = [file.read_bytes() for file in files]
    for k, (file, blob) in enumerate(zip(files, blobs, strict=True)):
        others = [b for f, b in zip(files, blobs, strict=True) if f.suffix == file.suffix]
        file.write_bytes(
            {
                "cut": blob[: len(blob) * (k + 1) // (len(files) + 1)],
                "flipped": blob[:-20] + bytes([blob[-20] ^ 4]) + blob[-19:],
                "exchanged": others[others.index(blob) - 1],
            }[damage]
        )
    printed, warned = finish(start(path, cache, warnings="default"))
    assert printed == first
    assert warned.count("it is made again") == len(files)
    assert run(path, cache, FORBIDDEN) == first
    assert sorted([*cache.glob("*.o"), *(cache / "njit").iterdir()]) == files


RECURSIVE = """
    import tapegrad as tg

    @tg.njit
    def power(x, n):
        if n <= 1:
            return x
        return power(x * x, n - 1) * x

    print(tg.grad(power)(1.5, 3), tg.jvp(power)(1.5, 3, 1.0))
"""


def test_recursive_function(ran, tmp_path):
    """Its machine code is not kept, and compiled from what is on disk by a new process."""
    path, cache, first = ran(RECURSIVE, tmp_path)
    assert run(path, cache, FORBIDDEN) == first


LOST = """
    import io
    import os
    import sys
    import warnings
    from contextlib import redirect_stdout
    from pathlib import Path

    import numba
    import numpy as np

    import tapegrad as tg

    @numba.njit
    def step(x):  # which is not inlined
        for _ in range(3):
            if x > 9.0:
                return 1.0
            x = x * np.sin(x)
        return x

    @tg.njit
    def f(x, n):
        for _ in range(n):
            x = step(x) * x
        return x

    def forked():
        # what a new process prints, and what it warns of
        read, write = os.pipe()
        if not os.fork():
            out = io.StringIO()
            with warnings.catch_warnings(record=True) as caught, redirect_stdout(out):
                warnings.simplefilter("always")
                try:
                    print(tg.value_and_grad(f)(0.7, 5))
                except BaseException as error:
                    print(type(error), error)
            told = [str(w.message) for w in caught]
            os.write(write, "\\0".join([out.getvalue(), *told]).encode())
            os._exit(0)
        os.close(write)
        with open(read) as found:
            printed, *told = found.read().split("\\0")
        os.wait()
        return printed, told

    def exchanged(blob):
        return next(b for b in blobs.values() if b != blob)

    DAMAGES = {
        "lost": None,
        "cut": lambda blob: blob[: len(blob) // 2],
        "flipped": lambda blob: blob[:-9] + bytes([blob[-9] ^ 4]) + blob[-8:],
        "exchanged": exchanged,
    }
    folder = Path(os.environ["TAPEGRAD_CACHE_DIR"], "njit")
    first, told = forked()
    assert not told, told
    print(first)
    files = sorted(folder.iterdir())
    assert {file.suffix for file in files} == {".py", ".nbc"}
    made = set()
    for order, damages in (files, DAMAGES), (files[::-1], ["lost"]):
        for what in damages:
            damage = DAMAGES[what]
            for file in order:
                blobs = {other: other.read_bytes() for other in files}
                bad = b"" if damage is None else damage(blobs[file])
                file.write_bytes(bad)
                if damage is None:
                    file.unlink()
                printed, told = forked()
                assert printed == first, (what, file.name, printed)
                assert set(folder.iterdir()) <= set(files), (what, file.name)
                if file.exists() and file.read_bytes() != bad:
                    made.add((what, file.suffix))
                    assert len(told) == (what != "lost"), (what, file.name, told)
                    assert all(str(file) in line and "\\n" not in line for line in told), told
                else:  # nothing reads it: it is part of another
                    assert not told and file.suffix == ".nbc", (what, file.name, told)
                    file.write_bytes(blobs[file])
    assert made == {(what, suffix) for what in DAMAGES for suffix in (".py", ".nbc")}, made
    assert forked() == (first, [])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_files_lost_and_damaged_one_by_one(tmp_path, monkeypatch):
    """Each is made again from the others, in both orders; what is damaged is told in one line."""
    monkeypatch.setenv("NUMBA_OPT", "3")  # without optimization numba caches no function that calls
    assert run(written(tmp_path, LOST), tmp_path / "cache")


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="modes are POSIX")
def test_folder_that_others_can_write(ran, tmp_path):
    path, cache, first = ran(SMALL, tmp_path)
    for folder in (cache, cache / "njit"):
        folder.chmod(0o777)
        for file in folder.rglob("*.py"):
            file.write_text("import os; os.abort()\n")
        printed, warned = finish(start(path, cache, warnings="default"))
        assert printed == first
        assert warned.count("RuntimeWarning") == 1 and "can be written by others" in warned
        private = warned.partition("the cache folder ")[2].partition(" ")[0]
        assert private == str(folder)
        folder.chmod(0o700)


def test_folder_that_cannot_be_written(ran, tmp_path):
    path, _, first = ran(SMALL, tmp_path)
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert run(path, blocked / "below") == first


def test_full_disk(ran, tmp_path):
    path, _, first = ran(SMALL, tmp_path)
    cache = tmp_path / "another"
    full = """
import tempfile
def mkstemp(*args, **options):
    raise OSError(28, "No space left on device")
tempfile.mkstemp = mkstemp
"""
    assert run(path, cache, full) == first
    assert [p for p in cache.rglob("*") if p.is_file()] == []


def test_processes_at_the_same_time(tmp_path):
    path, cache = written(tmp_path, SMALL), tmp_path / "cache"
    found = [finish(process)[0] for process in [start(path, cache) for _ in range(3)]]
    assert len(set(found)) == 1
    assert run(path, cache, FORBIDDEN) == found[0]


NESTS = """
    import collections
    import math

    import numpy as np

    import tapegrad as tg

    Pair = collections.namedtuple("Pair", "a b")

    @tg.njit
    def cubic(x):
        return x * x * x * math.sin(x)

    @tg.njit
    def own(x):
        return x * x

    @own.defvjp
    def own_vjp(x, z, g):
        return (3.0 * x * g,)

    @tg.njit
    def energy(p, w):
        return p.a * p.a * p.b * w

    @tg.njit
    def cubes(v, n):
        s = 0.0
        for i in range(n):
            s += v[i] ** 3
        return s

    @tg.njit
    def bent(v, w):
        return np.array([v[0] * v[1] * w, math.sin(v[2] * w)])

    pushed, derivative = tg.jvp(cubic), tg.grad(own)
    product, pair_slope = tg.hvp(cubes), tg.grad(energy)
    rows, curve = tg.jacobian(bent), tg.hessian(energy, 1)

    @tg.njit
    def uses_pushed(x):
        value, dot = pushed(x, 2.0)
        return value * dot

    @tg.njit
    def uses_derivative(x):
        return derivative(x) * x  # not what a generated caller calls so

    again = tg.jvp(uses_pushed)

    @tg.njit
    def uses_again(x):
        value, dot = again(x, 1.0)
        return value + dot

    @tg.njit
    def uses_product(v):
        s = 0.0
        p = product(v, 3, v * 2.0)
        for i in range(3):
            s += p[i]
        return s

    @tg.njit
    def uses_pair(a, b):
        g = pair_slope(Pair(a, b), 2.0)
        return g.a * g.b

    @tg.njit
    def uses_matrices(v, w):
        return rows(v, w)[0, 1] ** 2 + curve(Pair(w, v[0]), 2.0) + w

    @tg.njit
    def applied(f, x):
        return f(x) * x

    def difference(f, x, h=1e-5):
        return (f(x + h) - f(x - h)) / (2 * h)

    for f in (uses_pushed, uses_derivative, uses_again):
        gradient = tg.grad(f)
        print(f.py_func.__name__, gradient(0.7), tg.jvp(f)(0.7, 1.0), tg.grad(gradient)(0.7))
        assert abs(gradient(0.7) / difference(f, 0.7) - 1.0) < 1e-7
        assert abs(tg.grad(gradient)(0.7) / difference(gradient, 0.7) - 1.0) < 1e-7
    v, ones = np.array([0.3, 0.5, 0.9]), np.ones(3)
    print(tg.jvp(uses_product)(v, ones))
    assert abs(tg.jvp(uses_product)(v, ones)[1] / (24.0 * v.sum()) - 1.0) < 1e-12
    print(tg.grad(uses_product)(v), tg.grad(uses_matrices, 1)(v, 0.7))
    assert abs(tg.grad(uses_product)(v) / (24.0 * v) - 1.0).max() < 1e-12
    assert abs(tg.grad(uses_matrices, 1)(v, 0.7) - (2.0 * v[0] ** 2 * 0.7 + 1.0)) < 1e-12
    print(tg.jvp(uses_pair, (0, 1))(0.4, 0.6, 1.0, 1.0), tg.grad(energy)(Pair(0.4, 0.6), 2.0))
    assert abs(tg.grad(applied, 1)(uses_pushed, 0.7) / difference(
        lambda x: uses_pushed(x) * x, 0.7) - 1.0) < 1e-7
"""


def test_nested_derivatives_in_every_process(tmp_path):
    path, cache = written(tmp_path, NESTS), tmp_path / "cache"

    def modules():
        return sorted((cache / "njit").glob("*.py"))

    first = run(path, cache)
    made = modules()
    # one of them is lost, and others lead to it
    for file in made[::3]:
        file.unlink()
    assert run(path, cache) == first
    # the same modules have the same keys in every process
    assert set(modules()) <= set(made)
    for file in modules():
        file.unlink()
    assert run(path, cache) == first
    assert modules() == made


CACHED_CALLER = """
    import math

    import numba
    import numpy as np

    import tapegrad as tg

    @numba.njit
    def steps(start, n):  # whose arrays are in memory of the loop
        u = start.copy()
        for _ in range(n):
            after = u.copy()
            for i in range(1, u.size - 1):
                after[i] = math.exp(-u[i + 1] * u[i - 1])
            u = after
        return np.sum(u)

    @numba.njit
    def escape(x, n):  # which has a tape
        s = 0.0
        for i in range(x.size):
            z, k = x[i], 0
            while z < n and k < 100:
                z = z * z + math.sin(z) + 0.5
                k += 1
            s += z * z
        return s

    @numba.njit
    def waves(x):  # whose gradient is a large array
        return np.sum(np.sin(x) ** 2)

    gradients = tg.grad(steps), tg.grad(escape), tg.grad(waves)
    of_steps, of_escape, of_waves = gradients

    @numba.njit(cache=True)
    def caller(x, large):
        return of_steps(x, 3), of_escape(x, 3.0), of_waves(large).sum()

    print(caller(np.linspace(0.0, 1.0, 50), np.linspace(0.0, 9.0, 50_000)))
"""


def test_cached_callers_of_derivatives(tmp_path, monkeypatch):
    """numba loads the machine code of the caller, and nothing asks for that of the derivatives."""
    monkeypatch.setenv("NUMBA_OPT", "3")  # without optimization numba caches no function that calls
    path, cache = written(tmp_path, CACHED_CALLER), tmp_path / "cache"
    first = run(path, cache)
    indices = list(tmp_path.rglob("program.caller-*.nbi"))
    assert len(indices) == 1
    before = indices[0].stat().st_mtime_ns
    assert run(path, cache) == first
    assert indices[0].stat().st_mtime_ns == before  # it was loaded


@tg.njit
def logistic(r, x, n):
    for _ in range(n):
        x = r * x * (1.0 - x)
    return x


def test_memory_error_before_memory_runs_out():
    with pytest.raises(MemoryError, match="do not fit into memory"):
        tg.grad(logistic)(3.0, 0.3, 10**13)
    assert np.isfinite(tg.grad(logistic)(3.0, 0.3, 10))


def test_threads_have_tapes_of_their_own():
    gradient = tg.grad(logistic, (0, 1))
    expected = {n: gradient(2.9, 0.3, n) for n in (10, 1000, 50_000)}
    wrong = []

    def work(n):
        wrong.extend(n for _ in range(20) if gradient(2.9, 0.3, n) != expected[n])

    threads = [threading.Thread(target=work, args=(n,)) for n in expected for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
