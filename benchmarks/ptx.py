"""What the kernels of ensembles take of a device: ``python -m benchmarks.ptx``.

Each kernel is compiled to PTX and assembled by ``ptxas``, which says how many registers a thread
has, and how much of its local memory holds registers that were spilled. No device is needed, but
``pip install 'tapegrad[cuda]'``. The status is 1 if a kernel spills.
"""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numba
import numpy as np

import tapegrad as tg
from tapegrad.transform.ensembles.on_device import Kernel

from .njit.oscillators import van_der_pol
from .report import show_table

CAPABILITIES = ((7, 5), (8, 0), (9, 0))
FLOAT, VECTOR = numba.float64, numba.float64[::1]


def attraction(position, masses, k):
    """Energy of a mass on a spring between fixed masses."""
    energy = 0.5 * k * position[0] * position[0]
    for i in range(masses.size):
        square = 1e-2
        for axis in range(position.size):
            square += (position[axis] - i) ** 2
        energy -= masses[i] / np.sqrt(square)
    return energy


def kernels() -> Iterator[tuple[str, Any, tuple[Any, ...], tuple[bool, ...]]]:
    """Yield names, functions, the types of their arguments, and which have items."""
    oscillator, spring = tg.njit(van_der_pol), tg.njit(attraction)
    kinds, many = (FLOAT,) * 4 + (numba.int64,), (True,) * 4 + (False,)
    by = (0, 1, 2, 3)
    yield "van_der_pol", oscillator, kinds, many
    yield "its gradient", tg.value_and_grad(oscillator, by), kinds, many
    yield "its tangent", tg.jvp(oscillator, by), kinds + (FLOAT,) * 4, many + (True,) * 4
    yield "its Hessian's product", tg.hvp(oscillator), (*kinds, FLOAT), (*many, True)
    kinds, many = (VECTOR, VECTOR, FLOAT), (True, False, False)
    yield "attraction", spring, kinds, many
    yield "its gradient", tg.value_and_grad(spring, (0, 2)), kinds, many


@contextmanager
def compiling_for(capability: tuple[int, int]) -> Iterator[None]:
    """Let numba compile functions for a device that is not there."""
    from numba.cuda import dispatcher

    device = SimpleNamespace(compute_capability=capability)
    with mock.patch.object(dispatcher, "get_current_device", return_value=device):
        yield


def assembler() -> str:
    """Return the path of ``ptxas``: of the package that numba-cuda needs, or of the system."""
    spec = importlib.util.find_spec("nvidia")
    for place in spec.submodule_search_locations or () if spec else ():
        for found in sorted(Path(place).glob("**/bin/ptxas")):
            return str(found)
    if found := shutil.which("ptxas"):
        return found
    raise FileNotFoundError("ptxas is not installed: pip install 'tapegrad[cuda]'")


def measured(kernel: Kernel, capability: tuple[int, int]) -> dict[str, int]:
    """Return what a kernel takes: registers, bytes of the stack and bytes that are spilled."""
    ptx, _ = kernel.cuda.compile_ptx(kernel.kernel.py_func, kernel.signature(), cc=capability)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx, encoding="ascii")
        architecture = "sm_{}{}".format(*capability)
        command = [assembler(), "-v", f"-arch={architecture}", str(source), "-o", os.devnull]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    about = text[text.index("over_items") :]  # of the kernel, which is the first
    patterns = {
        "registers": r"Used (\d+) registers",
        "stack": r"(\d+) bytes stack frame",
        "spilled": r"(\d+) bytes spill stores",
    }
    return {name: int(re.search(pattern, about)[1]) for name, pattern in patterns.items()}


def main() -> int:
    """Print a table; the status says whether a kernel spills registers."""
    from numba import cuda

    rows, spilled = [], 0
    for name, function, kinds, many in kernels():
        function.compile(kinds)
        result = function.overloads[kinds].signature.return_type
        cells = []
        for capability in CAPABILITIES:
            with compiling_for(capability):
                kernel = Kernel(cuda, function, kinds, many, result)
                found = measured(kernel, capability)
            cells.append("{registers} / {stack} / {spilled}".format(**found))
            spilled += found["spilled"]
        rows.append((name, *cells))
    columns = [f"sm_{major}{minor}" for major, minor in CAPABILITIES]
    version = importlib.metadata.version("numba-cuda")
    title = f"Registers / bytes of stack / bytes spilled (numba-cuda {version})"
    show_table(title, ("", *columns), rows)
    return int(spilled > 0)


if __name__ == "__main__":
    sys.exit(main())
