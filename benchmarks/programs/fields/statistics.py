"""Likelihoods of statistics."""

import numpy as np

from .registry import program


def _regression(rng, rows, columns):
    x = rng.standard_normal((rows, columns))
    return rng.standard_normal(columns) * 0.3, x, x @ rng.standard_normal(columns) * 0.5


def _draw_logistic(rng):
    w, x, eta = _regression(rng, 1000, 10)
    return w, x, (eta + rng.logistic(size=1000) > 0).astype(float)


@program(_draw_logistic)
def logistic_regression(lib, w, x, y):
    """A generalised linear model with a ridge."""
    eta = x @ w
    return lib.np.sum(lib.np.logaddexp(0.0, eta) - y * eta) + 0.5 * lib.np.sum(w**2)


def _draw_mixed(rng):
    group = rng.integers(0, 20, 600)
    x = rng.standard_normal((600, 3))
    y = rng.poisson(np.exp(0.3 * x[:, 0] + 0.2 * rng.standard_normal(20)[group])).astype(float)
    return rng.standard_normal(24) * 0.2, x, group, y


@program(_draw_mixed)
def poisson_mixed_model(lib, parameters, x, group, y):
    """Counts with a random intercept for each group."""
    np = lib.np
    beta, z, log_scale = parameters[:3], parameters[3:23], parameters[23]
    eta = x @ beta + np.exp(log_scale) * z[group]
    likelihood = np.sum(y * eta - np.exp(eta) - lib.special.gammaln(y + 1.0))
    prior = -0.5 * np.sum(z**2) - 0.5 * np.sum(beta**2) / 100.0 - 0.5 * log_scale**2
    return -(likelihood + prior)


def _draw_cox(rng):
    w, x, eta = _regression(rng, 500, 5)
    time = rng.exponential(np.exp(-eta))
    order = np.argsort(-time)
    return w, x[order], (rng.random(500) < 0.7).astype(float)


@program(_draw_cox)
def cox_regression(lib, w, x, event):
    """Partial likelihood of survival times, the longest first."""
    np = lib.np
    eta = x @ w
    risk = np.log(np.cumsum(np.exp(eta)))
    return -np.sum(event * (eta - risk))


def _draw_process(rng):
    x = np.sort(rng.uniform(0, 10, 150))
    return np.array([0.1, 0.2, -1.5]), x, np.sin(x) + 0.2 * rng.standard_normal(150)


@program(_draw_process)
def gaussian_process(lib, parameters, x, y):
    """Marginal likelihood with a squared exponential kernel."""
    np = lib.np
    length, scale, noise = np.exp(parameters[0]), np.exp(parameters[1]), np.exp(parameters[2])
    distance = (x[:, None] - x[None, :]) / length
    kernel = scale**2 * np.exp(-0.5 * distance**2) + (noise**2 + 1e-8) * np.eye(150)
    factor = np.linalg.cholesky(kernel)
    alpha = np.linalg.solve(kernel, y)
    return 0.5 * y @ alpha + np.sum(np.log(np.diagonal(factor))) + 75.0 * np.log(2 * np.pi)


def _draw_markov(rng):
    states = rng.integers(0, 4, 200)
    return rng.standard_normal(20) * 0.5, 1.5 * states + rng.standard_normal(200)


@program(_draw_markov)
def hidden_markov_model(lib, parameters, y):
    """The forward recursion over 200 observations of four states."""
    np, logsumexp = lib.np, lib.special.logsumexp
    logits = parameters[:16].reshape(4, 4)
    transition = logits - logsumexp(logits, axis=1, keepdims=True)
    means = parameters[16:]
    emission = -0.5 * (y[:, None] - means[None, :]) ** 2 - 0.5 * np.log(2 * np.pi)

    def step(alpha, log_density):
        alpha = logsumexp(alpha[:, None] + transition, axis=0) + log_density
        return alpha, alpha[0]

    alpha, _ = lib.scan(step, emission[0] - np.log(4.0), emission[1:])
    return -logsumexp(alpha)


def _draw_garch(rng):
    return np.array([-2.0, -1.5, 1.0]), rng.standard_t(6, 1000) * 0.8


@program(_draw_garch)
def garch(lib, parameters, returns):
    """Likelihood of returns whose variance depends on the last return and variance."""
    np = lib.np
    omega = np.exp(parameters[0])
    alpha = lib.special.expit(parameters[1])
    beta = (1.0 - alpha) * lib.special.expit(parameters[2])

    def step(variance, r):
        loss = 0.5 * (np.log(variance) + r**2 / variance)
        return omega + alpha * r**2 + beta * variance, loss

    _, losses = lib.scan(step, np.var(returns), returns)
    return np.sum(losses)


def _draw_quantiles(rng):
    x = rng.standard_normal((500, 8))
    y = x[:, 0] + (1.0 + 0.3 * np.abs(x[:, 1])) * rng.standard_normal(500)
    return rng.standard_normal((8, 9)) * 0.3, x, y, np.linspace(0.1, 0.9, 9)


@program(_draw_quantiles)
def quantile_regression(lib, w, x, y, levels):
    """Pinball loss of nine quantiles, sorted so that they do not cross."""
    np = lib.np
    quantiles = np.sort(x @ w, axis=1)
    error = y[:, None] - quantiles
    return np.mean(np.maximum(levels * error, (levels - 1.0) * error))


def _draw_mixture(rng):
    centres = rng.standard_normal((4, 2)) * 3
    y = centres[rng.integers(0, 4, 1000)] + rng.standard_normal((1000, 2))
    return rng.standard_normal(20) * 0.5, y


@program(_draw_mixture)
def gaussian_mixture(lib, parameters, y):
    """Four components with diagonal covariances in the plane."""
    np = lib.np
    logits, means, log_scales = (
        parameters[:4],
        parameters[4:12].reshape(4, 2),
        parameters[12:].reshape(4, 2),
    )
    z = (y[:, None, :] - means) / np.exp(log_scales)
    log_density = -0.5 * np.sum(z**2, axis=2) - np.sum(log_scales, axis=1) - np.log(2 * np.pi)
    log_weights = logits - lib.special.logsumexp(logits)
    return -np.sum(lib.special.logsumexp(log_weights + log_density, axis=1))


def _draw_probit(rng):
    w, x, eta = _regression(rng, 800, 6)
    return w, x, np.sign(eta + rng.standard_normal(800))


@program(_draw_probit)
def probit_regression(lib, w, x, sign):
    """Binary responses through the normal distribution."""
    return -lib.np.sum(lib.special.log_ndtr(sign * (x @ w))) + 0.5 * lib.np.sum(w**2)


def _draw_sticks(rng):
    y = rng.choice([-3.0, 0.0, 2.0], 300) + 0.5 * rng.standard_normal(300)
    return np.concatenate([rng.standard_normal(14) * 0.5, np.linspace(-4, 4, 15)]), y


@program(_draw_sticks)
def stick_breaking(lib, parameters, y):
    """A Dirichlet process mixture, cut off at fifteen sticks."""
    np = lib.np
    v, means = lib.special.expit(parameters[:14]), parameters[14:]
    rest = np.concatenate([np.zeros(1), np.cumsum(np.log1p(-v))])
    log_weights = np.concatenate([np.log(v), np.zeros(1)]) + rest
    log_density = -0.5 * ((y[:, None] - means) / 0.5) ** 2 - np.log(0.5 * np.sqrt(2 * np.pi))
    likelihood = np.sum(lib.special.logsumexp(log_weights + log_density, axis=1))
    prior = np.sum(np.log(v) + 2.0 * np.log1p(-v)) - 0.5 * np.sum(means**2) / 9.0
    return -(likelihood + prior)


def _draw_schools(rng):
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sigma = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    return rng.standard_normal(10), y, sigma


@program(_draw_schools)
def eight_schools(lib, parameters, y, sigma):
    """The hierarchical model of eight schools, not centred."""
    np = lib.np
    mu, log_tau, z = parameters[0], parameters[1], parameters[2:]
    theta = mu + np.exp(log_tau) * z
    likelihood = np.sum(-0.5 * ((y - theta) / sigma) ** 2 - np.log(sigma))
    prior = -0.5 * np.sum(z**2) - 0.5 * (mu / 5.0) ** 2
    half_cauchy = -np.log1p((np.exp(log_tau) / 5.0) ** 2) + log_tau
    return likelihood + prior + half_cauchy


def _draw_decay(rng):
    t = np.linspace(0.0, 10.0, 200)
    y = 2.0 * np.exp(-0.3 * t) + 1.0 * np.exp(-2.0 * t) + 0.02 * rng.standard_normal(200)
    return np.array([1.5, -1.0, 1.2, 0.5, 0.1]), t, y


@program(_draw_decay)
def sums_of_exponentials(lib, parameters, t, y):
    """Least squares fit of two decays and a background."""
    np = lib.np
    a, b, c, d, background = (parameters[i] for i in range(5))
    model = a * np.exp(-np.exp(b) * t) + c * np.exp(-np.exp(d) * t) + background
    return np.sum((y - model) ** 2)


def _draw_counts(rng):
    w, x, eta = _regression(rng, 500, 4)
    return np.append(w, 0.3), x, rng.negative_binomial(2, 1 / (1 + np.exp(eta) / 2)).astype(float)


@program(_draw_counts)
def negative_binomial_regression(lib, parameters, x, y):
    """Counts with more variance than those of Poisson."""
    np, gammaln = lib.np, lib.special.gammaln
    eta, shape = x @ parameters[:4], np.exp(parameters[4])
    log_total = np.log(shape + np.exp(eta))
    return -np.sum(
        gammaln(y + shape)
        - gammaln(shape)
        - gammaln(y + 1.0)
        + shape * (np.log(shape) - log_total)
        + y * (eta - log_total)
    )


def _draw_decays(rng):
    t = np.linspace(0.0, 4.0, 120)
    y = 2.0 * np.exp(-0.7 * t) + 1.2 * np.exp(-2.5 * t) + 0.05 * rng.standard_normal(120)
    return np.array([0.5, 2.0]), t, y


@program(_draw_decays)
def variable_projection(lib, rates, t, y):
    """Decays whose amplitudes are solved for: least squares inside of least squares."""
    np = lib.np
    basis = np.exp(-t[:, None] * np.exp(rates)[None, :])
    basis = np.concatenate([basis, np.ones((120, 1))], axis=1)
    amplitudes = np.linalg.lstsq(basis, y, rcond=None)[0]
    return np.sum((y - basis @ amplitudes) ** 2)


def _draw_pixels(rng):
    scene = np.exp(rng.standard_normal((30, 30)))
    return np.log(scene) * 0.9, rng.poisson(scene).astype(np.int32)


@program(_draw_pixels)
def photon_counts(lib, logarithms, counts):
    """Poisson counts of pixels, integers of 32 bits, with neighbours that are alike."""
    np = lib.np
    smooth = np.sum(np.diff(logarithms, axis=0) ** 2) + np.sum(np.diff(logarithms, axis=1) ** 2)
    return np.sum(np.exp(logarithms) - counts * logarithms) + 0.5 * smooth


def _draw_supernovae(rng):
    z = np.sort(0.01 + 1.2 * rng.random(200))
    factor = np.linalg.cholesky(0.02 * np.eye(200) + 0.001)
    return np.array([0.3, -0.9, 0.7]), z, 40.0 + 5.0 * np.log10(z) + 2.0, factor


@program(_draw_supernovae)
def supernovae(lib, parameters, z, magnitudes, factor):
    """Distances by an integral that is interpolated, with correlated errors."""
    np = lib.np
    matter, state, hubble = parameters[0], parameters[1], parameters[2]
    grid = np.linspace(0.0, 1.3, 400)
    power = 3.0 * (1.0 + state)
    rate = 1.0 / np.sqrt(matter * (1.0 + grid) ** 3 + (1.0 - matter) * (1.0 + grid) ** power)
    steps = 0.5 * (rate[1:] + rate[:-1]) * np.diff(grid)
    distance = np.concatenate([np.zeros(1), np.cumsum(steps)])
    luminosity = (1.0 + z) * np.interp(z, grid, distance) * 2997.9 / hubble
    rest = lib.solve_triangular(factor, magnitudes - 5.0 * np.log10(luminosity) - 25.0, lower=True)
    return 0.5 * np.sum(rest**2)
