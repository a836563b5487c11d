"""Distributions and integrals with special functions."""

import numpy as np

from .registry import program


def _draw_votes(rng):
    return 0.3 * rng.standard_normal(8), rng.integers(0, 20, (200, 8)).astype(float)


@program(_draw_votes)
def dirichlet_multinomial(lib, log_alpha, counts):
    """Counts in eight classes, with more variance than a multinomial has."""
    np, gammaln = lib.np, lib.special.gammaln
    alpha = np.exp(log_alpha)
    total = np.sum(alpha)
    rows = gammaln(total) - gammaln(np.sum(counts, axis=1) + total)
    return -np.sum(rows) - np.sum(gammaln(counts + alpha) - gammaln(alpha))


def _draw_directions(rng):
    return np.array([0.2, 2.1, 0.5, 1.0, 0.1]), rng.vonmises(0.3, 2.0, 500)


@program(_draw_directions)
def von_mises_mixture(lib, parameters, angles):
    """Two preferred directions on the circle."""
    np, i0e = lib.np, lib.special.i0e
    weight = lib.special.expit(parameters[4])
    parts = []
    for k in range(2):
        kappa = np.exp(parameters[2 + k])
        shape = kappa * (np.cos(angles - parameters[k]) - 1.0)
        parts.append(shape - np.log(2 * np.pi * i0e(kappa)))
    return -np.sum(np.logaddexp(np.log(weight) + parts[0], np.log1p(-weight) + parts[1]))


def _draw_peak(rng):
    t = rng.exponential(1.5, 1000) + 0.4 * rng.standard_normal(1000) + 3.0
    return np.array([2.8, -0.8, 0.3]), t


@program(_draw_peak)
def chromatographic_peak(lib, parameters, t):
    """A normal distribution with an exponential tail, by the complementary error function."""
    np = lib.np
    mu, sigma, tau = parameters[0], np.exp(parameters[1]), np.exp(parameters[2])
    z = (sigma / tau - (t - mu) / sigma) / np.sqrt(2.0)
    exponent = 0.5 * (sigma / tau) ** 2 - (t - mu) / tau
    density = np.exp(exponent) * lib.special.erfc(z) / (2.0 * tau)
    return -np.sum(np.log(density))


def _draw_reliability(rng):
    return np.array([0.3, 0.2]), rng.gamma(1.4, 1.2, 400), (rng.random(400) < 0.8).astype(float)


@program(_draw_reliability)
def censored_gamma(lib, parameters, time, failed):
    """Lifetimes with a gamma density; what is above its mean for those that did not fail."""
    np, special = lib.np, lib.special
    shape, rate = np.exp(parameters[0]), np.exp(parameters[1])
    log_density = (
        shape * np.log(rate) + special.xlogy(shape - 1.0, time) - rate * time
    ) - special.gammaln(shape)
    survival = special.gammaincc(1.3, rate * time)
    slope = special.digamma(shape) - np.log(shape)
    return -np.sum(failed * log_density + (1.0 - failed) * np.log(survival)) + slope**2
