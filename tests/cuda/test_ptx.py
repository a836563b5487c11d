"""Kernels are compiled and assembled for devices that are not there."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(
    importlib.util.find_spec("numba_cuda") is None,
    reason="kernels are not compiled: install tapegrad[cuda]",
)
def test_no_kernel_spills_registers():
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.studies.ptx"],
        cwd=ROOT,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "van_der_pol" in found.stdout
