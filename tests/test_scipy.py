"""SciPy's solvers with derivatives of tapegrad, as they are: arrays in, arrays out."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import (
    LinearConstraint,
    NonlinearConstraint,
    basinhopping,
    least_squares,
    minimize,
    newton,
    root,
    root_scalar,
)
from scipy.sparse.linalg import LinearOperator, cg

import tapegrad as tg

START = np.array([-1.2, 1.0, 0.5])
TIMES = np.linspace(0.0, 2.0, 9)
DATA = 2.0 * np.exp(-1.5 * TIMES) + 0.25


def rosenbrock(x):
    return np.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def residuals(p):
    return p[0] * np.exp(-p[1] * TIMES) + p[2] - DATA


def equations(x):
    return np.array([x[0] ** 2 + x[1] - 3.0, x[0] - x[1] ** 3])


def tensor_equations(x):
    return tg.stack([x[0] ** 2 + x[1] - 3.0, x[0] - x[1] ** 3])


def stiff(t, y):
    return np.array([-100.0 * (y[0] - y[1] ** 2), -y[1] + 0.0 * y[0]])


def tensor_stiff(t, y):
    return tg.stack([-100.0 * (y[0] - y[1] ** 2), -y[1]])


def root_of(x):
    return np.cos(x) - x


@pytest.fixture(params=["eager", "compiled"])
def made(request):
    """What makes a function of arrays ready for the transforms."""
    compiled = {f: tg.njit(f) for f in (rosenbrock, residuals, equations, stiff, root_of)}
    eager = {equations: tensor_equations, stiff: tensor_stiff}
    if request.param == "compiled":
        return compiled.__getitem__
    return lambda f: eager.get(f, f)


GRADIENT = ["BFGS", "L-BFGS-B", "CG", "TNC", "SLSQP"]
HESSIAN = ["Newton-CG", "trust-ncg", "trust-krylov", "dogleg", "trust-exact", "trust-constr"]


@pytest.mark.parametrize("method", GRADIENT)
def test_minimize(made, method):
    f, given = made(rosenbrock), {"method": method}
    if method == "TNC":
        given["options"] = {"maxfun": 2000}
    found = minimize(tg.value_and_grad(f), START, jac=True, **given)
    np.testing.assert_allclose(found.x, 1.0, atol=1e-2)
    separate = minimize(rosenbrock, START, jac=tg.grad(f), **given)
    np.testing.assert_allclose(separate.x, found.x, atol=1e-6)


@pytest.mark.parametrize("method", HESSIAN)
@pytest.mark.parametrize("second", ["hess", "hessp"])
def test_minimize_with_second_derivatives(made, method, second):
    if second == "hessp" and method in ("dogleg", "trust-exact"):
        pytest.skip("needs the matrix")
    f = made(rosenbrock)
    options = {second: tg.hessian(f) if second == "hess" else tg.hvp(f)}
    start = np.array([1.02, 1.05, 1.1])  # the matrix is positive definite, as dogleg needs it
    found = minimize(rosenbrock, start, jac=tg.grad(f), method=method, **options)
    np.testing.assert_allclose(found.x, 1.0, atol=1e-4)


def test_bounds_and_constraints(made):
    f = made(rosenbrock)
    bounded = minimize(
        tg.value_and_grad(f), START, jac=True, method="L-BFGS-B", bounds=[(-2.0, 0.5)] * 3
    )
    assert bounded.x[0] == pytest.approx(0.5)
    circle = NonlinearConstraint(
        lambda x: x @ x, -np.inf, 1.0, jac=tg.grad(lambda x: tg.sum(x * x))
    )
    line = LinearConstraint(np.ones(3), 0.0, 1.0)
    for method in ("SLSQP", "trust-constr"):
        found = minimize(
            rosenbrock, 0.2 * START, jac=tg.grad(f), method=method, constraints=[circle, line]
        )
        assert found.x @ found.x <= 1.0 + 1e-6
        assert found.fun < 1.0


@pytest.mark.parametrize("method", ["trf", "dogbox", "lm"])
def test_least_squares(made, method):
    f = made(residuals)
    found = least_squares(residuals, [1.0, 1.0, 0.0], jac=tg.jacobian(f), method=method)
    np.testing.assert_allclose(found.x, [2.0, 1.5, 0.25], rtol=1e-6)


@pytest.mark.parametrize("method", ["hybr", "lm"])
def test_root(made, method):
    f = made(equations)
    found = root(equations, [1.0, 1.0], jac=tg.jacobian(f), method=method)
    np.testing.assert_allclose(equations(found.x), 0.0, atol=1e-8)


def test_root_of_a_number(made):
    f = made(root_of)
    derivative, second = tg.grad(f), tg.grad(tg.grad(f))
    for found in (
        newton(root_of, 0.5, fprime=derivative, fprime2=second),
        root_scalar(root_of, x0=0.5, fprime=derivative, method="newton").root,
        root_scalar(tg.value_and_grad(f), x0=0.5, fprime=True, method="newton").root,
    ):
        assert root_of(found) == pytest.approx(0.0, abs=1e-9)


def test_basinhopping(made):
    options = {"jac": True, "method": "L-BFGS-B"}
    value_and_grad = tg.value_and_grad(made(rosenbrock))
    found = basinhopping(value_and_grad, START, niter=3, minimizer_kwargs=options, seed=1)
    np.testing.assert_allclose(found.x, 1.0, atol=1e-3)


@pytest.mark.parametrize("method", ["Radau", "BDF", "LSODA"])
def test_stiff_equations(made, method):
    jacobian = tg.jacobian(made(stiff), argnums=1)
    found = solve_ivp(
        stiff, (0.0, 1.0), np.array([1.0, 2.0]), method=method, jac=jacobian, rtol=1e-8, atol=1e-10
    )
    assert found.success
    assert found.y[1, -1] == pytest.approx(2.0 * np.exp(-1.0), rel=1e-5)


def test_linear_operator(made):
    x = np.array([1.0, 1.0, 1.0])
    product = tg.hvp(made(rosenbrock))
    operator = LinearOperator((3, 3), matvec=lambda v: product(x, v.reshape(3)), dtype=float)
    step, failed = cg(operator, np.array([1.0, 2.0, 3.0]), rtol=1e-10)
    assert not failed
    np.testing.assert_allclose(tg.hessian(made(rosenbrock))(x) @ step, [1.0, 2.0, 3.0], rtol=1e-6)
