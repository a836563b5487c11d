"""Generated modules on disk, memory, and calls from several threads."""

import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

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


def run(path, cache, prelude=""):
    """What the program prints in a process of its own."""
    environment = {**os.environ, "TAPEGRAD_CACHE_DIR": str(cache), "TAPEGRAD_VERIFY": "0"}
    made = subprocess.run(
        [sys.executable, "-c", f"{prelude}\nimport runpy; runpy.run_path({str(path)!r})"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    return made.stdout


def test_second_process_analyses_nothing(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM))
    cache = tmp_path / "cache"
    first = run(path, cache)
    files = sorted(p.name for p in (cache / "njit").glob("*.py"))
    assert files
    prelude = (
        "from tapegrad.transform.program import Program\n"
        "def refuse(self):\n    raise AssertionError('analysed again')\n"
        "Program.analyse = refuse\n"
    )
    assert run(path, cache, prelude) == first
    assert sorted(p.name for p in (cache / "njit").glob("*.py")) == files


def test_edited_callee_is_seen(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM))
    first = run(path, tmp_path / "cache")
    path.write_text(textwrap.dedent(PROGRAM).replace("-x * x", "-2.0 * x * x"))
    assert run(path, tmp_path / "cache") != first


def test_damaged_file_is_made_again(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM))
    first = run(path, tmp_path / "cache")
    for file in (tmp_path / "cache" / "njit").glob("*.py"):
        file.write_text(file.read_text()[:200])
    assert run(path, tmp_path / "cache") == first


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
