"""Equations of motion and of fields, stepped through time."""

import numpy as np

from .registry import program


def _draw_plate(rng):
    return rng.random((48, 48)), rng.random((48, 48))


@program(_draw_plate)
def heat_equation(lib, start, wanted):
    """A plate with a fixed border, 200 explicit steps."""
    np = lib.np

    def step(u, _):
        inner = u[1:-1, 1:-1]
        around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
        u = u + 0.2 * np.pad(around - 4.0 * inner, 1)
        return u, np.mean(u)

    u, means = lib.scan(step, start, np.arange(200))
    return np.sum((u - wanted) ** 2) + np.mean(means)


def _draw_burgers(rng):
    x = np.linspace(0, 2 * np.pi, 128, endpoint=False)
    return np.sin(x) + 0.05 * rng.standard_normal(128), np.cos(x)


@program(_draw_burgers)
def burgers_equation(lib, start, wanted):
    """Advection of a wave by itself, with viscosity: 200 steps."""
    np = lib.np
    dx, dt, viscosity = 2 * np.pi / 128, 0.005, 0.1

    def step(i, u):
        left, right = np.roll(u, 1), np.roll(u, -1)
        flux = (right**2 - left**2) / (4 * dx)
        return u + dt * (viscosity * (right - 2 * u + left) / dx**2 - flux)

    u = lib.fori_loop(0, 200, step, start)
    return np.mean((u - wanted) ** 2)


def _draw_lorenz(rng):
    return np.array([10.0, 28.0, 8.0 / 3.0]), rng.standard_normal((500, 3))


@program(_draw_lorenz, tolerance=1e-8)  # differences grow a hundredfold on the way
def lorenz_system(lib, parameters, measured):
    """Five hundred steps of Runge and Kutta on the attractor."""
    np = lib.np
    sigma, rho, beta = parameters[0], parameters[1], parameters[2]

    def rate(s):
        x, y, z = s[0], s[1], s[2]
        return np.stack([sigma * (y - x), x * (rho - z) - y, x * y - beta * z])

    def step(s, wanted):
        h = 0.01
        k1 = rate(s)
        k2 = rate(s + 0.5 * h * k1)
        k3 = rate(s + 0.5 * h * k2)
        k4 = rate(s + h * k3)
        s = s + h / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)
        return s, np.sum((s - wanted) ** 2)

    _, misfits = lib.scan(step, np.array([1.0, 1.0, 1.0]), measured)
    return np.mean(misfits)


def _draw_water(rng):
    y, x = np.mgrid[:32, :32]
    return 0.1 * np.exp(-((x - 16) ** 2 + (y - 10) ** 2) / 20.0) + 0.01 * rng.random((32, 32)), x


@program(_draw_water)
def shallow_water(lib, height, weight):
    """Linear waves with rotation on a periodic sea: fifty steps."""
    np = lib.np
    g, depth, rotation, dt = 9.81, 1.0, 0.5, 0.05

    def slope(a, axis):
        return 0.5 * (np.roll(a, -1, axis) - np.roll(a, 1, axis))

    def step(i, state):
        h, u, v = state
        u, v = (
            u + dt * (rotation * v - g * slope(h, 1)),
            v - dt * (rotation * u + g * slope(h, 0)),
        )
        total = depth + h
        h = h - dt * (slope(total * u, 1) + slope(total * v, 0))
        return h, u, v

    zero = np.zeros((32, 32))
    h, u, v = lib.fori_loop(0, 50, step, (height, zero, zero))
    return np.sum(weight * h**2) + np.sum(u**2 + v**2)


def _draw_bodies(rng):
    return rng.standard_normal((30, 3)), 0.1 * rng.standard_normal((30, 3)), rng.random(30) / 30


@program(_draw_bodies, argnums=(0, 1))
def n_bodies(lib, position, velocity, mass):
    """Thirty bodies under their gravity, fifty leapfrog steps."""
    np = lib.np

    def acceleration(x):
        d = x[None, :, :] - x[:, None, :]
        squared = np.sum(d**2, axis=-1) + 0.05
        return np.sum(mass[None, :, None] * d / squared[..., None] ** 1.5, axis=1)

    def step(i, state):
        x, v = state
        v = v + 0.005 * acceleration(x)
        x = x + 0.01 * v
        return x, v + 0.005 * acceleration(x)

    x, v = lib.fori_loop(0, 50, step, (position, velocity))
    return np.sum(mass[:, None] * v**2) + np.sum(x[0] ** 2)
