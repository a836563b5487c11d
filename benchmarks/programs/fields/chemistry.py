"""Molecules and reactions."""

import numpy as np

from .registry import program


def _draw_atoms(rng):
    grid = np.stack(np.meshgrid(*[np.arange(4.0)] * 3), axis=-1).reshape(-1, 3)
    return (1.2 * grid + 0.05 * rng.standard_normal((64, 3)),)


@program(_draw_atoms)
def lennard_jones(lib, positions):
    """Sixty-four atoms in a periodic box, all pairs."""
    np = lib.np
    box = 4.8
    d = positions[:, None, :] - positions[None, :, :]
    d = d - box * np.round(d / box)
    squared = np.sum(d**2, axis=-1) + 100.0 * np.eye(64)
    inverse = 1.0 / squared**3
    energy = np.where(squared < 2.4**2, 4.0 * (inverse**2 - inverse), 0.0)
    return 0.5 * np.sum(energy)


def _draw_kinetics(rng):
    return np.array([-0.5, 0.7, 0.2]), np.abs(rng.standard_normal((400, 3)))


@program(_draw_kinetics)
def reaction_kinetics(lib, log_rates, measured):
    """Three species, A + B to C and back, with decay: 400 steps of Runge and Kutta."""
    np = lib.np
    k = np.exp(log_rates)

    def rate(y):
        forward, back, decay = k[0] * y[0] * y[1], k[1] * y[2], k[2] * y[1]
        return lib.array([back - forward, back - forward - decay, forward - back])

    def step(y, wanted):
        h = 0.01
        k1 = rate(y)
        k2 = rate(y + 0.5 * h * k1)
        k3 = rate(y + 0.5 * h * k2)
        k4 = rate(y + h * k3)
        y = y + h / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)
        return y, np.sum((y - wanted) ** 2)

    _, misfits = lib.scan(step, np.array([1.0, 0.8, 0.1]), measured)
    return np.mean(misfits)


def _draw_metal(rng):
    positions = rng.uniform(0, 10, (500, 3))
    distance = np.linalg.norm(positions[:, None] - positions[None], axis=-1)
    first, second = np.nonzero((distance < 2.0) & (distance > 0))
    return positions, first, second


@program(_draw_metal)
def embedded_atoms(lib, positions, first, second):
    """A metal: pairs from a list of neighbours, and the density that they make at each atom."""
    np = lib.np
    distance = np.sqrt(np.sum((positions[first] - positions[second]) ** 2, axis=1))
    pair = np.exp(-2.0 * distance) * (2.0 - distance) ** 2
    density = lib.bincount(first, np.exp(-distance) * (2.0 - distance) ** 2, 500)
    return 0.5 * np.sum(pair) - np.sum(np.sqrt(density + 1e-3))


@program(_draw_metal)
def forces_of_bonds(lib, positions, first, second):
    """The squared forces of springs on atoms, added up from a list of neighbours."""
    np = lib.np
    d = positions[second] - positions[first]
    distance = np.sqrt(np.sum(d**2, axis=1, keepdims=True))
    force = (distance - 1.0) * d / distance
    total = lib.add_at(np.zeros((500, 3)), first, force)
    return np.sum(total**2)


def _draw_ring(rng):
    return (1.4 + 0.05 * rng.standard_normal(30),)


@program(_draw_ring)
def huckel(lib, lengths):
    """Energy of the electrons of a ring of thirty carbon atoms, whose bonds have lengths."""
    np = lib.np
    coupling = -np.exp(-2.0 * (lengths - 1.4))
    matrix = np.diag(coupling[:-1], 1) + np.diag(coupling[:-1], -1)
    corner = np.zeros((30, 30))
    corner = lib.add_at(corner, (np.array([0, 29]), np.array([29, 0])), coupling[-1])
    levels = np.linalg.eigvalsh(matrix + corner)
    return 2.0 * np.sum(levels[:15]) + 10.0 * np.sum((lengths - 1.5) ** 2)
