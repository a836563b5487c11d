"""Benchmarks of tapegrad.

- `programs/`: what is measured: programs, their inputs, and the libraries that run them;
- `suites/`: what ``asv run`` follows from commit to commit;
- `studies/`: measurements of one question each: ``python -m benchmarks.studies.gpu``;
- `reports/`: comparisons with other libraries, and the tables and pictures of all results:
  ``python -m benchmarks.reports.versus``;
- `measure/`: how it is measured, which the others share;
- `results/`: what asv has measured.

Imports go one way: `reports`, then `studies` and `suites`, then `programs`, then `measure`.

Every library is limited to one thread, but for parallel loops of numba, which are measured with one
thread and with two (`studies/njit_threads.py`). The variables below are read when a library loads,
so they are set here, before any library is imported; asv may import NumPy before this module, so
``asv.conf.json`` sets the one for NumPy too.
"""

import os
import sys
import warnings

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
    "JAX_ENABLE_X64": "1",
}

if "numpy" in sys.modules and os.environ.get("OPENBLAS_NUM_THREADS") != "1":
    warnings.warn(
        "NumPy is imported already and may use several threads: set OPENBLAS_NUM_THREADS=1",
        stacklevel=2,
    )

os.environ.update(ONE_THREAD)
