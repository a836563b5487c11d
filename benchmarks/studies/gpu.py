"""All that needs a CUDA device, in one command.

    python -m benchmarks.studies.gpu --json gpu.json

It runs the tests of devices on the card, memcheck and racecheck of ``compute-sanitizer`` where that
is installed, and measures ensembles beside one core of the CPU, and tensors beside a copy of their
memory and, where they are installed, PyTorch and JAX. `--quick` is for simulated devices
(``NUMBA_ENABLE_CUDASIM=1``): tiny sizes, no tests.
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np

import tapegrad as tg
from benchmarks.measure.tables import duration, ratio, show_table
from benchmarks.measure.timing import elapsed
from benchmarks.programs.njit.options import NO_CHECKS
from benchmarks.programs.njit.oscillators import van_der_pol
from tapegrad.cuda.driver import Graph
from tapegrad.cuda.memory import POOL, Elements
from tapegrad.cuda.recording import recording

TESTS = (
    "tests/cuda",
    "tests/replay/test_on_device.py",
    "tests/transform/test_device_ensembles.py",
)
PARAMETERS = (0, 1, 2, 3)
REPEATED = 10  # times that a kernel runs to be timed
ON_THE_CARD = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Test, measure, print, save; the status is that of the tests."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.studies.gpu", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, no tests")
    parser.add_argument("--json", metavar="FILE", help="save what was measured")
    parser.add_argument("--output", metavar="PNG", help="save a plot of the times")
    options = parser.parse_args(arguments)
    info = tg.cuda.device_info()[0]
    print(f"{info.name}, compute capability {info.compute_capability}")
    failed = [] if options.quick else [name for name, run in checks() if run() != 0]
    times = ensembles(options.quick)
    rows = [
        (name, duration(s), ratio(times[name.replace("device", "one core")], s))
        for name, s in times.items()
    ]
    show_table("Ensembles", ("", "time", "faster than one core"), rows)
    measured = tensors(options.quick)
    rows = [
        (name, *map(duration, sides.values()), ratio(sides["tg.jit"], min(others(sides))))
        for name, sides in measured.items()
    ]
    sides = [*next(iter(measured.values()))]
    columns = ("", *sides, "tg.jit ÷ the best of the others")
    show_table("Values and gradients of tensors", columns, rows)
    columns = ("", "kernel", "blocks x threads", "arrays", "time", "rate at most")
    show_table("Kernels of recorded gradients", columns, kernels(options.quick))
    if options.output:
        save_bars(options.output, "Ensembles of Van der Pol oscillators", times)
    if options.json:
        document = {
            "device": dataclasses.asdict(info),
            "ensembles": times,
            "tensors": measured,
            "failed": failed,
        }
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if failed:
        print("Failed:", *failed)
    return int(bool(failed))


def others(sides: dict[str, float]) -> list[float]:
    """Times of peers; of a copy where there are none."""
    return [sides[name] for name in PEERS if name in sides] or [sides["copy"]]


def checks() -> list[tuple[str, Any]]:
    """What is to be run on the card: names and functions that return a status."""
    pytest = [sys.executable, "-m", "pytest", "-q", *TESTS]
    found = [("tests", pytest)]
    if sanitizer := shutil.which("compute-sanitizer"):
        small = [sys.executable, "-m", "benchmarks.studies.gpu", "--quick"]
        found += [
            (tool, [sanitizer, "--tool", tool, "--error-exitcode", "1", *small])
            for tool in ("memcheck", "racecheck")
        ]
    return [(name, partial(status, command)) for name, command in found]


def status(command: list[str]) -> int:
    """Run a command on the card."""
    return subprocess.run(command, env=ON_THE_CARD, check=False).returncode


def ensembles(quick: bool) -> dict[str, float]:
    """Seconds of values and gradients of Van der Pol oscillators, with the transfers of arrays."""
    n, steps = (64, 5) if quick else (1_000_000, 100)
    rng = np.random.default_rng(0)
    items = [*rng.standard_normal((2, n)), *rng.uniform(size=(2, n))]
    axes = (*[0] * len(items), None)
    primal = tg.njit(van_der_pol, **NO_CHECKS)
    ways = {"value": primal, "value and gradient": tg.value_and_grad(primal, PARAMETERS)}
    numba.set_num_threads(1)
    found = {}
    for name, function in ways.items():
        results = {}
        for where, target in (("one core", "cpu"), ("device", "cuda")):
            call = partial(tg.vmap(function, axes, target=target), *items, steps)
            results[where] = call()
            repetitions = 1 if quick else 7
            label = f"{name}, {where}"
            found[label] = statistics.median(elapsed(call) for _ in range(repetitions))
        compare(results["device"], results["one core"])
    return found


def chain(lib: Any, x: Any) -> Any:
    z = x
    for _ in range(10):
        z = lib.sin(z) * 1.01 + z
    return z.sum()


def softmax(lib: Any, x: Any) -> Any:
    e = lib.exp(x - lib.amax(x, 1)[:, None])
    return (e / e.sum(1)[:, None] * x).sum()


def layer_norm(lib: Any, x: Any) -> Any:
    centred = x - x.mean(1)[:, None]
    return (centred / lib.sqrt((centred * centred).mean(1)[:, None] + 1e-5)).sum()


def rows_again(lib: Any, x: Any) -> Any:
    return x[lib.arange(x.shape[0]) // 2].sum()


def logsumexp(lib: Any, x: Any) -> Any:
    top = lib.amax(x, 1)
    return (lib.log(lib.exp(x - top[:, None]).sum(1)) + top).sum()


def products(lib: Any, x: Any) -> Any:
    return lib.square(lib.tanh(x @ x[:64].T * 1e-3)).mean()


PROGRAMS = {
    "chain of ten steps": chain,
    "chain, 10 numbers": chain,
    "logsumexp of rows": logsumexp,
    "softmax of rows": softmax,
    "layer norm": layer_norm,
    "rows at repeated indices": rows_again,
    "products with 64 rows": products,
}


def tensors(quick: bool) -> dict[str, dict[str, float]]:
    """Seconds of gradients op by op and recorded, of a copy of the argument, and of peers."""
    found = {}
    for name, program in PROGRAMS.items():
        shape = (2, 5) if "10 numbers" in name else (4, 6) if quick else (10_000, 1000)
        values = np.random.default_rng(0).uniform(0.1, 0.9, shape)
        x = tg.tensor(values, device="cuda", requires_grad=True)
        op_by_op = partial(gradient, tg, program, x)
        calls = {
            "tapegrad": (op_by_op, tg.cuda.synchronize),
            "tg.jit": (partial(jitted(program), x.detach()), tg.cuda.synchronize),
            "copy": (partial(copied, x.detach()), tg.cuda.synchronize),
        }
        if not quick:
            calls |= {peer: made for peer, make in PEERS.items() if (made := make(program, values))}
        expected = gradient(tg, program, tg.tensor(values, requires_grad=True)).numpy()
        found[name] = {}
        for side, (call, wait) in calls.items():
            if side != "copy":
                np.testing.assert_allclose(on_host(call()), expected, 1e-8, 1e-10)
            found[name][side] = timed(call, wait, quick)
    return found


def jitted(program: Any) -> Any:
    return tg.grad(tg.jit(partial(program, tg)))


def gradient(lib: Any, program: Any, x: Any) -> Any:
    return lib.autograd.grad(program(lib, x), x)[0]


def of_pytorch(program: Any, values: np.ndarray) -> Any:
    """Return a gradient of PyTorch, and what waits for it; None if it is not installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch  # it is optional

    class Library:
        """PyTorch, with arrays made on the device and in double precision."""

        autograd = torch.autograd
        arange = staticmethod(partial(torch.arange, device="cuda"))

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

    y = torch.tensor(values, device="cuda", requires_grad=True)
    torch.set_default_dtype(torch.float64)
    return partial(gradient, Library(), program, y), torch.cuda.synchronize


def of_jax(program: Any, values: np.ndarray) -> Any:
    """Return a compiled gradient of JAX, and what waits for it; None if it is not installed."""
    if importlib.util.find_spec("jax") is None:
        return None
    os.environ.pop("JAX_PLATFORMS", None)  # the other benchmarks are on the CPU
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # others need memory as well
    import jax  # it is optional

    jax.config.update("jax_enable_x64", True)
    if jax.default_backend() != "gpu":
        return None
    compiled, y = jax.jit(jax.grad(partial(program, jax.numpy))), jax.numpy.asarray(values)
    return lambda: compiled(y).block_until_ready(), lambda: None


PEERS = {"PyTorch": of_pytorch, "jax.jit": of_jax}


def on_host(value: Any) -> np.ndarray:
    return value.cpu().numpy() if hasattr(value, "cpu") else np.asarray(value)


def kernels(quick: bool) -> list[tuple[str, ...]]:
    """Times of the kernels of recorded gradients, and how many bytes their arrays have."""
    rows = []
    for name, program in PROGRAMS.items():
        if "10 numbers" in name:
            continue
        shape = (4, 6) if quick else (10_000, 1000)
        x = tg.tensor(np.random.default_rng(0).uniform(0.1, 0.9, shape), device="cuda")
        with recording(POOL) as made:
            function = jitted(program)
            kept = function(x)  # noqa: F841  its memory
        _, *launches = made.launches  # the first one copies `x`, to record the others
        for number, (kernel, grid, block, args) in enumerate(launches):
            blocks = {e.block for e in args if isinstance(e, Elements)}
            nbytes = sum(block.size for block in blocks)
            if kernel.entry is None:  # a simulated device
                call = partial(kernel.start, grid, block, *args)
            else:
                call = Graph([(kernel.entry, grid, block, args)] * REPEATED).start
            seconds = timed(call, tg.cuda.synchronize, quick) / REPEATED
            rate = nbytes / seconds / 1e12
            rows.append((name, str(number), f"{grid} x {block}", f"{nbytes / 1e6:.1f} MB",
                         duration(seconds), f"{rate:.2f} TB/s"))  # fmt: skip
    return rows


def copied(x: Any) -> Any:
    """Return a copy, computed at once."""
    z = x.clone()
    tg.cuda.synchronize()
    return z


def timed(call: Any, wait: Any, quick: bool) -> float:
    """Return the median of the seconds that a call takes until the device is done."""

    def whole() -> None:
        call()
        wait()

    whole()
    return statistics.median(elapsed(whole) for _ in range(1 if quick else 7))


def compare(found: Any, expected: Any) -> None:
    """Check that results on the device are those of the CPU."""
    flat = partial(np.concatenate, dtype=np.float64)
    one, other = (
        z if isinstance(z, np.ndarray) else flat([z[0], *z[1]]) for z in (found, expected)
    )
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def save_bars(path: str, title: str, times: Mapping[str, float]) -> None:
    """Seconds as bars on a logarithmic axis."""
    from matplotlib.figure import Figure  # it is optional

    figure = Figure(figsize=(9, 1.5 + 0.4 * len(times)), layout="constrained")
    axes = figure.add_subplot()
    axes.barh(list(times), list(times.values()), color="0.4")
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    axes.set_title(title)
    figure.savefig(path, dpi=100)
    print(f"picture: {path}")


if __name__ == "__main__":
    sys.exit(main())
