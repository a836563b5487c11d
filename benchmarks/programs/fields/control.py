"""Control: rollouts of systems under a policy or a sequence of forces."""

import numpy as np

from .registry import program


def _draw_regulator(rng):
    a = np.eye(4) + 0.1 * rng.standard_normal((4, 4))
    return 0.1 * rng.standard_normal((2, 4)), a, rng.standard_normal((4, 2)), rng.standard_normal(4)


@program(_draw_regulator)
def linear_quadratic_regulator(lib, gain, a, b, start):
    """Cost of a linear feedback over 50 steps."""
    np = lib.np

    def step(i, state):
        x, cost = state
        u = -gain @ x
        return a @ x + 0.1 * (b @ u), cost + x @ x + 0.1 * (u @ u)

    x, cost = lib.fori_loop(0, 50, step, (start, np.zeros(())))
    return cost + 10.0 * (x @ x)


def _draw_predictive(rng):
    return 0.1 * rng.standard_normal((30, 2)), np.array([2.0, -1.0, 0.0, 0.5])


@program(_draw_predictive)
def predictive_control(lib, forces, start):
    """Thirty forces on a mass in the plane, which is to stay out of a disc."""
    np = lib.np

    def step(state, force):
        position, velocity = state
        velocity = velocity + 0.2 * (force - 0.1 * velocity * np.sqrt(velocity @ velocity + 1e-6))
        position = position + 0.2 * velocity
        inside = np.maximum(1.0 - np.sum((position - np.array([1.0, 0.0])) ** 2), 0.0)
        cost = position @ position + 0.05 * (force @ force) + 50.0 * inside**2
        return (position, velocity), cost

    (_, velocity), costs = lib.scan(step, (start[:2], start[2:]), forces)
    change = np.sum(np.diff(forces, axis=0) ** 2)
    return np.sum(costs) + 5.0 * (velocity @ velocity) + 0.1 * change


def _draw_pendulum(rng):
    return 0.5 * rng.standard_normal(200), np.array([0.0, 0.3, 0.0, 0.0])


@program(_draw_pendulum)
def inverted_pendulum(lib, forces, start):
    """A pole on a cart, 200 steps of Runge and Kutta."""
    np = lib.np

    def rate(state, force):
        _, angle, speed, spin = state[0], state[1], state[2], state[3]
        sine, cosine = np.sin(angle), np.cos(angle)
        pushed = (force + 0.05 * spin**2 * sine) / 1.1
        turn = (9.81 * sine - cosine * pushed) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
        return np.stack([speed, spin, pushed - 0.05 * turn * cosine / 1.1, turn])

    def step(state, force):
        h = 0.01
        k1 = rate(state, force)
        k2 = rate(state + 0.5 * h * k1, force)
        k3 = rate(state + 0.5 * h * k2, force)
        k4 = rate(state + h * k3, force)
        state = state + h / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)
        return state, state[0] ** 2 + 10.0 * (1.0 - np.cos(state[1])) + 0.01 * force**2

    _, costs = lib.scan(step, start, forces)
    return np.mean(costs)
