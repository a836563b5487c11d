"""The memory of the tape of compiled gradients: growth, what is given back, and the limit."""

import inspect
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import tapegrad as tg


@tg.njit
def logistic(r, x, n):
    for _ in range(n):
        x = r * x * (1.0 - x)
    return x


@tg.njit
def stepped(x, eps):
    while x > eps:  # the number of steps is not known before
        x = x * (1.0 - 1e-5 * x)
    return x


@tg.njit
def replaced_arrays(start, rate, n):
    u = start.copy()
    v = start.copy()
    for _ in range(n):
        w = np.sin(u)
        u = w * rate + v
        v = w * u
    return np.sum(u * u)


@tg.njit
def swapped_arrays(start, rate, n):
    u = start.copy()
    v = start.copy()
    for _ in range(n):
        for k in range(u.size):
            v[k] = np.sin(u[k]) * rate
        u, v = v, u
    return np.sum(u * u)


@pytest.fixture
def limit():
    """Set limits for one test."""
    yield tg.set_tape_limit
    tg.set_tape_limit(None)


class TestLimit:
    def test_numbers(self, limit):
        gradient = tg.grad(logistic)
        expected = gradient(3.1, 0.2, 10_000)
        limit(80_000)
        assert gradient(3.1, 0.2, 10_000) == expected
        with pytest.raises(MemoryError, match=r"limit that tg.set_tape_limit sets; take fewer"):
            gradient(3.1, 0.2, 10_001)
        assert gradient(3.1, 0.2, 10_000) == expected
        limit(None)
        assert np.isfinite(gradient(3.1, 0.2, 10_001))

    def test_arrays(self, limit):
        gradient = tg.grad(replaced_arrays)
        x = np.linspace(0.1, 1.0, 1000)
        expected = gradient(x, 0.3, 50)
        limit(500_000)
        with pytest.raises(MemoryError, match=r"limit that tg.set_tape_limit sets"):
            gradient(x, 0.3, 50)
        np.testing.assert_array_equal(gradient(x, 0.3, 3), gradient(x, 0.3, 3))
        limit(5_000_000)
        np.testing.assert_array_equal(gradient(x, 0.3, 50), expected)

    def test_an_array_that_is_kept_often_counts_once(self, limit):
        @tg.njit
        def often(x, n):
            u, v = np.exp(x), np.sin(x)
            total = 0.0
            for _ in range(n):
                total += np.sum(u * u) * v[0]
                u, v = v, u
            return total

        gradient = tg.grad(often)
        x = np.linspace(0.1, 1.0, 10_000)
        expected = gradient(x, 300)
        assert "runtime.push_array(tape, top, u" in often.adjoint_source(x, 300)
        limit(2_000_000)  # 300 times 80 kB without the count
        np.testing.assert_array_equal(gradient(x, 300), expected)

    def test_second_derivatives(self, limit):
        hessian = tg.hessian(logistic)
        expected = hessian(3.1, 0.2, 1000)
        limit(20_000)
        with pytest.raises(MemoryError, match=r"limit that tg.set_tape_limit sets"):
            hessian(3.1, 0.2, 10_000)
        limit(None)
        assert hessian(3.1, 0.2, 1000) == expected

    def test_a_call_in_compiled_code(self, limit):
        gradient = tg.grad(logistic)

        @tg.njit
        def descended(r, n):
            return r - 0.1 * gradient(r, 0.2, n)

        expected = descended(3.1, 5000)
        limit(80_000)
        with pytest.raises(MemoryError, match=r"limit that tg.set_tape_limit sets"):
            descended(3.1, 50_000)
        limit(None)
        assert descended(3.1, 5000) == expected

    def test_it_is_read_by_code_from_the_cache(self, tmp_path):
        (tmp_path / "program.py").write_text(
            textwrap.dedent(
                """
                import sys
                import tapegrad as tg

                @tg.njit
                def logistic(r, x, n):
                    for _ in range(n):
                        x = r * x * (1.0 - x)
                    return x

                if sys.argv[1] != "none":
                    tg.set_tape_limit(int(sys.argv[1]))
                try:
                    print(tg.grad(logistic)(3.1, 0.2, 1000))
                except MemoryError:
                    print("refused")
                """
            )
        )
        found = [
            subprocess.run(
                [sys.executable, tmp_path / "program.py", limit],
                capture_output=True,
                text=True,
                check=True,
            ).stdout.strip()
            for limit in ("none", "7999", "8000", "none")
        ]
        assert found[1] == "refused"
        assert found[0] == found[2] == found[3] != "refused"

    @pytest.mark.parametrize("wrong", [1.5, "1", True, np.float64(3.0)])
    def test_other_types(self, wrong):
        with pytest.raises(TypeError, match="limit must be an integer number of bytes or None"):
            tg.set_tape_limit(wrong)

    def test_negative(self):
        with pytest.raises(ValueError, match="limit must not be negative, got -1"):
            tg.set_tape_limit(-1)

    def test_any_integer(self, limit):
        limit(np.int32(800_000))
        with pytest.raises(MemoryError):
            tg.grad(logistic)(3.1, 0.2, 200_001)
        limit(10**30)
        assert np.isfinite(tg.grad(logistic)(3.1, 0.2, 200_001))
        limit(0)
        with pytest.raises(MemoryError):
            tg.grad(logistic)(3.1, 0.2, 4_000_000)


PROGRAM = """
import gc, resource
import numpy as np
import tapegrad as tg

def memory(which=1):
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[which]) * 4096

def refused(gradient, *arguments):
    try:
        gradient(*arguments)
    except MemoryError:
        return True
    return False
"""
PROGRAM += "\n".join(inspect.getsource(f.py_func) for f in (logistic, stepped, replaced_arrays))
PROGRAM += "gradient = tg.grad(logistic)\ngradient(3.1, 0.2, 10)\n"


def run(tmp_path, code):
    """Run code after `PROGRAM` in a process of its own."""
    (tmp_path / "program.py").write_text(PROGRAM + textwrap.dedent(code))
    subprocess.run([sys.executable, tmp_path / "program.py"], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
class TestMemory:
    def test_a_refused_call_gives_its_memory_back(self, tmp_path):
        run(
            tmp_path,
            """
            tg.set_tape_limit(80_000_000)
            before = memory()
            for _ in range(5):
                assert refused(tg.grad(stepped), 1.0, 0.00001)
            assert memory() < before + 60_000_000
            """,
        )

    def test_kept_arrays_are_given_back_too(self, tmp_path):
        run(
            tmp_path,
            """
            x = np.linspace(0.1, 1.0, 10_000)
            gradient = tg.grad(replaced_arrays)
            gradient(x, 0.3, 3)
            tg.set_tape_limit(40_000_000)
            before = memory()
            for _ in range(10):
                assert refused(gradient, x, 0.3, 10_000)
            assert memory() < before + 80_000_000
            """,
        )

    def test_a_tape_that_is_too_large_is_made_smaller(self, tmp_path):
        run(
            tmp_path,
            """
            before = memory()
            expected = gradient(3.1, 0.2, 8_000_000)
            assert memory() > before + 50_000_000  # it stays for the next call
            for _ in range(9):
                gradient(3.1, 0.2, 10)
            assert memory() > before + 50_000_000
            for _ in range(30):
                gradient(3.1, 0.2, 10)
            assert memory() < before + 16_000_000
            assert gradient(3.1, 0.2, 8_000_000) == expected
            """,
        )

    def test_a_tape_that_is_needed_stays(self, tmp_path):
        run(
            tmp_path,
            """
            before = memory()
            for _ in range(15):
                gradient(3.1, 0.2, 8_000_000)
                for _ in range(9):
                    gradient(3.1, 0.2, 10)
            assert memory() > before + 50_000_000
            """,
        )

    def test_a_growing_tape_is_not_copied(self, tmp_path):
        run(
            tmp_path,
            """
            gradient = tg.grad(stepped)
            gradient(1.0, 0.99)
            needed = 8 * 9_900_000  # one number in each step
            most = memory(0) + 1.8 * needed
            resource.setrlimit(resource.RLIMIT_AS, (int(most), int(most)))
            assert not refused(gradient, 1.0, 0.01)
            assert refused(gradient, 1.0, 0.004)
            """,
        )


def test_threads_reach_the_limit_on_their_own(limit):
    gradient = tg.grad(logistic)
    expected = gradient(3.1, 0.2, 10_000)
    limit(80_000)
    found = []

    def work(n):
        for _ in range(20):
            try:
                found.append(gradient(3.1, 0.2, n))
            except MemoryError:
                found.append(None)

    threads = [threading.Thread(target=work, args=(n,)) for n in (10_000, 10_000, 20_000, 20_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found, key=str) == sorted([expected] * 40 + [None] * 40, key=str)


def test_swapped_arrays_of_second_order(limit):
    x = np.linspace(0.1, 1.0, 4)
    hessian = tg.hessian(swapped_arrays)(x, 0.9, 200)
    gradient = tg.grad(swapped_arrays)
    for k in range(4):
        step = 1e-6 * np.eye(4)[k]
        difference = (gradient(x + step, 0.9, 200) - gradient(x - step, 0.9, 200)) / 2e-6
        np.testing.assert_allclose(hessian[k], difference, rtol=1e-5, atol=1e-9)
