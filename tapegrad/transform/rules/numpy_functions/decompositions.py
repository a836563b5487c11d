"""Functions of linear algebra with several results: decompositions and least squares.

Formulas: of the SVD, J. Townsend, "Differentiating the singular value decomposition" (2016); of
QR, S. F. Walter et al., "On evaluating higher-order derivatives of the QR decomposition" (2012); of
eigenvalues, M. B. Giles, "Collected matrix derivative results for forward and reverse mode
algorithmic differentiation" (2008). If singular values or eigenvalues coincide, the corresponding
vectors have no derivative: it is nan, unless what it is multiplied by is 0.
"""

from __future__ import annotations

import ast
import functools
from typing import Any

import numpy as np

from tapegrad.transform import lapack, spectra
from tapegrad.transform.builder import add_let
from tapegrad.transform.cache.machine_code import jit
from tapegrad.transform.ir import Let, name, names_in
from tapegrad.transform.nodes import binary, call_of, item, tuple_of
from tapegrad.transform.rules.array_specs import (
    SPECS,
    VARIABLE,
    Request,
    declare,
    derivative,
    named_function,
    understands,
)
from tapegrad.transform.rules.generators import ForwardCode, Generator, ReverseCode
from tapegrad.transform.rules.numpy_functions.factors import triangle_solution
from tapegrad.transform.rules.numpy_functions.finite_matrices import inverse
from tapegrad.transform.rules.numpy_functions.linear_algebra import (
    pinv_cotangent,
    pinv_tangent,
    product_of,
    symmetric_part,
)
from tapegrad.transform.rules.numpy_functions.parts_read import PartsRead
from tapegrad.transform.rules.scalars import product_of_elements
from tapegrad.transform.rules.whole import Whole, parameters_of

declare("svd", "a", "full_matrices", calls=False)
declare("qr", "a", calls=False)
declare("qr_of_floats", "a", calls=False)
declare("eigh", "a", calls=False, chooses=True)
declare("slogdet", "a", calls=False)
declare("lstsq_1", "a", "b", calls=False)
declare("lstsq_2", "a", "b", calls=False)


class Several(Whole):
    """A function with several results.

    Its derivatives read the arguments, the results ``z_0``, ``z_1``, ... and, in reverse mode,
    their cotangents ``g_0``, ``g_1``, ... `without` holds the positions of results without
    derivative.
    """

    cheap = False
    calls = True
    without: tuple[int, ...] = ()
    axes: tuple[int, ...] = (1, 0)  # along which vectors are, of the matrices among the results

    def contents(self, let: Let) -> list[str]:
        assert let.leaves is not None
        read = {n for function in self.spec.vjp.values() for n in parameters_of(function)}
        results = [leaf for k, leaf in enumerate(let.leaves) if f"z_{k}" in read]
        return [*names_in(let.expr), *results]

    def _derivative(self, function: Any, let: Let, special: dict[str, ast.expr]) -> ast.expr:
        assert let.leaves is not None
        values = {k: self.read(v) for k, v in self.operands.items()} | special
        values |= {f"z_{k}": self.read(name(leaf)) for k, leaf in enumerate(let.leaves)}
        reads = [values[n] for n in parameters_of(function)]
        return call_of(f"arrays.{function.py_func.__name__}", *reads)

    def _check(self, gen: Generator, let: Let) -> list[str]:
        """Return the results, refusing one that has no derivative."""
        assert let.leaves is not None
        for position in self.without:
            if gen.is_active(let.leaves[position]):
                gen.refuse(
                    f"cannot differentiate result {position} of np.linalg.{self.spec.name}; "
                    "compute it from the others",
                    let.line,
                )
        return let.leaves

    def write_vjp(self, gen: ReverseCode, let: Let) -> None:
        """Write the code that adds to the cotangents of the arguments."""
        leaves = self._check(gen, let)
        if not any(map(gen.is_active, leaves)):
            return
        cotangents: dict[str, ast.expr] = {"columns": self._used_columns(gen, leaves)}
        for position, leaf in enumerate(leaves):
            if getattr(self.types[leaf], "ndim", 0):
                cotangents[f"g_{position}"] = gen.shadow(leaf)
            else:
                is_known = leaf in gen.has
                cotangents[f"g_{position}"] = name(gen.bar(leaf)) if is_known else _ZERO
        for argument, atom in self.operands.items():
            if isinstance(atom, ast.Name) and atom.id in self._inputs and gen.is_active(atom.id):
                bar = {f"{argument}_bar": gen.shadow(atom.id)}
                special = {**cotangents, **bar}
                gen.line(self._derivative(self.spec.vjp[argument], let, special))
                if self.may_vanish(gen, argument, atom.id):
                    marked = call_of("arrays.mark_zeros", gen.shadow(atom.id), ast.Constant(1.0))
                    gen.builder.do(marked)

    def write_jvp(self, gen: ForwardCode, let: Let) -> None:
        """Write the call, and the tangents of its results."""
        add_let(gen.builder, let)
        leaves = self._check(gen, let)
        vectors = {"vectors": self._uses_vectors(gen, leaves)}
        live = [k for k, leaf in enumerate(leaves) if gen.is_active(leaf)]
        if not live:
            return
        found = []
        for argument, atom in self.operands.items():
            if isinstance(atom, ast.Name) and atom.id in self._inputs and gen.is_active(atom.id):
                tangents = name(gen.returned(let))
                special = {**vectors, f"{argument}_dot": name(gen.dot(atom.id))}
                call = self._derivative(self.spec.jvp[argument], let, special)
                gen.builder.assign(tangents, call)
                found.append(tangents)
        for k in live:
            terms: list[ast.expr] = [item(tangents, k) for tangents in found]
            terms = terms or [gen.zero(leaves[k])]
            total = functools.reduce(lambda a, b: binary(a, "+", b), terms)
            gen.builder.assign(name(gen.dot(leaves[k])), total)

    def _uses_vectors(self, gen: Generator, leaves: list[str]) -> ast.expr:
        return ast.Constant(any(gen.is_active(leaf) for leaf in leaves if self._ndim(leaf) == 2))

    def _used_columns(self, gen: Generator, leaves: list[str]) -> ast.expr:
        """Return which vectors are used, as pairs of a start and a stop."""
        matrices = [leaf for leaf in leaves if self._ndim(leaf) == 2]
        read = PartsRead(gen.function)
        parts = {
            part
            for axis, leaf in zip(self.axes, matrices, strict=False)
            if gen.is_active(leaf)
            for part in read.of(leaf, axis)
        }
        pairs = [[*map(ast.Constant, part)] for part in sorted(parts or {(0, 0)})]
        return tuple_of([tuple_of(pair) for pair in pairs])

    def _ndim(self, leaf: str) -> int:
        return getattr(self.types[leaf], "ndim", 0)


_ZERO = ast.Constant(0.0)


def several(
    call: Request,
    spec: str,
    without: tuple[int, ...] = (),
    axes: tuple[int, ...] = Several.axes,
    **operands: Any,
) -> Several:
    """Return the rule of a function with several results."""
    found = Several(SPECS[spec], operands, True, call.lowering)
    found.without, found.axes = without, axes
    return found


# -- singular values -------------------------------------------------------------------------------


@named_function
@jit
def thin_svd_of_floats(a):
    """Return the singular vectors of a matrix and its singular values, as ``np.linalg.svd``."""
    rows, columns = a.shape
    count = min(rows, columns)
    u, values, vt = np.empty((rows, count)), np.empty((count, 1)), np.empty((count, columns))
    spectra.find_singular_values(0, (u, vt, values, a))
    return u, values[:, 0], vt


@understands("thin_svd_of_floats")
def _(call: Request, a: Any) -> Any:
    return several(call, "svd", a=a, full_matrices=ast.Constant(False))


@named_function
@jit
def pinv_of_floats(a, limit):
    """Return the pseudo-inverse of a matrix, as ``np.linalg.pinv``.

    Singular values of up to `limit` times the largest one count as 0.
    """
    u, s, vt = thin_svd_of_floats(a)
    scaled = vt.T.copy()
    for k in range(s.size):
        inverse = 1.0 / s[k] if s[k] > limit * s[0] else 0.0
        for i in range(scaled.shape[0]):
            scaled[i, k] *= inverse
    return product_of(scaled, u.T)


@understands("pinv_of_floats")
def _(call: Request, a: Any, limit: Any) -> Any:
    return call.whole("pinv", a=a)


@understands("svd")
def _(call: Request, a: Any, full_matrices: Any) -> Any:
    full = call.constant(full_matrices, True)
    if full is VARIABLE:
        return "np.linalg.svd with a computed `full_matrices`; write True or False"
    return several(call, "svd", a=a, full_matrices=ast.Constant(bool(full)))


@jit
def rounding_of(w):
    """Return what eigenvalues may differ by due to rounding."""
    largest = 0.0
    for i in range(w.size):
        largest = max(largest, abs(w[i]))
    epsilon = 1.2e-07 if w.itemsize == 4 else 2.2e-16
    return 4.0 * w.size * epsilon * largest


@jit
def inverse_gaps(w, sums):
    """Return 1 / ((w[j] - w[i]) * sums[i, j]) for all pairs of eigenvalues, 0 on the diagonal.

    It is nan where they coincide but for rounding: their vectors are any basis of the eigenspace.
    """
    size = w.size
    found = np.zeros((size, size), w.dtype)
    near = rounding_of(w)
    for i in range(size):
        for j in range(size):
            if i != j:
                gap = w[j] - w[i]
                if abs(gap) <= near:
                    found[i, j] = np.nan
                else:
                    found[i, j] = 1.0 / (gap * sums[i, j])
    return found


@jit
def all_ones(w):
    """Return ones for all pairs of elements."""
    return np.ones((w.size, w.size), w.dtype)


@jit
def all_sums(w):
    """Return the sums of all pairs of elements."""
    found = np.empty((w.size, w.size), w.dtype)
    for i in range(w.size):
        for j in range(w.size):
            found[i, j] = w[i] + w[j]
    return found


@jit
def scaled_columns(x, s):
    """Return a matrix with columns divided by `s`; where `s` is 0, nan unless they are 0."""
    near = rounding_of(s)
    inverse = np.empty_like(s)
    for j in range(s.size):
        inverse[j] = 1.0 / s[j] if s[j] > near else np.nan
    return product_of_elements(x, inverse)


@jit
def check_square(a, full_matrices, reads):
    """Refuse a full decomposition if vectors are used and some are not determined."""
    if full_matrices and reads and a.shape[0] != a.shape[1]:
        raise ValueError(
            "np.linalg.svd: the additional vectors of full_matrices=True have no derivative; pass "
            "full_matrices=False"
        )


@jit
def holds_any(x):
    """Whether any element is not zero."""
    found = False
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            if x[i, j] != 0.0:
                found = True
    return found


@jit
def mark_eigenspaces(middle, w, g, columns):
    """Let nan pass between equal eigenvalues that have cotangents (as in `ops.eigenspaces`).

    They do not concern pairs of vectors of which none is in `columns`, pairs of start and stop.
    """
    is_used = np.zeros(w.size, np.bool_)
    for start, stop in columns:
        is_used[start:stop] = True
    for i in range(w.size):
        for j in range(w.size):
            if i != j and w[i] == w[j] and (g[i] != 0.0 or g[j] != 0.0):
                if is_used[i] or is_used[j]:
                    middle[i, j] = np.nan


@derivative
def svd_vjp_a(a, a_bar, full_matrices, columns, z_0, z_1, z_2, g_0, g_1, g_2):
    check_square(a, full_matrices, holds_any(g_0) or holds_any(g_2))
    s = z_1
    size = s.size
    u = z_0[:, :size].copy()
    vt = z_2[:size].copy()
    gu = g_0[:, :size].copy()
    gv = np.ascontiguousarray(g_2[:size].T)
    gaps = inverse_gaps(s, all_sums(s))
    p = product_of(u.T, gu)
    q = product_of(vt, gv)
    left = product_of_elements(p, gaps)
    right = product_of_elements(q, gaps)
    middle = np.empty_like(p)
    for i in range(size):
        for j in range(size):
            middle[i, j] = (left[i, j] + left[j, i]) * s[j] + s[i] * (right[i, j] + right[j, i])
        middle[i, i] += g_1[i]
    mark_eigenspaces(middle, s, g_1, columns)
    a_bar += product_of(product_of(u, middle), vt)
    if a.shape[0] > size:
        scaled = scaled_columns(gu, s)
        a_bar += product_of(scaled - product_of(u, product_of(u.T, scaled)), vt)
    if a.shape[1] > size:
        turned = np.ascontiguousarray(scaled_columns(gv, s).T)
        a_bar += product_of(u, turned - product_of(product_of(turned, vt.T), vt))


@derivative
def svd_jvp_a(a, a_dot, full_matrices, vectors, z_0, z_1, z_2):
    check_square(a, full_matrices, vectors)
    s = z_1
    size = s.size
    u = z_0[:, :size].copy()
    vt = z_2[:size].copy()
    p = product_of(product_of(u.T, a_dot), vt.T)
    s_dot = np.empty_like(s)
    gaps = inverse_gaps(s, all_sums(s))
    along = product_of_elements(p, gaps)
    left = np.zeros_like(p)
    right = np.zeros_like(p)
    for i in range(size):
        s_dot[i] = p[i, i]
        for j in range(size):
            left[i, j] = along[i, j] * s[j] - s[i] * along[j, i]
            right[i, j] = s[i] * along[i, j] - along[j, i] * s[j]
    u_dot = product_of(u, left)
    v_dot = product_of(vt.T, right)
    if a.shape[0] > size:
        turned = product_of(a_dot, vt.T)
        u_dot += scaled_columns(turned - product_of(u, product_of(u.T, turned)), s)
    if a.shape[1] > size:
        turned = product_of(a_dot.T, u)
        v_dot += scaled_columns(turned - product_of(vt.T, product_of(vt, turned)), s)
    return u_dot, s_dot, np.ascontiguousarray(v_dot.T)


# -- eigenvalues -----------------------------------------------------------------------------------


@named_function
@jit
def eigh_of_floats(a):
    """Return the eigenvalues and eigenvectors of a symmetric matrix (its lower triangle)."""
    n = a.shape[0]
    values, vectors = np.empty((n, 1)), np.empty((n, n))
    spectra.find_eigenvalues(0, (vectors, values, a))
    return values[:, 0], vectors


@understands("eigh", "eigh_of_floats")
def _(call: Request, a: Any) -> Any:
    return several(call, "eigh", a=a)


@understands("eig", "eigvals")
def _(call: Request, a: Any) -> Any:
    return f"np.linalg.{call.text}; of a symmetric matrix, np.linalg.eigh has a derivative"


@derivative
def eigh_vjp_a(a_bar, columns, z_0, z_1, g_0, g_1):
    w, v = z_0, np.ascontiguousarray(z_1)
    middle = product_of_elements(product_of(v.T, g_1), inverse_gaps(w, all_ones(w)))
    for i in range(w.size):
        middle[i, i] += g_0[i]
    mark_eigenspaces(middle, w, g_0, columns)
    full = product_of(product_of(v, middle), v.T)
    a_bar += 0.5 * (full + full.T)


@derivative
def eigh_jvp_a(a, a_dot, z_0, z_1):
    p = product_of(product_of(z_1.T, symmetric_part(a_dot)), z_1)
    w_dot = np.empty_like(z_0)
    for i in range(z_0.size):
        w_dot[i] = p[i, i]
    turned = product_of_elements(p, inverse_gaps(z_0, all_ones(z_0)))
    return w_dot, product_of(z_1, turned)


# -- orthogonal triangular -------------------------------------------------------------------------


@named_function
@jit
def qr_of_floats(a):
    """Return the orthogonal and the triangular factor of a matrix, as ``np.linalg.qr``."""
    rows, columns = a.shape
    count = min(rows, columns)
    q, r = np.empty((rows, count)), np.empty((count, columns))
    spectra.factor_orthogonal(0, (q, r, a))
    return q, r


@understands("qr", "qr_of_floats")
def _(call: Request, a: Any) -> Any:
    return several(call, call.text, a=a)


@jit
def check_high(a):
    """Refuse a matrix with more columns than rows."""
    if a.shape[0] < a.shape[1]:
        raise ValueError(
            "np.linalg.qr: the derivative is defined for matrices at least as high as wide; "
            "decompose the leading columns"
        )


@jit
def qr_cotangent(q, r, q_bar, r_bar):
    """Return what the cotangent of a matrix is with r, transposed, beside it."""
    m = product_of(r, r_bar.T) - product_of(q_bar.T, q)
    symmetric = np.empty_like(m)
    for i in range(m.shape[0]):
        symmetric[i, i] = m[i, i]
        for j in range(i):
            symmetric[i, j] = m[i, j]
            symmetric[j, i] = m[i, j]
    return q_bar + product_of(q, symmetric)


@derivative
def qr_vjp_a(a, a_bar, z_0, z_1, g_0, g_1):
    check_high(a)
    total = qr_cotangent(z_0, z_1, g_0, g_1)
    a_bar += np.linalg.solve(z_1, np.ascontiguousarray(total.T)).T


@derivative
def qr_of_floats_vjp_a(a, a_bar, z_0, z_1, g_0, g_1):
    check_high(a)
    total = qr_cotangent(z_0, z_1, g_0, g_1)
    a_bar += over_triangle(total, z_1, lapack.UPPER)


@jit
def over_triangle(x, triangle, kind):
    """Return the transpose of the solutions of systems with a triangle, for the rows of x."""
    rows, columns = x.shape
    right = np.ascontiguousarray(x.T).reshape((1, columns, rows))
    found = triangle_solution(triangle.reshape((1, columns, columns)), right, kind)
    return found.reshape((columns, rows)).T


@jit
def qr_tangents(q, r, along):
    """Return the tangents of the factors from that of the matrix, times the inverse of r."""
    c = product_of(q.T, along)
    skew = np.zeros_like(c)
    for i in range(c.shape[0]):
        for j in range(i):
            skew[i, j] = c[i, j]
            skew[j, i] = -c[i, j]
    q_dot = along - product_of(q, c) + product_of(q, skew)
    return q_dot, product_of(c - skew, r)


@derivative
def qr_jvp_a(a, a_dot, z_0, z_1):
    check_high(a)
    turned = np.linalg.solve(np.ascontiguousarray(z_1.T), np.ascontiguousarray(a_dot.T))
    return qr_tangents(z_0, z_1, np.ascontiguousarray(turned.T))


@derivative
def qr_of_floats_jvp_a(a, a_dot, z_0, z_1):
    check_high(a)
    along = over_triangle(a_dot, z_1, lapack.UPPER | lapack.TURNED)
    return qr_tangents(z_0, z_1, np.ascontiguousarray(along))


# -- others ----------------------------------------------------------------------------------------


@understands("slogdet")
def _(call: Request, a: Any) -> Any:
    return several(call, "slogdet", a=a)


@derivative
def slogdet_vjp_a(a, a_bar, g_0, g_1):  # the sign, which g_0 belongs to, is constant
    a_bar += g_1 * inverse(a).T


@derivative
def slogdet_jvp_a(a, a_dot):
    return 0.0, np.sum(inverse(a).T * a_dot)


@understands("lstsq")
def _(call: Request, a: Any, b: Any, rcond: Any) -> Any:
    if rcond is not None:
        return None
    return several(call, f"lstsq_{call.ndim(b)}", (1, 3), a=a, b=b)


@derivative
def lstsq_1_vjp_a(a, a_bar, b, g_0):
    a_bar += pinv_cotangent(a, np.linalg.pinv(a), np.outer(g_0, b))


@derivative
def lstsq_1_vjp_b(a, b_bar, g_0):
    b_bar += np.dot(np.ascontiguousarray(np.linalg.pinv(a).T), g_0)


@derivative
def lstsq_2_vjp_a(a, a_bar, b, g_0):
    a_bar += pinv_cotangent(a, np.linalg.pinv(a), product_of(g_0, b.T))


@derivative
def lstsq_2_vjp_b(a, b_bar, g_0):
    b_bar += product_of(np.linalg.pinv(a).T, g_0)


@derivative
def lstsq_1_jvp_a(a, a_dot, b):
    return (np.dot(pinv_tangent(a, a_dot, np.linalg.pinv(a)), np.ascontiguousarray(b)),)


@derivative
def lstsq_1_jvp_b(a, b_dot):
    return (np.dot(np.linalg.pinv(a), np.ascontiguousarray(b_dot)),)


@derivative
def lstsq_2_jvp_a(a, a_dot, b):
    return (product_of(pinv_tangent(a, a_dot, np.linalg.pinv(a)), b),)


@derivative
def lstsq_2_jvp_b(a, b_dot):
    return (product_of(np.linalg.pinv(a), b_dot),)
