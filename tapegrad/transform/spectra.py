"""Eigenvalues, singular values and orthogonal factors by LAPACK, of matrices and of stacks of them.

As in `tapegrad.transform.lapack`, one function each does it for all programs
(`tapegrad.transform.spectra_code`).
"""

from __future__ import annotations

from tapegrad.transform.lapack import calling
from tapegrad.transform.requests import share

share(
    "spectra",
    [
        *("find_eigenvalues", "find_hermitian_eigenvalues"),
        *("find_singular_values", "factor_orthogonal"),
    ],
    *("lapack", "lapack_calls"),
)

find_eigenvalues = calling("find_eigenvalues")  # (vectors, values as a column, a)
# (real parts of vectors, imaginary ones, values as a column, real parts, imaginary ones)
find_hermitian_eigenvalues = calling("find_hermitian_eigenvalues")
find_singular_values = calling("find_singular_values")  # (u, vt, values as a column, a)
factor_orthogonal = calling("factor_orthogonal")  # (q, r, a)
