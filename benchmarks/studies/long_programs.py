"""Programs of many different steps: how the time to compile grows with their number.

From the root of the repository::

    python -m benchmarks.studies.long_programs 20 100 300

Each program is recorded and compiled in a process of its own, with an empty cache. JAX compiles the
same beside it if it is installed.
"""

import argparse
import importlib.util
from collections.abc import Sequence

import numpy as np

from benchmarks.measure.tables import duration, show_table
from benchmarks.programs.fresh import run_fresh_cold


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure programs and show a table."""
    prog = "python -m benchmarks.studies.long_programs"
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("steps", nargs="*", type=int, default=[20, 100, 300])
    steps = parser.parse_args(arguments).steps
    sides = ["tapegrad.jit"]
    if importlib.util.find_spec("jax"):
        sides.append("jax.jit")
    rows = []
    for count in steps:
        row, results = [str(count)], []
        for side in sides:
            first, later, *result = run_fresh_cold("long_program", side, count)
            row += [duration(first), duration(later)]
            results.append(result)
        np.testing.assert_allclose(results, np.broadcast_to(results[0], np.shape(results)), 1e-9)
        rows.append(row)
    columns = ["steps", *(f"{side}, {what}" for side in sides for what in ("first", "later"))]
    show_table("value and gradient", columns, rows)


if __name__ == "__main__":
    main()
