"""Programs of the kind that users differentiate, small and large.

Three names are not NumPy's and are provided by the side that runs the program: ``xp.logsumexp``,
and ``xp.iterate`` and ``xp.fold``, loops around a long step. Short steps are in plain loops, so
that only the operations are measured.
"""

import math
from functools import lru_cache
from itertools import pairwise

import numpy as np

from . import floors
from .cases import Size, Workload

# --------------------------------------------------------------------------------------------------
# Losses, each followed by the function that draws its arguments


def chain(xp, x, y, *, steps):
    """Long and thin: 2 * steps small operations one after the other."""
    sin = xp.sin
    z = x
    for _ in range(steps):
        z = z * y
        z = sin(z)
    return xp.sum(z)


def draw_chain(rng, n):
    """Two vectors of factors around one."""
    return rng.uniform(0.5, 1.5, n), rng.uniform(0.5, 1.5, n)


def small(xp, x):
    """A loop of fifty steps on ten numbers, where overhead is everything."""
    sin = xp.sin
    z = x
    for _ in range(50):
        z = sin(z) * 1.01 + z
    return xp.sum(z)


def draw_vector(rng, n):
    """One standard normal vector."""
    return (rng.standard_normal(n),)


def ten(xp, x, y):
    """Ten different operations, as a first program would have."""
    return xp.sum(xp.tanh(xp.exp(xp.sin(x * y)) + x) / y - xp.cos(xp.log(x)))


def mlp(xp, x, target, *weights):
    """Squared error of a perceptron of tanh layers; weights are (W, b) of each layer in turn."""
    h = x
    for w, b in zip(weights[::2], weights[1::2], strict=True):
        h = xp.tanh(h @ w + b)
    return xp.sum((h - target) ** 2)


def draw_mlp(rng, batch, widths):
    """A batch of inputs and targets, then the weights of the layers between the widths."""
    x = rng.standard_normal((batch, widths[0]))
    target = rng.uniform(-1, 1, (batch, widths[-1]))
    weights = []
    for before, after in pairwise(widths):
        weights += [rng.standard_normal((before, after)) / math.sqrt(before), np.zeros(after)]
    return x, target, *weights


def lse(xp, x):
    """The logarithm of a sum of exponentials, shifted by the maximum, spelt out."""
    top = xp.max(x)
    return xp.log(xp.sum(xp.exp(x - top))) + top


def logsumexp(xp, x):
    """The same as ``lse`` through the function that the library offers for it."""
    return xp.logsumexp(x, axis=0)


def gmm(xp, alphas, means, q, lower, x, *, gamma, m):
    """Log-likelihood of a Gaussian mixture with a Wishart prior.

    The inverse covariance of component k is Q_k'Q_k, where Q_k is lower triangular with diagonal
    exp(q_k) and the rows of its strict lower triangle in lower_k.
    """
    n, d = x.shape
    scale = xp.exp(q)
    frobenius = xp.sum(scale**2) + xp.sum(lower**2)
    prior = 0.5 * gamma**2 * frobenius - m * xp.sum(q)
    likelihood = likelihood_of_mixture(xp, alphas, means, q, scale, lower, x)
    return likelihood + prior + gmm_constant(n, d, q.shape[0], gamma, m)


def mixture(xp, alphas, means, q, lower, x):
    """The same without the prior and without what is constant."""
    return likelihood_of_mixture(xp, alphas, means, q, xp.exp(q), lower, x)


def likelihood_of_mixture(xp, alphas, means, q, scale, lower, x):
    """Log-likelihood but for a constant, from the exponentials of q."""
    n, d = x.shape
    log_det = xp.sum(q, axis=1)
    strict = xp.tril(lower[:, strict_lower_index(d)], -1)
    centred = x[None, :, :] - means[:, None, :]
    whitened = centred * scale[:, None, :] + centred @ xp.swapaxes(strict, 1, 2)
    distance = xp.sum(whitened**2, axis=2)
    inner = (alphas + log_det)[:, None] - 0.5 * distance
    return xp.sum(xp.logsumexp(inner, axis=0)) - n * xp.logsumexp(alphas, axis=0)


@lru_cache
def strict_lower_index(d):
    """Where element (i, j), j < i, of a d by d matrix lies among those below the diagonal."""
    index = np.zeros((d, d), dtype=np.intp)
    index[np.tril_indices(d, -1)] = np.arange(d * (d - 1) // 2)
    return index


def gmm_constant(n, d, components, gamma, m):
    """The part of the log-likelihood that no parameter changes."""
    freedom = d + m + 1
    log_gamma = 0.25 * d * (d - 1) * math.log(math.pi)
    log_gamma += sum(math.lgamma(0.5 * (freedom - j)) for j in range(d))
    wishart = freedom * d * (math.log(gamma) - 0.5 * math.log(2)) - log_gamma
    return -0.5 * n * d * math.log(2 * math.pi) - components * wishart


def gmm_by_hand(alphas, means, q, lower, x, gamma, m):
    """The mixture by hand, with what does not depend on the parameters."""
    constant = gmm_constant(*x.shape, q.shape[0], gamma, m)
    return floors.mixture(alphas, means, q, lower, x, gamma, m, constant)


def draw_gmm(rng, n, d, components):
    """Parameters of a mixture and the points whose likelihood is asked."""
    return (
        rng.standard_normal(components),
        rng.uniform(size=(components, d)),
        rng.standard_normal((components, d)) * 0.5,
        rng.standard_normal((components, d * (d - 1) // 2)) * 0.5,
        rng.standard_normal((n, d)),
    )


def llsq(xp, x, t, exponents):
    """Least squares fit of a polynomial with coefficients x to the sign of t."""
    residual = xp.sign(t) - (t[:, None] ** exponents) @ x
    return 0.5 * xp.sum(residual**2)


def draw_llsq(rng, m, n):
    """Coefficients, the points, and the exponents of the monomials."""
    return rng.standard_normal(n) / n, np.linspace(-1.0, 1.0, m), np.arange(n, dtype=np.float64)


def runge_kutta(slope, h):
    """Return the function that takes a step of a length."""

    def step(u):
        k1 = slope(u)
        k2 = slope(u + 0.5 * h * k1)
        k3 = slope(u + 0.5 * h * k2)
        k4 = slope(u + h * k3)
        return u + h / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)

    return step


def ode(xp, x, z, *, steps):
    """Runge-Kutta steps up to t = 2 on z_0' = x_0, z_i' = x_i z_(i-1); the last component."""

    def slope(z):
        return xp.concatenate([x[:1], x[1:] * z[:-1]])

    h = 2.0 / steps
    return xp.iterate(runge_kutta(slope, h), z, steps)[-1]


def draw_ode(rng, n):
    """Coefficients, and the state at time zero."""
    return rng.uniform(0.5, 1.5, n), np.ones(n)


# --------------------------------------------------------------------------------------------------
# Sizes


def chain_size(n: int, steps: int = 500) -> Size:
    """A chain over vectors of n; fewer steps than 500 show in the label."""
    label = f"n={n}" if steps == 500 else f"n={n} ({steps} steps)"
    return Size(label, {"n": n}, {"steps": steps})


def vector_size(n: int) -> Size:
    """A vector of n."""
    return Size(f"n={n}", {"n": n})


def mlp_size(batch: int, *widths: int) -> Size:
    """A batch through layers between the widths."""
    return Size(f"{batch}x{'-'.join(map(str, widths))}", {"batch": batch, "widths": widths})


def gmm_size(d: int, components: int, n: int = 1000) -> Size:
    """A mixture of so many components in d dimensions, seen at n points."""
    draw = {"n": n, "d": d, "components": components}
    return Size(f"d={d} K={components}", draw, {"gamma": 1.0, "m": 0})


def llsq_size(n: int, m: int = 128) -> Size:
    """A polynomial of n coefficients at m points."""
    return Size(f"n={n}", {"m": m, "n": n})


def ode_size(n: int, steps: int) -> Size:
    """A system of n equations over so many steps."""
    return Size(f"n={n} s={steps}", {"n": n}, {"steps": steps})


LSE_SIZES = tuple(vector_size(n) for n in (2500, 10_000, 40_000, 160_000, 640_000, 1_280_000))

PROGRAMS = (
    Workload(
        chain,
        draw_chain,
        wrt=(0, 1),
        quick=chain_size(8, steps=10),
        # 500 steps of a million numbers would keep 8 GB alive.
        sizes=(
            *(chain_size(n) for n in (1, 8, 64, 1000)),
            chain_size(1_000_000, steps=20),
        ),
        floor=floors.chain,
    ),
    Workload(
        small,
        draw_vector,
        wrt=(0,),
        quick=vector_size(10),
        sizes=(vector_size(10),),
        floor=floors.small,
    ),
    Workload(ten, draw_chain, wrt=(0, 1), quick=vector_size(8), sizes=(vector_size(8),)),
    Workload(
        mlp,
        draw_mlp,
        wrt=(2, 3, 4, 5, 6, 7),
        quick=mlp_size(4, 3, 5, 5, 2),
        sizes=(mlp_size(128, 64, 256, 256, 10),),
    ),
    Workload(
        lse,
        draw_vector,
        wrt=(0,),
        quick=vector_size(100),
        sizes=LSE_SIZES,
        floor=floors.lse,
    ),
    Workload(
        logsumexp,
        draw_vector,
        wrt=(0,),
        quick=vector_size(100),
        sizes=LSE_SIZES,
        floor=floors.lse,
    ),
    Workload(
        gmm,
        draw_gmm,
        wrt=(0, 1, 2, 3),
        quick=gmm_size(2, 3, n=10),
        sizes=(gmm_size(2, 5), gmm_size(10, 25), gmm_size(32, 25), gmm_size(64, 100)),
        floor=gmm_by_hand,
    ),
    Workload(
        llsq,
        draw_llsq,
        wrt=(0,),
        quick=llsq_size(16, m=8),
        sizes=(llsq_size(16), llsq_size(1024), llsq_size(16_392)),
        floor=floors.llsq,
    ),
    Workload(
        ode,
        draw_ode,
        wrt=(0,),
        quick=ode_size(10, 2),
        sizes=(ode_size(1000, 1), ode_size(1000, 100), ode_size(100_000, 10)),
        floor=floors.ode,
    ),
)
