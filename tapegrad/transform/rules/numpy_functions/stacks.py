"""Products of stacks of matrices."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from tapegrad.transform.blas import add_product, add_product_nt, add_product_tn
from tapegrad.transform.cache.machine_code import jit
from tapegrad.transform.rules.array_specs import declare, derivative, named_function
from tapegrad.transform.rules.numpy_functions.linear_algebra import add_product_22
from tapegrad.transform.tape_memory.large_arrays import zeros


def _declare(name: str, turned: str = "") -> None:
    """Declare a product of stacks; some of the factors are transposed."""

    def extents(known, arguments, axis):
        if axis == 0:
            return known.of(arguments[0].id, 0)
        is_turned = "xy"[axis - 1] in turned  # rows are those of x, columns those of y
        return known.of(arguments[axis - 1].id, 3 - axis if is_turned else axis)

    declare(name, "x", "y", linear=("x", "y"), value=f"{name}(x, y)", extents=extents)


_declare("stacked_product")
_declare("stacked_product_t", turned="y")
_declare("stacked_t_product", turned="x")


@named_function
@jit
def stacked_product(x, y):
    """Return the products of the matrices of two stacks of floats."""
    out = zeros((x.shape[0], x.shape[1], y.shape[2]))
    add_product(out, x, y)
    return out


@derivative
def stacked_product_vjp_x(x_bar, y, g):
    for k in range(g.shape[0]):
        add_product_22(x_bar[k], g[k], y[k].T)


@derivative
def stacked_product_vjp_y(x, y_bar, g):
    for k in range(g.shape[0]):
        add_product_22(y_bar[k], x[k].T, g[k])


@named_function
@jit
def stacked_product_t(x, y):
    """Return the products of the matrices of a stack with the transposes of those of another."""
    out = zeros((x.shape[0], x.shape[1], y.shape[1]))
    add_product_nt(out, x, y)
    return out


@derivative
def stacked_product_t_vjp_x(x_bar, y, g):
    for k in range(g.shape[0]):
        add_product_22(x_bar[k], g[k], y[k])


@derivative
def stacked_product_t_vjp_y(x, y_bar, g):
    for k in range(g.shape[0]):
        add_product_22(y_bar[k], g[k].T, x[k])


@named_function
@jit
def stacked_t_product(x, y):
    """Return the products of the transposes of the matrices of a stack with those of another."""
    out = zeros((x.shape[0], x.shape[2], y.shape[2]))
    add_product_tn(out, x, y)
    return out


@derivative
def stacked_t_product_vjp_x(x_bar, y, g):
    for k in range(g.shape[0]):
        add_product_22(x_bar[k], y[k], g[k].T)


@derivative
def stacked_t_product_vjp_y(x, y_bar, g):
    for k in range(g.shape[0]):
        add_product_22(y_bar[k], x[k], g[k])
