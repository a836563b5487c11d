"""Linear algebra of recorded functions: compiled, of stacks, with factors that are used again."""

import os
import subprocess
import sys

import numpy as np
import pytest
from interpreted import assert_equal, interpret, is_compiled

import tapegrad as tg
from tapegrad.transform import lapack
from tapegrad.transform.lapack import TURNED, UNIT, UPPER
from tapegrad.transform.rules.numpy_functions import decompositions, factors, finite_matrices

SIZES = [1, 2, 3, 5, 9, 10, 11, 12, 40, 65, 150]  # loops up to 10 rows, LAPACK beyond
DRAW = np.random.default_rng(7)


def stack(*shape):
    """Return matrices far from singular."""
    size = shape[-1]
    return DRAW.normal(size=shape) / np.sqrt(size) + 2.0 * np.eye(size)


def layouts(a):
    """Yield stacks with the same elements in other places of memory."""
    yield a
    yield np.swapaxes(np.ascontiguousarray(np.swapaxes(a, 1, 2)), 1, 2)
    spread = np.zeros((a.shape[0], 2 * a.shape[1], a.shape[2] + 1))
    spread[:, ::2, :-1] = a
    yield spread[:, ::2, :-1]


# -- the functions of compiled code ----------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_factors(size):
    a, b = stack(3, size, size), DRAW.normal(size=(3, size, 2))
    a[0] = np.eye(size)[::-1]  # rows are exchanged
    for given in layouts(a):
        found = factors.lu_factors(given)
        for right in layouts(b):
            solved = factors.factored_solution(given, found, right)
            assert_equal(solved, np.linalg.solve(a, b), 1e-10, 1e-11)
            solved = factors.factored_solution_t(given, found, right)
            assert_equal(solved, np.linalg.solve(np.swapaxes(a, 1, 2), b), 1e-10, 1e-11)
        assert_equal(factors.factored_inverse(given, found), np.linalg.inv(a), 1e-10, 1e-11)
        sign, logarithm = np.linalg.slogdet(a)
        assert_equal(factors.factored_sign(found), sign)
        assert_equal(factors.factored_logarithm(given, found), logarithm, 1e-11, 1e-11)


@pytest.mark.parametrize("size", [2, 10, 12])
def test_singular_matrices_and_what_is_not_finite(size):
    a, b = stack(2, size, size), DRAW.normal(size=(2, size, 2))
    singular = a.copy()
    singular[1] = np.outer(a[1, 0], np.ones(size))
    singular[1, :, 0] = 0.0
    found = factors.lu_factors(singular)
    for solve in (factors.factored_solution, factors.factored_solution_t):
        with pytest.raises(np.linalg.LinAlgError, match="singular"):
            solve(singular, found, b)
    with pytest.raises(np.linalg.LinAlgError, match="singular"):
        factors.factored_inverse(singular, found)
    assert factors.factored_sign(found)[1] == 0.0
    assert factors.factored_logarithm(singular, found)[1] == -np.inf
    expected = np.linalg.solve(a, b)
    for value in (np.nan, np.inf):
        broken = a.copy()
        broken[1, 0, -1] = value
        found = factors.lu_factors(broken)
        solved = factors.factored_solution(broken, found, b)
        assert_equal(solved[0], expected[0], 1e-11, 1e-12)
        assert np.isnan(solved[1]).all()
        assert np.isnan(factors.factored_inverse(broken, found)[1]).all()
        assert np.isnan(factors.factored_logarithm(broken, found)[1])
        assert np.isnan(factors.factored_sign(found)[1])
        right = b.copy()
        right[0, -1, 0] = value
        solved = factors.factored_solution(a, factors.lu_factors(a), right)
        assert np.isnan(solved[0, :, 0]).all()
        assert_equal(solved[:, :, 1], expected[:, :, 1], 1e-11, 1e-12)


@pytest.mark.parametrize("kind", range(2 * UNIT))
@pytest.mark.parametrize("columns", [1, 4])
@pytest.mark.parametrize("size", SIZES)
def test_triangles(size, columns, kind):
    """The other triangle is not read, nor a diagonal that counts as 1."""
    a, b = stack(2, size, size), DRAW.normal(size=(2, size, columns))
    if kind & UNIT:
        a /= size
    triangle = np.triu if kind & UPPER else np.tril
    whole = triangle(a)
    other = np.where(triangle(np.ones((size, size))) == 0.0, np.nan, a)
    if kind & UNIT:
        whole[:, range(size), range(size)] = 1.0
        other[:, range(size), range(size)] = np.nan
    expected = np.linalg.solve(np.swapaxes(whole, 1, 2) if kind & TURNED else whole, b)
    for given in (*layouts(a), *layouts(other)):
        for right in layouts(b):
            assert_equal(factors.triangle_solution(given, right, kind), expected, 1e-10, 1e-11)
    place = (1, 0, size - 1) if kind & UPPER else (1, size - 1, 0)
    if size > 1 or not kind & UNIT:
        a[place] = np.inf
        found = factors.triangle_solution(a, b, kind)
        assert_equal(found[0], expected[0], 1e-10, 1e-11)
        assert np.isnan(found[1]).all()
        assert np.isnan(factors.triangle_solution(a, np.zeros_like(b), kind)[1]).all()
        a[place] = whole[place]
    for value in (np.nan, np.inf):
        right = b.copy()
        right[0, -1, 0] = value
        found = factors.triangle_solution(a, right, kind)
        assert np.isnan(found[0, :, 0]).all()
        assert_equal(found[:, :, 1:], expected[:, :, 1:], 1e-10, 1e-11)
    if not kind & UNIT:
        a[1, -1, -1] = 0.0
        with pytest.raises(np.linalg.LinAlgError, match="singular"):
            factors.triangle_solution(a, b, kind)


@pytest.mark.parametrize("size", SIZES)
def test_positive_definite_matrices(size):
    root = stack(2, size, size)
    a = root @ np.swapaxes(root, 1, 2)
    lower = np.where(np.tri(size) == 0.0, np.nan, a)  # the other triangle is not read
    for given in (*layouts(a), *layouts(lower)):
        assert_equal(factors.stacked_cholesky(given), np.linalg.cholesky(a), 1e-10, 1e-11)
    expected = np.linalg.cholesky(a)
    for value in (np.nan, np.inf):
        broken = a.copy()
        broken[1, -1, 0] = value
        found = factors.stacked_cholesky(broken)
        assert_equal(found[0], expected[0], 1e-10, 1e-11)
        assert np.isnan(found[1][np.tri(size) > 0.0]).all()
    for value in (-1.0, 0.0):
        a[1, -1, -1] = value
        with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
            factors.stacked_cholesky(a)


@pytest.mark.parametrize("size", SIZES)
def test_eigenvalues(size):
    a = DRAW.normal(size=(size, size))
    a = a + a.T
    for given in (a, np.asfortranarray(a), np.tril(a)):
        values, vectors = decompositions.eigh_of_floats(given)
        expected, expected_vectors = np.linalg.eigh(a)
        assert_equal(values, expected, 1e-11, 1e-11)
        assert_equal(vectors, expected_vectors, 1e-8, 1e-9)
    a[0, 0] = np.nan
    with pytest.raises(np.linalg.LinAlgError, match="did not converge"):
        decompositions.eigh_of_floats(a)


@pytest.mark.parametrize("size", range(1, 9))
def test_functions_of_derivatives(size):
    """Small matrices are eliminated in loops, others by LAPACK."""
    for a in (stack(size, size), np.eye(size)[::-1].copy()):
        b = DRAW.normal(size=(size, 2))
        for given in (a, np.asfortranarray(a)):
            assert_equal(finite_matrices.inverse(given), np.linalg.inv(a), 1e-11, 1e-12)
            assert_equal(finite_matrices.determinant(given), np.linalg.det(a), 1e-12, 1e-13)
            found = finite_matrices.solve_matrix(given, b)
            assert_equal(found, np.linalg.solve(a, b), 1e-11, 1e-12)
            found = finite_matrices.solve_vector(given, b[:, 0])
            assert_equal(found, np.linalg.solve(a, b[:, 0]), 1e-11, 1e-12)
    singular = np.ones((size, size)) * (size > 1)
    assert finite_matrices.determinant(singular) == 0.0
    with pytest.raises(np.linalg.LinAlgError, match="singular"):
        finite_matrices.inverse(singular)
    with pytest.raises(np.linalg.LinAlgError, match="singular"):
        finite_matrices.solve_vector(singular, np.ones(size))


def test_one_function_for_all_layouts():
    """What is compiled for a program is a call: functions of this package do the rest."""
    assert all(lapack.table)


WITHOUT_SCIPY = """
import sys

sys.modules["scipy"] = None
import numpy as np
import tapegrad as tg

rng = np.random.default_rng(0)
a, b = rng.normal(size=(30, 30)) + 8.0 * np.eye(30), rng.normal(size=(30, 3))
programs = [
    lambda a: tg.sum(tg.linalg.solve(a, b) ** 2) + tg.linalg.slogdet(a)[1],
    lambda a: tg.sum(tg.linalg.inv(a) ** 2),
    lambda a: tg.sum(tg.linalg.cholesky(a @ a.T)),
    lambda a: tg.sum(tg.solve_triangular(a, b, lower=True) ** 2),
]
for f in programs:
    for one, other in zip(tg.value_and_grad(tg.jit(f))(a), tg.value_and_grad(f)(a)):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)
    assert tg.jit(f).inspect(a).startswith("#"), tg.jit(f).inspect(a)
try:
    tg.jit(lambda a: tg.sum(tg.linalg.eigh(a)[1]), strict=True)(a + a.T)
except tg.RecordingError as error:
    assert "pip install scipy" in str(error)
else:
    raise AssertionError("no error")
"""


@pytest.mark.compiled
def test_without_scipy(tmp_path):
    environment = {**os.environ, "TAPEGRAD_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", WITHOUT_SCIPY], env=environment, check=True)


# -- recorded functions ----------------------------------------------------------------------------

M, SPD = stack(4, 4), None
SPD = M @ M.T
STACK = stack(2, 3, 4, 4)


def solved(a, b):
    return np.linalg.solve(a, b)


def solved_lower(a, b):
    return tg.solve_triangular(a, b, lower=True)


def solved_upper_unit(a, b):
    return tg.solve_triangular(a, b, unit_diagonal=True)


def solved_turned(a, b):
    return tg.solve_triangular(np.swapaxes(a, -1, -2), b)


SYSTEMS = [solved, solved_lower, solved_upper_unit, solved_turned]
SIDES = [(M, (4,)), (M, (4, 1)), (M, (4, 3)), (M, (3, 4, 2)), (M, (2, 3, 4, 2)), (STACK, (4, 2)),
         (STACK, (2, 3, 4, 2)), (STACK[:, 0], (2, 4, 1)), (STACK[:, :1], (3, 4, 2)),
         (STACK[:1, 0], (3, 4, 2))]  # fmt: skip


@pytest.mark.parametrize("given", SIDES, ids=lambda g: f"{g[0].shape}-{g[1]}")
@pytest.mark.parametrize("function", SYSTEMS, ids=lambda f: f.__name__)
def test_systems(function, given, monkeypatch):
    interpret(monkeypatch)
    a, shape = given
    b = np.cos(np.arange(np.prod(shape))).reshape(shape)
    jitted = tg.jit(function)
    assert is_compiled(jitted.inspect(a, b))
    assert_equal(jitted(a, b), function(a, b), 1e-11, 1e-12)
    single = [x.astype(np.float32) for x in (a, b)]
    assert is_compiled(jitted.inspect(*single))
    assert_equal(jitted(*single), function(*single), 2e-4, 2e-5)


ALONE = {
    "inv": np.linalg.inv,
    "inv_of_stack": lambda a: np.linalg.inv(a * STACK),
    "slogdet": lambda a: np.stack(np.linalg.slogdet(a)),
    "slogdet_of_stack": lambda a: np.linalg.slogdet(a * STACK)[1],
    "sign": lambda a: np.linalg.slogdet(-a)[0] * a,
    "det": np.linalg.det,
    "det_of_stack": lambda a: np.linalg.det(a * STACK),
    "cholesky": lambda a: np.linalg.cholesky(a @ a.T),
    "cholesky_of_stack": lambda a: np.linalg.cholesky(a @ a.T + STACK @ np.swapaxes(STACK, -1, -2)),
    "eigh": lambda a: np.linalg.eigh(a + a.T)[0],
    "eigh_of_upper": lambda a: np.linalg.eigh(a, "U")[0],
    "projection": lambda a: (lambda v: v[:, :2] @ v[:, :2].T)(np.linalg.eigh(a + a.T)[1]),
    "projections": lambda a: (lambda v: v[..., :1] * v[..., None, :, 0])(
        np.linalg.eigh(a @ a.T + STACK + np.swapaxes(STACK, -1, -2))[1]
    ),
    "svd": lambda a: np.linalg.svd(a)[1],
    "thin_svd": lambda a: (lambda u, s, v: (u * np.tanh(s)) @ v)(
        *np.linalg.svd(a, full_matrices=False)
    ),
    "qr": lambda a: np.linalg.qr(a)[1] ** 2,
    "several": lambda a: (
        np.linalg.solve(a, M) + np.linalg.inv(a) * np.linalg.slogdet(a)[1] + np.linalg.solve(a, a.T)
    ),
}


@pytest.mark.parametrize("name", ALONE)
def test_functions_of_a_matrix(name, monkeypatch):
    interpret(monkeypatch)
    f = ALONE[name]
    jitted = tg.jit(f)
    assert is_compiled(jitted.inspect(M))
    assert_equal(jitted(M), f(M), 1e-10, 1e-11)


@pytest.mark.compiled
@pytest.mark.parametrize("name", ALONE)
def test_derivatives_of_functions_of_a_matrix(name):
    shape = np.shape(ALONE[name](M))
    weights = np.cos(np.arange(np.prod(shape))).reshape(shape)

    def f(a):
        return tg.sum(ALONE[name](a) * weights)

    for one, other in zip(tg.value_and_grad(tg.jit(f))(M), tg.value_and_grad(f)(M), strict=True):
        assert_equal(one, other, 1e-9, 1e-10)
    direction = np.sin(M)
    assert_equal(tg.jvp(tg.jit(f), 0)(M, direction), tg.jvp(f, 0)(M, direction), 1e-9, 1e-10)


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["inv", "slogdet_of_stack", "cholesky", "several"])
def test_second_derivatives_of_functions_of_a_matrix(name):
    def f(a):
        return tg.sum(tg.sin(ALONE[name](a)))

    direction = np.sin(M)
    found = tg.hvp(tg.jit(f), 0)(M, direction)
    assert_equal(found, tg.hvp(f, 0)(M, direction), 1e-8, 1e-9)


@pytest.mark.compiled
@pytest.mark.parametrize("given", SIDES[2:7:2], ids=lambda g: f"{g[0].shape}-{g[1]}")
@pytest.mark.parametrize("function", SYSTEMS, ids=lambda f: f.__name__)
def test_derivatives_of_systems(function, given):
    a, shape = given
    b = np.cos(np.arange(np.prod(shape))).reshape(shape)

    def f(a, b):
        return tg.sum(tg.cos(function(a, b)))

    found = tg.value_and_grad(tg.jit(f), (0, 1))(a, b)
    assert_equal(found, tg.value_and_grad(f, (0, 1))(a, b), 1e-9, 1e-10)
    for k in (0, 1):  # one of both alone has no use for what both share
        assert_equal(tg.grad(tg.jit(f), k)(a, b), found[1][k], 1e-9, 1e-10)
    given = a, b, np.cos(a), np.sin(b)
    assert_equal(tg.jvp(tg.jit(f), (0, 1))(*given), tg.jvp(f, (0, 1))(*given), 1e-9, 1e-10)


@pytest.mark.compiled
@pytest.mark.parametrize("function", SYSTEMS, ids=lambda f: f.__name__)
def test_second_derivatives_of_systems(function):
    def f(both):
        return tg.sum(tg.cos(function(both[:16].reshape(4, 4), both[16:].reshape(4, 2))))

    both = np.concatenate([M.ravel(), np.cos(np.arange(8.0))])
    found = tg.hvp(tg.jit(f))(both, np.sin(both))
    assert_equal(found, tg.hvp(f)(both, np.sin(both)), 1e-8, 1e-9)


@pytest.mark.compiled
def test_results_that_are_overwritten():
    """Derivatives read what the decomposition gave."""

    def f(a, writes):
        values, vectors = np.linalg.eigh(a + a.T)
        found = tg.sum((vectors**2) @ values * np.arange(4.0))
        if not writes:
            return found + tg.sum(values[2:]) + 2.0 * 3.0
        vectors[:] = 1.0
        values[:2] = 3.0
        return found + tg.sum(vectors @ values) / 4.0

    found = tg.grad(tg.jit(f, static_argnums=1))(M, True)
    assert_equal(found, tg.grad(f)(M, False), 1e-9, 1e-10)


def test_a_matrix_is_decomposed_once():
    text = tg.jit(ALONE["several"]).inspect(M)
    assert text.count("lu_factors(") == 1
    assert text.count("factored_") == 4


def test_one_matrix_beside_a_stack_of_right_hand_sides_is_decomposed_once():
    text = tg.jit(solved).inspect(M, np.ones((5, 4, 2)))
    assert text.count("lu_factors(") == 1
    assert "(5, 5, 4" not in text


@pytest.mark.parametrize("text", ["singular", "not positive definite"])
def test_errors(text):
    functions = {
        "singular": lambda a: np.linalg.solve(a, M) + np.linalg.inv(a),
        "not positive definite": np.linalg.cholesky,
    }
    jitted = tg.jit(functions[text])
    with pytest.raises(np.linalg.LinAlgError, match=text):
        jitted(np.zeros((4, 4)))


@pytest.mark.parametrize("function", [solved, solved_lower, solved_upper_unit])
@pytest.mark.parametrize("stack_of", [(), (2,)])
def test_transposes_have_the_factors_of_the_matrix(function, stack_of, monkeypatch):
    interpret(monkeypatch)
    a = stack(*stack_of, 4, 4)
    b = np.cos(np.arange(np.prod(stack_of) * 8.0)).reshape(*stack_of, 4, 2)

    def f(a, b):
        return function(np.swapaxes(a, -1, -2), b) + function(a, b)

    jitted = tg.jit(f)
    assert jitted.inspect(a, b).count("lu_factors(") <= 1
    assert is_compiled(jitted.inspect(a, b))
    assert_equal(jitted(a, b), f(a, b), 1e-11, 1e-12)


@pytest.mark.compiled
def test_a_gradient_inside_has_the_factors_of_the_value():
    b = np.cos(np.arange(8.0)).reshape(4, 2)

    def f(a):
        value, slope = tg.value_and_grad(lambda a: tg.sum(np.linalg.solve(a, b) ** 2))(a)
        return value + tg.sum(slope * np.cos(a))

    jitted = tg.jit(f)
    assert jitted.inspect(M).count("lu_factors(") == 1
    assert_equal(jitted(M), f(M), 1e-11, 1e-12)
    assert_equal(tg.grad(jitted)(M), tg.grad(f)(M), 1e-10, 1e-11)
