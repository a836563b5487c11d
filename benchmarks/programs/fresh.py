"""Measurements that need their own process: imports, first calls, peak memory.

``run_fresh("import_seconds", "numba")`` starts an interpreter, runs the function of that name in
it, and returns the parsed JSON that it printed. The functions import what they need themselves:
nothing but the standard library is to be there before.
"""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.measure.memory import peak_bytes, resident_bytes, rise

ROOT = Path(__file__).resolve().parents[2]


def run_fresh(program: str, *arguments: object, **environment: str) -> Any:
    """Run one of the programs below in a new interpreter and return its result.

    The new process imports the same tapegrad as this one would, wherever that is installed.
    """
    found = importlib.util.find_spec("tapegrad")
    folders = [Path(found.origin).parent.parent] if found and found.origin else []
    path = os.pathsep.join(map(str, [*folders, ROOT, os.environ.get("PYTHONPATH", "")]))
    # bytecode is kept on disk, as it is unless that is switched off
    own = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as elsewhere:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.programs.fresh", program, *map(str, arguments)],
            cwd=elsewhere,
            env={**own, "PYTHONPATH": path, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{program} {arguments} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def run_fresh_cold(program: str, *arguments: object) -> Any:
    """The same with an empty kernel cache."""
    with tempfile.TemporaryDirectory() as empty:
        return run_fresh(program, *arguments, TAPEGRAD_CACHE_DIR=empty, NUMBA_CACHE_DIR=empty)


# --------------------------------------------------------------------------------------------------
# Programs


def import_seconds(package: str) -> float:
    """How long importing a package takes, without the start of the interpreter."""
    start = perf_counter()
    importlib.import_module(package)
    return perf_counter() - start


def first_gradient_seconds(side_name: str) -> float:
    """The first gradient of a ten-op program after the import, compilation and all."""
    from .cases import Case
    from .peers import SIDES
    from .workloads import WORKLOADS

    (side,) = (side for side in SIDES if side.name == side_name)
    workload = WORKLOADS["ten"]
    program = side.prepare(Case(workload, workload.sizes[0]))
    start = perf_counter()
    program.whole()
    return perf_counter() - start


def first_call_seconds(side_name: str, workload_name: str) -> float:
    """The first call of a function of numba's after the import, compilation and all."""
    return start(side_name, workload_name)[1]


def start_seconds(side_name: str, workload_name: str) -> float:
    """The same with the import."""
    return sum(start(side_name, workload_name))


def start(side_name: str, workload_name: str) -> tuple[float, float]:
    """Import numba or tapegrad, make a first call of its function or of its gradient: seconds.

    What is compiled is kept on disk.
    """
    # all that a program imports which compiles a function; what follows would import a part of it
    modules = "numba", *(("tapegrad.transform",) if side_name == "tapegrad.njit" else ())
    return started(modules, lambda: kept_on_disk(side_name, workload_name))


def started(modules: Iterable[str], case: Callable[[], tuple[Any, Any]]) -> tuple[float, float]:
    """Import modules, make a case and call it with a side: seconds of the imports and the call."""
    begin = perf_counter()
    for module in modules:
        importlib.import_module(module)
    imported = perf_counter()
    side, made = case()
    ready = perf_counter()
    side.prepare(made).whole()
    return imported - begin, perf_counter() - ready


def recorded_first_call_seconds(workload_name: str, size: str) -> float:
    """The first value and gradient of a recorded program after the import."""
    return recorded_start(workload_name, int(size))[1]


def recorded_start_seconds(workload_name: str, size: str) -> float:
    """The same with the import."""
    return sum(recorded_start(workload_name, int(size)))


def recorded_start(workload_name: str, size: int) -> tuple[float, float]:
    """Import tapegrad, record a program and compute its value and gradient: seconds."""

    def case() -> tuple[Any, Any]:
        from .cases import Case
        from .peers import TapegradJit
        from .workloads import WORKLOADS

        workload = WORKLOADS[workload_name]
        return TapegradJit(), Case(workload, workload.sizes[size])

    return started(("tapegrad", "tapegrad.transform"), case)


def kept_on_disk(side_name: str, workload_name: str, *, largest: bool = False) -> tuple[Any, Any]:
    """A side and a case of loops, small or large, whose compiled code is to be kept on disk."""
    from .cases import Case
    from .peers import SIDES
    from .workloads import WORKLOADS

    (side,) = (side for side in SIDES if side.name == side_name)
    workload = WORKLOADS[workload_name]
    loops = replace(workload.loops, options={**workload.loops.options, "cache": True})
    size = workload.sizes[-1] if largest else workload.quick
    return side, Case(replace(workload, loops=loops), size)


def bytes_a_step(steps: str) -> dict[str, float]:
    """Memory of a gradient through a loop, and how much more a second one takes."""
    import tapegrad as tg

    from .njit.oscillators import van_der_pol

    value_and_grad = tg.value_and_grad(tg.njit(van_der_pol), (0, 1, 2, 3))

    def peak(steps: int) -> int:
        value_and_grad(2.0, 0.0, 1.0, 1.0, steps)
        return peak_bytes()

    peak(1000)
    before = resident_bytes()
    first, second = peak(int(steps)), peak(int(steps))
    return {"step": (first - before) / int(steps), "second call": (second - first) / int(steps)}


def gradient_bytes(workload_name: str, factor: str, limit: str) -> dict[str, float]:
    """How far value and gradient raise the peak of memory beyond the plain call, in bytes.

    The largest case takes `factor` times as many steps, the tape may take `limit` bytes; nan if
    that is not enough. The gradient itself does not count.
    """
    import tapegrad as tg

    from .cases import Case
    from .peers import Numba, TapegradNjit
    from .workloads import WORKLOADS

    workload = WORKLOADS[workload_name]
    size = workload.sizes[-1]
    longer = {k: v * int(factor) if k == "steps" else v for k, v in size.constants.items()}
    drawn = {k: v * int(factor) if k == "steps" else v for k, v in size.draw.items()}
    case = Case(workload, replace(size, draw=drawn, constants=longer))
    small = Case(workload, workload.quick)
    plain, gradient = (
        [side.prepare(one).whole for one in (small, case)] for side in (Numba(), TapegradNjit())
    )
    of_value = rise(*plain)
    tg.set_tape_limit(int(limit))
    try:
        of_gradient = rise(*gradient)
    except MemoryError:
        return {"bytes": float("nan")}
    return {"bytes": of_gradient - of_value - sum(array.nbytes for array in case.inputs)}


def training_bytes(package: str, iterations: str, backward: str) -> dict[str, int]:
    """Peak memory early in a training loop, and how much higher it is at the end."""
    step = training_step(package, backward == "True")
    for _ in range(100):
        step()
    early = peak_bytes()
    for _ in range(int(iterations)):
        step()
    return {"peak": peak_bytes(), "growth": peak_bytes() - early}


def training_step(package: str, backward: bool) -> Callable[[], None]:
    """One step of gradient descent on a small layer, with or without its backward."""
    import numpy as np

    library = importlib.import_module(package)
    rng = np.random.default_rng(0)
    x = library.tensor(rng.standard_normal((32, 16)))
    target = library.tensor(rng.uniform(-1, 1, (32, 8)))
    w = library.tensor(rng.standard_normal((16, 8)), requires_grad=True)

    def step() -> None:
        loss = library.sum((library.tanh(x @ w) - target) ** 2)
        if backward:
            loss.backward()
            with library.no_grad():
                w.sub_(0.001 * w.grad)
            w.grad = None

    return step


def graph_bytes(package: str, ops: str) -> float:
    """Resident bytes per recorded operation on one number, while the graph is alive."""
    import numpy as np

    library = importlib.import_module(package)
    x = library.tensor(np.ones(1), requires_grad=True)

    def record(count: int) -> Any:
        z = x
        for _ in range(count):
            z = library.sin(z)
        return z

    warm = record(1000)
    del warm
    before = resident_bytes()
    alive = record(int(ops))
    after = resident_bytes()
    del alive
    return (after - before) / int(ops)


def long_program(side_name: str, steps: str) -> tuple[float, ...]:
    """First and later calls of a program of many steps, its value and a sum of its gradient."""
    from .long_programs import measured

    return measured(side_name, int(steps))


PROGRAMS: dict[str, Callable[..., Any]] = {
    program.__name__: program
    for program in (
        import_seconds,
        first_gradient_seconds,
        first_call_seconds,
        long_program,
        start_seconds,
        recorded_first_call_seconds,
        recorded_start_seconds,
        bytes_a_step,
        gradient_bytes,
        training_bytes,
        graph_bytes,
    )
}

if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]](*sys.argv[2:])))
