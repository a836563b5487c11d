"""Generated modules on disk that call ufuncs, implementations and methods."""

import textwrap

from processes import check_stored, run

PROGRAM = """
    import math
    import numba
    import numpy as np
    import tapegrad as tg
    from numba.experimental import jitclass
    from numba.extending import overload

    @numba.vectorize
    def wave(x, y):
        return math.sin(x) * y

    @numba.guvectorize("(n)->()")
    def total(a, out):
        out[0] = 0.0
        for i in range(a.size):
            out[0] += step(a[i])

    def step(x):
        raise NotImplementedError

    @overload(step)
    def _step(x):
        def number(x):
            return 2.0 * scaled(x) ** 2
        return number

    @numba.njit
    def scaled(x):
        return 1.5 * x

    @numba.cfunc("float64(float64)")
    def callback(x):
        return x * x

    @jitclass([("a", numba.float64)])
    class Model:
        def __init__(self, a):
            self.a = a

        def value(self, x):
            return self.a * x * 3.0

    @tg.njit
    def f(m, a):
        out = np.empty(1)
        total(wave(a, 0.5), out)
        return out[0] * step(a[0]) + callback(m.value(a[1])) * wave(a[0], a[1])

    m, a = Model(0.5), np.array([0.3, 0.7])
    print(tg.grad(f, 1)(m, a).tolist())
    print(tg.hvp(f, 1)(m, a, np.ones(2)).tolist())
"""


def test_second_process_analyses_nothing(ran, tmp_path):
    check_stored(*ran(PROGRAM, tmp_path))


def test_edited_callees_are_seen(ran, tmp_path):
    """Also where the edit is in what an implementation calls."""
    path, cache, first = ran(PROGRAM, tmp_path)
    text = textwrap.dedent(PROGRAM).replace("print(tg.hvp(f, 1)(m, a, np.ones(2)).tolist())\n", "")
    seen = {first.splitlines()[0]}
    for old, new in [("return math.sin(x) * y", "return math.cos(x) * y"), ("1.5 * x", "1.25 * x")]:
        text = text.replace(old, new)
        path.write_text(text)
        seen.add(run(path, cache).strip())
    assert len(seen) == 3
