"""Transforms of recorded functions beside JAX: ``python -m benchmarks.studies.transforms``.

``vmap``, Jacobians, Hessians and products with them of functions that ``tg.jit`` records, and the
same with ``jax.jit``: results must agree to 1e-9, times are medians in turn in one process, on one
thread. A row that is not compiled stays in the table, with its warning.
"""

import argparse
import os
import warnings
from collections.abc import Callable
from typing import Any

ONE_THREAD = {
    "JAX_ENABLE_X64": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
os.environ |= {name: os.environ.get(name, value) for name, value in ONE_THREAD.items()}

import numpy as np  # noqa: E402

import tapegrad as tg  # noqa: E402
from benchmarks.measure.tables import duration, ratio, show_table  # noqa: E402
from benchmarks.measure.timing import Program, Stopwatch, sample_in_turn  # noqa: E402

DRAW = np.random.default_rng(0)
MATRIX, RIGHT = DRAW.normal(size=(30, 30)), DRAW.normal(size=30)
ROWS, ITEMS = DRAW.normal(size=(200, 12)), DRAW.normal(size=(500, 12))
LABELS = (DRAW.random(200) < 0.5).astype(float)
TIMES = np.linspace(0.0, 4.0, 60)


def rosenbrock(lib: Any, x: Any) -> Any:
    """A valley that bends."""
    return lib.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def logistic(lib: Any, w: Any) -> Any:
    """The loss of a logistic regression."""
    z = ROWS @ w
    return lib.mean(lib.logaddexp(0.0, z) - LABELS * z) + 0.01 * lib.sum(w * w)


def network(lib: Any, x: Any) -> Any:
    """Two layers for one item."""
    return lib.tanh(lib.tanh(x @ MATRIX[:12, :]) @ MATRIX[:, :8])


def decays(lib: Any, p: Any) -> Any:
    """Three exponentials at sixty times."""
    return lib.sum(p[:3, None] * lib.exp(-lib.exp(p[3:, None]) * TIMES), axis=0)


def arm(lib: Any, angles: Any) -> Any:
    """Where a chain of rods ends."""
    total = lib.cumsum(angles)
    return lib.stack([lib.sum(lib.cos(total)), lib.sum(lib.sin(total))])


def energy(lib: Any, x: Any) -> Any:
    """A quartic energy on a lattice."""
    return 0.5 * x @ (MATRIX @ MATRIX.T) @ x + lib.sum(x**4) - RIGHT @ x


CASES: dict[str, tuple[str, Callable[[Any, Any], Any], tuple[np.ndarray, ...]]] = {
    "items of a network": ("vmap", network, (ITEMS,)),
    "gradients of items": ("vmap of grad", logistic, (ITEMS[:100],)),
    "decays, 6 parameters": ("jacobian", decays, (DRAW.normal(size=6),)),
    "arm of 40 rods": ("jacobian", arm, (DRAW.normal(size=40),)),
    "network, 12 to 8": ("jacobian", network, (ITEMS[0],)),
    "Rosenbrock, 10": ("hessian", rosenbrock, (DRAW.normal(size=10),)),
    "Rosenbrock, 100": ("hessian", rosenbrock, (DRAW.normal(size=100),)),
    "logistic regression": ("hessian", logistic, (DRAW.normal(size=12),)),
    "energy of a lattice": ("hessian", energy, (DRAW.normal(size=30),)),
    "Rosenbrock, 1000": ("hvp", rosenbrock, (DRAW.normal(size=1000), DRAW.normal(size=1000))),
    "logistic products": ("hvp", logistic, (DRAW.normal(size=12), DRAW.normal(size=12))),
    "directions of decays": ("jvp", decays, (DRAW.normal(size=6), DRAW.normal(size=6))),
}


def of_tapegrad(transform: str, function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A call of a transform of a recorded function."""
    recorded = tg.jit(lambda x: function(np, x))
    if transform == "vmap of grad":
        return tg.vmap(tg.grad(recorded))
    made: Callable[..., Any] = getattr(tg, transform)(recorded)
    return made


def of_jax(transform: str, function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """The same of JAX, compiled as a whole."""
    import jax

    def f(x: Any) -> Any:
        return function(jax.numpy, x)

    made: dict[str, Callable[..., Any]] = {
        "vmap": jax.vmap(f),
        "vmap of grad": jax.vmap(jax.grad(f)),
        "jacobian": jax.jacobian(f),
        "hessian": jax.hessian(f),
        "hvp": lambda x, v: jax.jvp(jax.grad(f), (x,), (v,))[1],
        "jvp": lambda x, v: jax.jvp(f, (x,), (v,)),
    }
    return jax.jit(made[transform])


def flat(result: Any) -> np.ndarray:
    """The results as one vector."""
    parts = result if isinstance(result, (tuple, list)) else [result]
    return np.concatenate([np.ravel(np.asarray(part)) for part in parts])


def measured(name: str, repetitions: int) -> list[str]:
    """The row of a case."""
    transform, function, args = CASES[name]
    watches, results, notes = {}, {}, set()
    for label, library in (("tapegrad", of_tapegrad), ("JAX", of_jax)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                call = library(transform, function)
            except ImportError:
                continue
            watches[label] = Stopwatch(Program(forward=lambda call=call: flat(call(*args))))
            results[label] = watches[label].first_call()
        notes |= {str(w.message) for w in caught if label == "tapegrad"}
    if len(results) == 2:
        np.testing.assert_allclose(results["tapegrad"], results["JAX"], rtol=1e-9, atol=1e-9)
    sample_in_turn([*watches.values()], repetitions)
    times = {label: watch.seconds().forward for label, watch in watches.items()}
    own, other = (times.get(label) for label in ("tapegrad", "JAX"))
    firsts = [duration(w.first if (w := watches.get(s)) else None) for s in ("tapegrad", "JAX")]
    return [name, transform, duration(own), duration(other), ratio(own, other), *firsts, *notes]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=11)
    given = parser.parse_args()
    rows = [measured(name, given.repetitions) for name in CASES]
    columns = ("function", "transform", "tapegrad", "JAX", "ratio", "first call", "that of JAX")
    show_table("Transforms of recorded functions", columns, [row[: len(columns)] for row in rows])
    for row in rows:
        for note in row[len(columns) :]:
            print(f"{row[0]}: {note}")


if __name__ == "__main__":
    main()
