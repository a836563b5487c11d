"""What kernels take of a device: ``python -m benchmarks.studies.ptx``.

Each kernel of ensembles and of tensors is compiled to PTX and assembled by ``ptxas``, which says
how many registers a thread has, and how much of its local memory holds registers that were spilled.
No device is needed, but ``pip install 'tapegrad[cuda]'``. The status is 1 if a kernel spills, or if
one that computes in float32 uses float64.
"""

import argparse
import importlib.metadata
import importlib.util
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numba
import numpy as np
from numba import cuda

import tapegrad as tg
from benchmarks.measure.parts import add_part
from benchmarks.measure.tables import show_table
from benchmarks.programs import recorded_kernels
from benchmarks.programs.njit.oscillators import van_der_pol
from tapegrad.cuda.driver import Entry
from tapegrad.transform.ensembles.on_device import Kernel

CAPABILITIES = ((7, 5), (8, 0), (9, 0))
FLOAT, VECTOR = numba.float64, numba.float64[::1]
# libdevice reduces large arguments of these in float64; the others need its precision
OF_DOUBLES = {"sin", "cos", "tan", "sinc", "gammaln", "betaln", "digamma", "polygamma"}
OF_DOUBLES |= {"erfcx_derivative", "sinc_derivative", "erfcx", "log_ndtr"}
OF_DOUBLES |= {"i0", "i1", "i0e", "i1e", "ie_ratio"}

Part = Callable[[list[Any]], list[Any]]


def attraction(position, masses, k):
    """Energy of a mass on a spring between fixed masses."""
    energy = 0.5 * k * position[0] * position[0]
    for i in range(masses.size):
        square = 1e-2
        for axis in range(position.size):
            square += (position[axis] - i) ** 2
        energy -= masses[i] / np.sqrt(square)
    return energy


def ensembles() -> Iterator[tuple[str, Any, tuple[Any, ...], tuple[bool, ...]]]:
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
    yield "a gradient alone", tg.grad(spring), kinds, many
    kinds, many = (FLOAT, FLOAT), (True, True)
    yield "rounded", tg.njit(rounded), kinds, many
    yield "its gradient", tg.value_and_grad(tg.njit(rounded), (0, 1)), kinds, many


def rounded(x, k):
    """Functions of NumPy that numba does not know on a device."""
    total = np.floor(3.0 * x) * k + np.ceil(x) * x + np.trunc(k) + np.rint(x * k) * x
    return total + np.cbrt(x) * np.exp2(k) + np.sign(x - k) * np.square(x) + np.hypot(x, k)


@contextmanager
def compiling_for(capability: tuple[int, int]) -> Iterator[None]:
    """Let numba compile functions for a device that is not there."""
    from numba.cuda import dispatcher  # there is none while numba simulates a device

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


def assembled(ptx: str, name: str, capability: tuple[int, int]) -> dict[str, int]:
    """Return what a kernel takes: registers, bytes of the stack and bytes that are spilled."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx, encoding="ascii")
        architecture = "sm_{}{}".format(*capability)
        command = [assembler(), "-v", f"-arch={architecture}", str(source), "-o", os.devnull]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    about = text[text.index(name) :]  # of the kernel, which is the first
    patterns = {
        "registers": r"Used (\d+) registers",
        "stack": r"(\d+) bytes stack frame",
        "spilled": r"(\d+) bytes spill stores",
    }
    return {key: int(re.search(pattern, about)[1]) for key, pattern in patterns.items()}


def show_ensembles(part: Part) -> int:
    """Print the table of ensembles; return how many bytes are spilled."""
    rows, spilled = [], 0
    for name, function, kinds, many in part([*ensembles()]):
        function.compile(kinds)
        result = function.overloads[kinds].signature.return_type
        cells = []
        for capability in CAPABILITIES:
            with compiling_for(capability):
                kernel = Kernel(cuda, function, kinds, many, result)
                ptx, _ = cuda.compile_ptx(kernel.kernel.py_func, kernel.signature(), cc=capability)
            found = assembled(ptx, "over_items", capability)
            cells.append("{registers} / {stack} / {spilled}".format(**found))
            spilled += found["spilled"]
        rows.append((name, *cells))
    version = importlib.metadata.version("numba-cuda")
    title = f"Registers / bytes of stack / bytes spilled (numba-cuda {version})"
    show_table(title, ("", *architectures()), rows)
    return spilled


def show_tensors(part: Part) -> int:
    """Print the table of kernels of tensors; return how many are not as they should be.

    PTX for the oldest architecture is valid for the others.
    """
    made: list[tuple[str, bool, str]] = []
    with compiling_for(CAPABILITIES[0]):
        launched = part([*recorded_kernels.kernels(cuda)])
        for group, operation, is_single, kernel, signature in launched:
            ptx, _ = cuda.compile_ptx(kernel.made.py_func, signature, cc=CAPABILITIES[0])
            is_wrong = is_single and operation not in OF_DOUBLES and ".f64" in ptx
            if is_wrong:
                print(f"{operation} computes in float64")
            if parameters(ptx) != packed(signature):
                print(f"the parameters of {operation} are not as they are packed")
                is_wrong = True
            if operation == recorded_kernels.SUMS_OF_PRODUCTS and "fma." in ptx:
                print("a product and a sum of two ops are joined")
                is_wrong = True
            made.append((group, is_wrong, ptx))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        tasks = [
            [pool.submit(assembled, ptx, "kernel", capability) for capability in CAPABILITIES]
            for _, _, ptx in made
        ]
        found = [[task.result() for task in of_kernel] for of_kernel in tasks]
    rows, wrong = [], sum(is_wrong for _, is_wrong, _ in made)
    for group in dict.fromkeys(group for group, _, _ in made):
        of_group = [f for (name, _, _), f in zip(made, found, strict=True) if name == group]
        cells = []
        for k in range(len(CAPABILITIES)):
            most = {key: max(f[k][key] for f in of_group) for key in of_group[0][k]}
            cells.append("{registers} / {stack} / {spilled}".format(**most))
            wrong += most["spilled"] > 0
        rows.append((f"{group} ({len(of_group)})", *cells))
    show_table("Kernels of tensors, the most of each kind", ("", *architectures()), rows)
    return wrong


def parameters(ptx: str) -> list[tuple[str, int]]:
    """Return whether the parameters of a kernel are floats, and how many bytes they have."""
    head = ptx[ptx.index(".entry") : ptx.index("{", ptx.index(".entry"))]
    found = re.findall(r"\.param \.([a-z]+)(\d+)", head)
    return [("f" if kind == "f" else "i", int(bits) // 8) for kind, bits in found]


def packed(signature: tuple[Any, ...]) -> list[tuple[str, int]]:
    """Return the same of the parameters that the driver is given."""
    kinds = [None if hasattr(kind, "ndim") else str(kind) for kind in signature]
    codes = re.findall("[a-zA-Z?]", Entry(None, kinds).format.replace("x", ""))
    return [("f" if code in "fd" else "i", struct.calcsize(code)) for code in codes]


def architectures() -> list[str]:
    """Return the names of the architectures."""
    return [f"sm_{major}{minor}" for major, minor in CAPABILITIES]


def main() -> int:
    """Print the tables; the status says whether anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.studies.ptx", description=__doc__)
    add_part(parser)
    part: Part = parser.parse_args().part
    spilled = show_ensembles(part)
    return int(bool(show_tensors(part) + spilled))


if __name__ == "__main__":
    sys.exit(main())
