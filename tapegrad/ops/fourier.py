"""Discrete Fourier transforms, with the names and options of numpy.fft.

Four unscaled linear maps are primitive; the adjoint of each is one of the others. A cotangent is
the gradient with respect to the real part plus i times the gradient with respect to the imaginary
part (`tapegrad.ops.complex`), so a complex linear map A has the cotangent A^H g. The transform of n
real numbers has n // 2 + 1 complex numbers. Those that stand for two terms of the sum, with
frequencies k and n - k, count twice. (A. V. Oppenheim, R. W. Schafer, "Discrete-Time Signal
Processing", chapter 8.)
"""

from __future__ import annotations

import math

import numpy as np

from tapegrad.ops import elementwise as ew
from tapegrad.ops.complex import COMPLEX_OF, conjugate
from tapegrad.ops.shape import astype, embed, getitem, roll
from tapegrad.ops.table.array_kinds import linear
from tapegrad.ops.table.batching import shifted_axes
from tapegrad.ops.table.composite import composite
from tapegrad.ops.table.op import (
    array_of,
    internal,
    is_complex,
    normalize_axes,
    normalize_axis,
    rank,
    shape_of,
)

NAMESPACE = "fft"  # of the functions declared here

# -- primitives -----------------------------------------------------------------------------------


@internal
@linear(arrays=1)
def fourier(x, axis):
    """Sums of ``x[j] exp(-2 pi i j k / n)``."""
    return np.fft.fft(x, axis=axis)


@fourier.transpose("x")
def _(g, axis):
    return fourier_adjoint(g, axis)


@fourier.batching
def _(x, axis):
    return fourier(x, *shifted_axes(axis, x))


@internal
@linear(arrays=1)
def fourier_adjoint(x, axis):
    """Sums of ``x[j] exp(2 pi i j k / n)``."""
    return np.fft.ifft(x, axis=axis, norm="forward")


@fourier_adjoint.transpose("x")
def _(g, axis):
    return fourier(g, axis)


@fourier_adjoint.batching
def _(x, axis):
    return fourier_adjoint(x, *shifted_axes(axis, x))


@internal
@linear(arrays=1)
def half_fourier(x, axis):
    """Sums of ``x[j] exp(-2 pi i j k / n)`` for real x and k up to n / 2."""
    return np.fft.rfft(x, axis=axis)


@half_fourier.transpose("x")
def _(g, x_shape, axis):
    n = x_shape[axis]
    return real_fourier(ew.divide(g, _terms(g, n, axis)), n, axis)


@half_fourier.batching
def _(x, axis):
    return half_fourier(x, *shifted_axes(axis, x))


@internal
@linear(arrays=1)
def real_fourier(x, n, axis):
    """Sums of ``x[k] exp(2 pi i j k / n)``, n real numbers, with ``x[n - k] = conj(x[k])``."""
    return np.fft.irfft(x, n, axis, norm="forward")


@real_fourier.transpose("x")
def _(g, n, axis):
    found = half_fourier(g, axis)
    return ew.multiply(found, _terms(found, n, axis))


@real_fourier.batching
def _(x, n, axis):
    return real_fourier(x, n, *shifted_axes(axis, x))


# The same of pairs: the real and imaginary parts of complex numbers are the last axis, and the axis
# of the transform is counted from the first one. Recorded functions are compiled with these.


def _complex_of(pairs):
    return np.ascontiguousarray(pairs).view(COMPLEX_OF[pairs.dtype])[..., 0]


def _pairs_of(x):
    return np.ascontiguousarray(x)[..., None].view(x.real.dtype)


@internal
@linear(arrays=1)
def fourier_of_pairs(x, axis):
    """The transform `fourier` of pairs."""
    return _pairs_of(np.fft.fft(_complex_of(x), axis=axis))


@fourier_of_pairs.transpose("x")
def _(g, axis):
    return fourier_adjoint_of_pairs(g, axis)


@fourier_of_pairs.batching
def _(x, axis):
    return fourier_of_pairs(x, axis + 1)


@internal
@linear(arrays=1)
def fourier_adjoint_of_pairs(x, axis):
    """The transform `fourier_adjoint` of pairs."""
    return _pairs_of(np.fft.ifft(_complex_of(x), axis=axis, norm="forward"))


@fourier_adjoint_of_pairs.transpose("x")
def _(g, axis):
    return fourier_of_pairs(g, axis)


@fourier_adjoint_of_pairs.batching
def _(x, axis):
    return fourier_adjoint_of_pairs(x, axis + 1)


@internal
@linear(arrays=1)
def half_fourier_to_pairs(x, count, axis):
    """The transform `half_fourier` to pairs; `count` is the number of frequencies."""
    return _pairs_of(np.fft.rfft(x, axis=axis))


@half_fourier_to_pairs.transpose("x")
def _(g, x_shape, count, axis):
    n = x_shape[axis]
    return real_fourier_of_pairs(ew.divide(g, _terms(g, n, axis)), n, axis)


@half_fourier_to_pairs.batching
def _(x, count, axis):
    return half_fourier_to_pairs(x, count, axis + 1)


@internal
@linear(arrays=1)
def real_fourier_of_pairs(x, n, axis):
    """The transform `real_fourier` of pairs."""
    return np.fft.irfft(_complex_of(x), n, axis, norm="forward")


@real_fourier_of_pairs.transpose("x")
def _(g, n, axis):
    found = half_fourier_to_pairs(g, n // 2 + 1, axis)
    return ew.multiply(found, _terms(found, n, axis))


@real_fourier_of_pairs.batching
def _(x, n, axis):
    return real_fourier_of_pairs(x, n, axis + 1)


@internal
@linear(arrays=1)
def whole_fourier_to_pairs(x, axis, others):
    """All frequencies of real x along an axis, and along `others`: bits of their numbers."""
    return _pairs_of(np.fft.fftn(x, axes=_axes(axis, others)))


@whole_fourier_to_pairs.transpose("x")
def _(g, axis, others):
    return real_adjoint_of_pairs(g, axis, others)


@whole_fourier_to_pairs.batching
def _(x, axis, others):
    return whole_fourier_to_pairs(x, axis + 1, others << 1)


@internal
@linear(arrays=1)
def real_adjoint_of_pairs(x, axis, others):
    """The real part of `fourier_adjoint` along an axis and others, of pairs."""
    found = np.fft.ifftn(_complex_of(x), axes=_axes(axis, others), norm="forward")
    return np.ascontiguousarray(found.real)


@real_adjoint_of_pairs.transpose("x")
def _(g, axis, others):
    return whole_fourier_to_pairs(g, axis, others)


@real_adjoint_of_pairs.batching
def _(x, axis, others):
    return real_adjoint_of_pairs(x, axis + 1, others << 1)


def _axes(axis, others):
    return [axis, *(k for k in range(others.bit_length()) if others >> k & 1)]


def _terms(x, n, axis):
    """Return the number of terms in a sum over n frequencies that each item represents."""
    found = np.full(shape_of(x)[axis], 2.0, np.empty(0, x.dtype).real.dtype)
    found[0] = 1.0
    if n % 2 == 0:
        found[-1] = 1.0
    after = rank(x) - 1 - axis
    return found.reshape(found.shape + (1,) * after)


# -- with numpy.fft's names -----------------------------------------------------------------------


def _transform(name, x, n, axis, norm, is_forward, apply, items=None):
    """Truncate or pad to `items` (by default n) along an axis, transform, and scale."""
    axis = normalize_axis(axis, rank(x))
    n = shape_of(x)[axis] if n is None else int(n)
    if n < 1:
        raise ValueError(f"{name}: invalid number of data points ({n}); it must be at least 1")
    if norm not in (None, "backward", "ortho", "forward"):
        raise ValueError(f"{name}: norm {norm!r} is none of 'backward', 'ortho' and 'forward'")
    found = apply(_resized(x, n if items is None else items, axis), axis)
    if norm == "ortho":
        return ew.multiply(found, 1.0 / math.sqrt(n))
    return ew.multiply(found, 1.0 / n) if is_forward is (norm == "forward") else found


def _resized(x, items, axis):
    """Truncate or zero-pad to a length along an axis."""
    shape = shape_of(x)
    if shape[axis] == items:
        return x
    index = (slice(None),) * axis + (slice(0, min(items, shape[axis])),)
    if shape[axis] > items:
        return getitem(x, index)
    return embed(x, (*shape[:axis], items, *shape[axis + 1 :]), getitem, {"index": index})


def _complex(x):
    x = array_of(x)
    if is_complex(x):
        return x
    return astype(x, COMPLEX_OF.get(x.dtype, np.complex128))


def _real(name, x):
    x = array_of(x)
    if is_complex(x):
        raise TypeError(f"{name} is of real numbers, and got {x.dtype}; pass the real part")
    return x if x.dtype in COMPLEX_OF else astype(x, np.float64)


@composite
def fft(a, n=None, axis=-1, norm=None):
    """Discrete Fourier transform along an axis."""
    return _transform("fft", _complex(a), n, axis, norm, True, fourier)


@composite
def ifft(a, n=None, axis=-1, norm=None):
    """Inverse of `fft`."""
    return _transform("ifft", _complex(a), n, axis, norm, False, fourier_adjoint)


@composite
def rfft(a, n=None, axis=-1, norm=None):
    """Discrete Fourier transform of real numbers along an axis, for frequencies up to n / 2."""
    return _transform("rfft", _real("rfft", a), n, axis, norm, True, half_fourier)


@composite
def irfft(a, n=None, axis=-1, norm=None):
    """Inverse of `rfft`: n real numbers; n is even by default."""
    x = _complex(a)
    n = 2 * (shape_of(x)[axis] - 1) if n is None else int(n)

    def back(part, along):
        return real_fourier(part, n, along)

    return _transform("irfft", x, n, axis, norm, False, back, n // 2 + 1)


_OPPOSITE = {None: "forward", "backward": "forward", "forward": "backward", "ortho": "ortho"}


@composite
def hfft(a, n=None, axis=-1, norm=None):
    """Transform of a signal with Hermitian symmetry, whose spectrum is real."""
    return irfft(conjugate(_complex(a)), n, axis, _OPPOSITE.get(norm, norm))


@composite
def ihfft(a, n=None, axis=-1, norm=None):
    """Inverse of `hfft`."""
    return conjugate(rfft(_real("ihfft", a), n, axis, _OPPOSITE.get(norm, norm)))


def _lengths(name, x, s, axes):
    """Return pairs of axis and length for the axes of a transform."""
    if axes is None:
        axes = tuple(range(rank(x)) if s is None else range(-len(s), 0))
    elif not isinstance(axes, (tuple, list)):
        axes = (axes,)
    sizes = (-1,) * len(axes) if s is None else tuple(s)
    if len(sizes) != len(axes):
        raise ValueError(f"{name}: `s` has {len(sizes)} lengths for {len(axes)} axes")
    shape = shape_of(x)
    return [(a, shape[a] if size == -1 else size) for a, size in zip(axes, sizes, strict=True)]


def _along(transform, x, lengths, norm):
    """Apply a transform along several axes in turn."""
    for axis, n in lengths:
        x = transform(x, n, axis, norm)
    return x


@composite
def fftn(a, s=None, axes=None, norm=None):
    """Discrete Fourier transform along several axes (by default, all)."""
    x = _complex(a)
    return _along(fft, x, reversed(_lengths("fftn", x, s, axes)), norm)


@composite
def ifftn(a, s=None, axes=None, norm=None):
    """Inverse of `fftn`."""
    x = _complex(a)
    return _along(ifft, x, reversed(_lengths("ifftn", x, s, axes)), norm)


@composite
def rfftn(a, s=None, axes=None, norm=None):
    """Discrete Fourier transform of real numbers along several axes; the last one is halved."""
    x = _real("rfftn", a)
    *others, (last, n) = _lengths("rfftn", x, s, axes)
    return _along(fft, rfft(x, n, last, norm), reversed(others), norm)


@composite
def irfftn(a, s=None, axes=None, norm=None):
    """Inverse of `rfftn`."""
    x = _complex(a)
    *others, (last, n) = _lengths("irfftn", x, s, axes)
    return irfft(_along(ifft, x, others, norm), None if s is None else n, last, norm)


@composite
def fft2(a, s=None, axes=(-2, -1), norm=None):
    """Discrete Fourier transform along two axes."""
    return fftn(a, s, axes, norm)


@composite
def ifft2(a, s=None, axes=(-2, -1), norm=None):
    """Inverse of `fft2`."""
    return ifftn(a, s, axes, norm)


@composite
def rfft2(a, s=None, axes=(-2, -1), norm=None):
    """Discrete Fourier transform of real numbers along two axes; the last one is halved."""
    return rfftn(a, s, axes, norm)


@composite
def irfft2(a, s=None, axes=(-2, -1), norm=None):
    """Inverse of `rfft2`."""
    return irfftn(a, s, axes, norm)


@composite
def fftshift(x, axes=None):
    """Shift frequency 0 to the middle."""
    chosen = normalize_axes(axes, rank(x))
    return roll(x, tuple(shape_of(x)[a] // 2 for a in chosen), chosen)


@composite
def ifftshift(x, axes=None):
    """Inverse of `fftshift`."""
    chosen = normalize_axes(axes, rank(x))
    return roll(x, tuple(-(shape_of(x)[a] // 2) for a in chosen), chosen)
