"""Linear algebra of matrices of the numbers of a field, by elimination; the rest is random."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tapegrad.transform.equivalence.array_functions import opaque, per_element
from tapegrad.transform.equivalence.field import (
    ONE,
    ZERO,
    Number,
    UnfollowedError,
    number,
    root,
    sign,
)


def _eliminated(matrix: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, Number]:
    """Return the solutions of systems of equations, and the determinant of their matrix."""
    count = len(matrix)
    if matrix.shape != (count, count) or len(right) != count:
        raise UnfollowedError(f"a system of shape {matrix.shape}")
    rows = [[number(x) for x in (*row, *more)] for row, more in zip(matrix, right, strict=True)]
    determinant = ONE
    for k in range(count):
        pivot = next((i for i in range(k, count) if rows[i][k]), None)
        if pivot is None:
            raise UnfollowedError("a singular matrix")
        if pivot != k:
            rows[k], rows[pivot] = rows[pivot], rows[k]
            determinant = -determinant
        determinant = determinant * rows[k][k]
        first = [x / rows[k][k] for x in rows[k]]
        rows = [_less(row, row[k], first) if i != k else first for i, row in enumerate(rows)]
    found = np.empty(right.shape, object)
    for place in np.ndindex(right.shape):
        found[place] = rows[place[0]][count + place[1]]
    return found, determinant


def _less(row: list[Number], factor: Number, other: list[Number]) -> list[Number]:
    return [x - factor * y for x, y in zip(row, other, strict=True)] if factor else row


def _solve(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    found, _ = _eliminated(a, b if b.ndim == 2 else b[:, None])
    return (found if b.ndim == 2 else found[:, 0]).view(type(b))


def _inv(a: np.ndarray) -> np.ndarray:
    unit = np.array([[ONE if i == j else ZERO for j in range(len(a))] for i in range(len(a))])
    return _eliminated(a, unit)[0].view(type(a))


def _det(a: np.ndarray) -> Number:
    return _eliminated(a, a)[1]


def _slogdet(a: np.ndarray) -> tuple[Number, Number]:
    determinant = _det(a)
    return sign(determinant), per_element("log", 1)(abs(determinant))


def _norm(x: np.ndarray, ord: Any = None) -> Any:
    if ord is not None and not (ord == 2 and x.ndim == 1):
        return opaque("numpy.linalg.norm", np.linalg.norm, x, ord)
    return root(sum((number(e) * number(e).conjugate() for e in x.ravel()), ZERO))


class LinearAlgebra:
    """What stands for `numpy.linalg`."""

    solve = staticmethod(_solve)
    inv = staticmethod(_inv)
    det = staticmethod(_det)
    slogdet = staticmethod(_slogdet)
    norm = staticmethod(_norm)

    def __getattr__(self, name: str) -> Any:
        return functools.partial(opaque, f"numpy.linalg.{name}", getattr(np.linalg, name))
