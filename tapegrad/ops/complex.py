"""Complex numbers: their parts, and the cotangents of functions that are not holomorphic.

The convention is that of conjugate Wirtinger derivatives: the gradient of a real loss with respect
to ``z = a + ib`` is ``dL/da + i dL/db``, the direction of steepest ascent. For a holomorphic
function with derivative f', the cotangent of the input is then ``g * conj(f')``, which follows from
its partial; functions that are not holomorphic declare the cotangent itself. (W. Wirtinger, "Zur
formalen Theorie der Funktionen von mehr komplexen Veränderlichen", 1927; K. Kreutz-Delgado, "The
complex gradient operator and the CR-calculus", 2009.)
"""

from __future__ import annotations

import numpy as np

from tapegrad.cuda.array import HOST, as_array, zeros
from tapegrad.ops import elementwise as ew
from tapegrad.ops.piecewise import sign, where
from tapegrad.ops.reduction import euclidean_norm
from tapegrad.ops.shape import astype, getitem, laid_out, order_of_copies
from tapegrad.ops.table.composite import composite
from tapegrad.ops.table.kinds import elementwise, view
from tapegrad.ops.table.op import array_of, internal, is_complex, public, shape_of

COMPLEX_OF = {np.dtype(np.float32): np.complex64, np.dtype(np.float64): np.complex128}


@elementwise(np.conjugate)
def conjugate(x):
    """Complex conjugate."""
    return x


@conjugate.partial("x")
def _():
    return 1.0


@conjugate.complex_vjp("x")
def _(g):
    return conjugate(g)


@view
def real(x):
    """Real part, as a view."""
    return as_array(x).real[...]


@real.transposes
def _(g, x_shape, **parameters):
    return astype(g, COMPLEX_OF.get(g.dtype, g.dtype))  # x may be real, and g complex before it is


@internal
@view
def imaginary(x):
    """Imaginary part of a complex array, as a view (see `imag`)."""
    return np.imag(x)


@imaginary.transposes
def _(g, x_shape, **parameters):
    return ew.multiply(astype(g, COMPLEX_OF[g.dtype]), 1j)


@composite
def imag(x):
    """Imaginary part: a view, or zeros without derivative for a real array."""
    if is_complex(x):
        return imaginary(x)
    found = zeros(shape_of(x), getattr(x, "dtype", float), getattr(x, "device", HOST))
    return laid_out(found, order_of_copies(array_of(x), "A"))


@view
def view_as_real(x):
    """Real and imaginary parts of a complex array, as a view with an additional last axis."""
    if not is_complex(x):
        raise RuntimeError("view_as_real is only supported for complex tensors")
    return x[..., None].view(x.real.dtype)


@view_as_real.transposes
def _(g, x_shape, **parameters):
    parts = (astype(getitem(g, (..., k)), COMPLEX_OF[g.dtype]) for k in range(2))
    return ew.add(next(parts), ew.multiply(next(parts), 1j))


@view
def view_as_complex(x):
    """Complex array, as a view of real and imaginary parts along the last axis."""
    if x.dtype not in COMPLEX_OF:
        raise RuntimeError(
            f"view_as_complex is only supported for float32 and float64 tensors, but got {x.dtype}"
        )
    if not x.ndim or x.shape[-1] != 2:
        raise RuntimeError("Tensor must have a last dimension of size 2")
    apart = x.strides[-1] != x.itemsize or any(s % (2 * x.itemsize) for s in x.strides[:-1])
    if apart and x.size:
        raise RuntimeError(
            "view_as_complex: real and imaginary parts must stand side by side in memory; use a "
            "copy: x.copy()"
        )
    return x.view(COMPLEX_OF[x.dtype])[..., 0]


@view_as_complex.transposes
def _(g, x_shape, **parameters):
    return view_as_real(g)


@elementwise(np.angle)
def angle(x):
    """Angle in the complex plane, in radians; the derivative at 0 is 0."""
    return 0.0 if x >= 0.0 else np.pi


@angle.partial("x")
def _():
    return 0.0


@angle.complex_vjp("x")
def _(g, x):
    size = ew.absolute(x)
    safe = where(size == 0.0, 1.0, size)
    return g * where(size == 0.0, 0.0, 1j * (x / safe) / safe)


def _along(g, unit):
    """Return the real part of the product of a number and the conjugate of another."""
    return real(ew.multiply(g, conjugate(unit)))


@ew.absolute.complex_vjp("x")
def _(g, x):
    return g * sign(x)


@sign.complex_vjp("x")
def _(g, z, x):
    size = ew.absolute(x)
    across = (g - z * _along(g, z)) / where(size == 0.0, 1.0, size)
    return where(size == 0.0, 0.0, across)


@ew.arcsinh.complex_vjp("x")
def _(g, x):
    return g * conjugate(1.0 / ew.sqrt(x * x + 1.0))


@euclidean_norm.complex_vjp("x")
def _(g, z, x):
    return g * where(z == 0.0, 0.0, x / where(z == 0.0, 1.0, z))


@public(method=True)
@composite
def conj(x):
    """Complex conjugate (another name of `conjugate`)."""
    return conjugate(x)


def conjugated(x):
    """Return the conjugate of complex values, and real values unchanged."""
    return conjugate(x) if is_complex(x) else x


def adjoint(x):
    """Return the conjugate transpose of matrices."""
    return conjugated(x.mT)
