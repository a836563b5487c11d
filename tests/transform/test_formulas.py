"""Derivatives of functions of whole arrays, as plain Python: many points in little time."""

import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.texts  # Python runs the formulas

FORMULAS = pathlib.Path(__file__).parent / "formulas.py"
# compared with numba, in tests of their own
ELSEWHERE = {
    "flatten", "item", "broadcast", "full", "full_like", "diag", "complex_det", "complex_vdot",
    "fourier_of_pairs", "fourier_adjoint_of_pairs",
    "half_fourier_to_pairs", "real_fourier_of_pairs", "scaled_pairs", "whole_fourier_to_pairs",
    "real_adjoint_of_pairs", "doubled_half_fourier", "qr_of_floats", "expm_of_floats",
    "eigh_of_parts",
}  # fmt: skip


def test_derivatives_beside_differences():
    done = subprocess.run(
        [sys.executable, str(FORMULAS)],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *wrong, last = done.stdout.splitlines()
    assert not wrong
    count, *left = last.split()
    assert int(count) > 200
    assert set(left) <= ELSEWHERE
