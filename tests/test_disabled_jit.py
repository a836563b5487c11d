"""Programs with numba's compiler switched off by ``NUMBA_DISABLE_JIT``."""

import os
import subprocess
import sys

PROGRAM = """
import sys
import numpy as np
import tapegrad as tg

def power(x, n):
    y = 1.0
    for _ in range(n):
        y *= x
    return y

def norm(x):
    return (x * x).sum()

if "decorated" in sys.argv:
    power, norm = tg.njit(power), tg.jit(norm)
w = tg.tensor([1.0, 2.0], requires_grad=True)
(w * w).sum().backward()
print(w.grad.tolist(), tg.grad(power)(3.0, 4), tg.grad(norm)(np.array([1.0, 2.0])).tolist())
"""


def test_functions_of_the_user_run_in_python(tmp_path):
    """tapegrad's own functions are needed from an earlier process."""
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)

    def run(*arguments, **variables):
        return subprocess.run(
            [sys.executable, str(script), *arguments],
            env={**os.environ, "TAPEGRAD_CACHE_DIR": str(tmp_path / "cache"), **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    refused = run("decorated", NUMBA_DISABLE_JIT="1")
    assert "RuntimeError: NUMBA_DISABLE_JIT is set" in refused.stderr
    compiled = run()
    assert compiled.stdout == "[2.0, 4.0] 108.0 [2.0, 4.0]\n", compiled.stderr
    in_python = run("decorated", NUMBA_DISABLE_JIT="1")
    assert in_python.stdout == compiled.stdout, in_python.stderr
