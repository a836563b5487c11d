"""Benchmarks of tapegrad: asv suites (``bench_*.py``) and comparisons with other libraries.

``python -m benchmarks.versus`` compares tapegrad with PyTorch, JAX and HIPS autograd, if they are
installed; ``asv run`` follows tapegrad alone from commit to commit; ``python -m
benchmarks.plain_path OLD NEW`` compares the cost of a plain op in two checkouts.

Every library is limited to one thread, but for parallel loops of numba, which are measured with one
thread and with two (`njit_threads`). The variables below are read when a library loads, so they
are set here, before any library is imported; asv may import NumPy before this module, so
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
