"""Prices, risk and curves."""

import numpy as np

from .registry import program


def _draw_options(rng):
    n = 10000
    return (
        rng.uniform(0.1, 0.6, n),
        rng.uniform(80, 120, n),
        rng.uniform(80, 120, n),
        rng.uniform(0.1, 2, n),
    )


@program(_draw_options)
def black_scholes(lib, volatility, spot, strike, time):
    """Calls and puts, their vegas by the gradient."""
    np, erf = lib.np, lib.special.erf
    rate = 0.02
    deviation = volatility * np.sqrt(time)
    d1 = (np.log(spot / strike) + (rate + 0.5 * volatility**2) * time) / deviation
    d2 = d1 - deviation
    n1, n2 = 0.5 * (1 + erf(d1 / np.sqrt(2.0))), 0.5 * (1 + erf(d2 / np.sqrt(2.0)))
    call = spot * n1 - strike * np.exp(-rate * time) * n2
    put = call - spot + strike * np.exp(-rate * time)
    return np.sum(call) + 0.5 * np.sum(put)


def _draw_heston(rng):
    return np.array([1.5, 0.04, 0.3, -0.7, 0.04]), rng.standard_normal((50, 2, 2000))


@program(_draw_heston)
def heston_paths(lib, parameters, normals):
    """A call under stochastic volatility, by 2000 paths of 50 steps."""
    np = lib.np
    kappa, theta, xi, rho, start = (parameters[i] for i in range(5))
    dt = 1.0 / 50

    def step(state, z):
        log_price, variance = state
        positive = np.maximum(variance, 0.0)
        root = np.sqrt(positive * dt + 1e-12)
        other = rho * z[0] + np.sqrt(1.0 - rho**2) * z[1]
        log_price = log_price - 0.5 * positive * dt + root * z[0]
        variance = variance + kappa * (theta - positive) * dt + xi * root * other
        return (log_price, variance), np.mean(variance)

    (log_price, _), _ = lib.scan(step, (np.zeros(2000), start * np.ones(2000)), normals)
    return np.mean(np.maximum(100.0 * np.exp(log_price) - 100.0, 0.0))


def _draw_portfolio(rng):
    factors = rng.standard_normal((50, 5)) * 0.01
    returns = rng.standard_normal((1000, 5)) @ factors.T + 0.01 * rng.standard_normal((1000, 50))
    return rng.standard_normal(50) * 0.1, returns


@program(_draw_portfolio)
def portfolio_risk(lib, logits, returns):
    """Mean, deviation and expected shortfall of a portfolio, and its concentration."""
    np = lib.np
    weights = np.exp(logits) / np.sum(np.exp(logits))
    cov = np.cov(returns, rowvar=False)
    deviation = np.sqrt(weights @ cov @ weights)
    losses = np.sort(-(returns @ weights))
    shortfall = np.mean(losses[-50:])
    return deviation + shortfall - np.mean(returns @ weights) + 0.01 * np.sum(weights**2)


def _draw_curve(rng):
    nodes = np.array([0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 20.0, 30.0])
    times = 0.5 * np.tile(np.arange(1.0, 61.0), 40)
    last = rng.integers(2, 61, 40)
    flows = np.where(np.arange(60) < last[:, None], 2.0, 0.0)
    flows[np.arange(40), last - 1] += 100.0
    return 0.02 + 0.001 * nodes, nodes, times, flows, 100.0 + rng.standard_normal(40)


@program(_draw_curve)
def yield_curve(lib, rates, nodes, times, flows, prices):
    """Forty bonds, priced by a curve that is looked up between ten nodes."""
    np = lib.np
    discount = np.exp(-np.interp(times, nodes, rates) * times).reshape(40, 60)
    error = np.sum(flows * discount, axis=1) - prices
    return np.sum(error**2) + 1e3 * np.sum(np.diff(rates, n=2) ** 2)


def _draw_tree(rng):
    return (np.array([100.0, 0.25, 0.03]) + 0.001 * rng.standard_normal(3),)


@program(_draw_tree)
def binomial_tree(lib, parameters):
    """An American put in a tree of 100 steps."""
    np = lib.np
    spot, volatility, rate = parameters[0], parameters[1], parameters[2]
    steps, strike = 100, 103.0
    dt = 1.0 / steps
    up = np.exp(volatility * np.sqrt(dt))
    discount = np.exp(-rate * dt)
    p = (1.0 / discount - 1.0 / up) / (up - 1.0 / up)
    prices = spot * up ** (2.0 * np.arange(steps + 1) - steps)
    values = np.maximum(strike - prices, 0.0)
    for _ in range(steps):
        prices = prices[1:] / up
        hold = discount * (p * values[1:] + (1.0 - p) * values[:-1])
        values = np.maximum(hold, strike - prices)
    return values[0]


def _draw_returns(rng):
    return 0.1 * rng.standard_normal(12), 0.01 * rng.standard_normal((500, 12)) + 3e-4


@program(_draw_returns)
def drawdown_of_a_portfolio(lib, scores, returns):
    """The mean drawdown and the expected shortfall of weights by scores."""
    np = lib.np
    weights = np.exp(scores) / np.sum(np.exp(scores))
    own = returns @ weights
    wealth = np.cumprod(1.0 + own)
    drawdown = 1.0 - wealth / lib.running_maximum(wealth)
    return np.mean(drawdown) - np.mean(np.sort(own)[:25]) + 0.1 * np.sum(weights**2)
