"""All that needs a CUDA device, in one command: ``python -m benchmarks.gpu --json gpu.json``.

It runs the tests of devices on the card, memcheck and racecheck of ``compute-sanitizer`` where that
is installed, and measures ensembles beside one core of the CPU, and tensors beside a copy of their
memory and, where it is installed, PyTorch. `--quick` is for simulated devices
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
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np

import tapegrad as tg

from .njit.options import NO_CHECKS
from .njit.oscillators import van_der_pol
from .report import duration, ratio, save_bars, show_table
from .timing import elapsed

TESTS = (
    "tests/cuda",
    "tests/replay/test_on_device.py",
    "tests/transform/test_device_ensembles.py",
)
PARAMETERS = (0, 1, 2, 3)
ON_THE_CARD = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Test, measure, print, save; the status is that of the tests."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
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
        (name, *(duration(s) for s in sides.values()), ratio(*list(sides.values())[:2]))
        for name, sides in measured.items()
    ]
    sides = [*next(iter(measured.values()))]
    show_table("Values and gradients of tensors", ("", *sides, "÷ " + sides[1]), rows)
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


def checks() -> list[tuple[str, Any]]:
    """What is to be run on the card: names and functions that return a status."""
    pytest = [sys.executable, "-m", "pytest", "-q", *TESTS]
    found = [("tests", pytest)]
    if sanitizer := shutil.which("compute-sanitizer"):
        small = [sys.executable, "-m", "benchmarks.gpu", "--quick"]
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
    e = lib.exp(x - x.max(1, keepdims=True) if lib is tg else x - x.max(1, keepdim=True).values)
    return (e / e.sum(1, keepdims=True) * x).sum()


def layer_norm(lib: Any, x: Any) -> Any:
    centred = x - x.mean(1, keepdims=True)
    return (centred / lib.sqrt((centred * centred).mean(1, keepdims=True) + 1e-5)).sum()


def rows_again(lib: Any, x: Any) -> Any:
    places = np.arange(x.shape[0]) // 2
    return x[places if lib is tg else lib.as_tensor(places, device=x.device)].sum()


def logsumexp(lib: Any, x: Any) -> Any:
    return lib.logsumexp(x, 1).sum()


def tensors(quick: bool) -> dict[str, dict[str, float]]:
    """Seconds of gradients op by op and recorded, of a copy of the argument, and of PyTorch's."""
    rows, columns = (4, 6) if quick else (10_000, 1000)
    rng = np.random.default_rng(0)
    programs = {
        "chain of ten steps": (chain, (rows, columns)),
        "chain, 10 numbers": (chain, (2, 5)),
        "logsumexp of rows": (logsumexp, (rows, columns)),
        "softmax of rows": (softmax, (rows, columns)),
        "layer norm": (layer_norm, (rows, columns)),
        "rows at repeated indices": (rows_again, (rows, columns)),
    }
    torch = None
    if not quick and importlib.util.find_spec("torch") is not None:
        import torch
    found = {}
    for name, (program, shape) in programs.items():
        values = rng.uniform(0.1, 0.9, shape)
        x = tg.tensor(values, device="cuda", requires_grad=True)
        sides = {"tapegrad": timed(partial(gradient, tg, program, x), tg.cuda.synchronize, quick)}
        sides["copy"] = timed(partial(copied, x.detach()), tg.cuda.synchronize, quick)
        recorded, argument = tg.grad(tg.jit(partial(program, tg))), x.detach()
        np.testing.assert_allclose(
            recorded(argument).cpu().numpy(), gradient(tg, program, x).cpu().numpy(), rtol=1e-10
        )
        sides["tg.jit"] = timed(partial(recorded, argument), tg.cuda.synchronize, quick)
        if torch is not None:
            y = torch.tensor(values, device="cuda", requires_grad=True)
            sides["PyTorch"] = timed(
                partial(gradient, torch, program, y), torch.cuda.synchronize, quick
            )
            np.testing.assert_allclose(
                gradient(tg, program, x).cpu().numpy(), gradient(torch, program, y).cpu().numpy(),
                rtol=1e-8, atol=1e-10,
            )  # fmt: skip
        found[name] = sides
    return found


def gradient(lib: Any, program: Any, x: Any) -> Any:
    return lib.autograd.grad(program(lib, x), x)[0]


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


if __name__ == "__main__":
    sys.exit(main())
