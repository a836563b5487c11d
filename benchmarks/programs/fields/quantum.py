"""Quantum and wave mechanics."""

import numpy as np

from .registry import program


def _draw_split_step(rng):
    x = np.linspace(-10, 10, 256, endpoint=False)
    return 0.5 * x**2 + 0.1 * rng.standard_normal(256), x


@program(_draw_split_step)
def split_step_fourier(lib, potential, x):
    """Twenty steps of the equation of Schrödinger; the mean position of the packet."""
    np = lib.np
    dx, dt = 20.0 / 256, 0.02
    k = 2 * np.pi * np.fft.fftfreq(256, dx)
    kinetic = np.exp(-0.5j * dt * k**2)
    half = np.exp(-0.5j * dt * potential)
    psi = np.exp(-((x - 1.0) ** 2) + 2j * x) * (2 / np.pi) ** 0.25
    for _ in range(20):
        psi = half * np.fft.ifft(kinetic * np.fft.fft(half * psi))
    density = np.abs(psi) ** 2
    return np.sum(x * density) * dx + 0.1 * np.sum(density**2) * dx


def _draw_hamiltonian(rng):
    a, b = rng.standard_normal((2, 40, 40))
    return a / np.sqrt(40), (b + b.T) / 2


@program(_draw_hamiltonian)
def fermi_density(lib, a, observable):
    """A mean value in thermal equilibrium: a function of the spectrum of a matrix."""
    np = lib.np
    energies, states = np.linalg.eigh(0.5 * (a + a.T))
    occupation = 1.0 / (1.0 + np.exp(5.0 * (energies - 0.1)))
    density = (states * occupation) @ states.T
    return np.sum(density * observable) + np.sum(occupation * energies)


def _draw_basis(rng):
    return (np.array([0.7, 1.3, 2.9, 0.4, 5.5, 0.15]) * (1 + 0.05 * rng.standard_normal(6)),)


@program(_draw_basis)
def variational_energy(lib, exponents):
    """The ground state of hydrogen in six Gaussians, whose exponents are varied."""
    np = lib.np
    total = exponents[:, None] + exponents[None, :]
    product = exponents[:, None] * exponents[None, :]
    overlap = (np.pi / total) ** 1.5
    hamiltonian = 3.0 * product * np.pi**1.5 / total**2.5 - 2.0 * np.pi / total
    # to an ordinary eigenproblem, by the factor of the overlap
    factor = np.linalg.cholesky(overlap)
    half = np.linalg.solve(factor, hamiltonian)
    energies = np.linalg.eigvalsh(np.linalg.solve(factor, half.T))
    return energies[0]


def _draw_angles(rng):
    return rng.uniform(0, np.pi, (6, 2)), rng.standard_normal(7)


@program(_draw_angles)
def spin_chain(lib, angles, couplings):
    """The energy of eight spins after six layers of rotations and couplings."""
    np = lib.np
    signs = 1.0 - 2.0 * ((np.arange(256)[:, None] >> np.arange(8)[None, :]) & 1)
    energy = np.sum(couplings * signs[:, 1:] * signs[:, :-1], axis=1)
    state = np.ones(256, dtype=complex) / 16.0
    for layer in range(6):
        state = state * np.exp(-1j * angles[layer, 0] * energy)
        cosine, sine = np.cos(angles[layer, 1]), np.sin(angles[layer, 1])
        for spin in range(8):
            pairs = state.reshape(2 ** (7 - spin), 2, 2**spin)
            state = (cosine * pairs - 1j * sine * pairs[:, ::-1, :]).reshape(256)
    return np.sum(np.abs(state) ** 2 * energy)


def _draw_pulses(rng):
    return 0.3 * rng.standard_normal((40, 2)), np.array([[0, 1], [1, 0]]) * (1.0 + 0.0j)


@program(_draw_pulses)
def quantum_gate(lib, pulses, wanted):
    """Infidelity of a gate of forty pulses on a qubit."""
    np = lib.np
    x = np.array([[0, 1], [1, 0]]) * (1.0 + 0.0j)
    y = np.array([[0, -1j], [1j, 0]])
    z = np.array([[1, 0], [0, -1]]) * (1.0 + 0.0j)

    def step(unitary, pulse):
        norm = np.sqrt(pulse[0] ** 2 + pulse[1] ** 2 + 0.25)
        axis = (pulse[0] * x + pulse[1] * y + 0.5 * z) / norm
        propagator = np.cos(0.2 * norm) * np.eye(2) - 1j * np.sin(0.2 * norm) * axis
        return propagator @ unitary, np.zeros(())

    unitary, _ = lib.scan(step, np.eye(2, dtype=complex), pulses)
    overlap = np.trace(np.conj(wanted).T @ unitary)
    return 1.0 - np.abs(overlap) ** 2 / 4.0 + 0.001 * np.sum(pulses**2)


def _draw_medium(rng):
    return 1.0 + 0.1 * rng.random((64, 64)), rng.standard_normal((150, 64)) * 0.1


@program(_draw_medium)
def waveform_inversion(lib, speed, recorded):
    """The wave equation in a medium: 150 steps, recorded along a line."""
    np = lib.np
    y, x = np.meshgrid(np.arange(64.0), np.arange(64.0), indexing="ij")
    pulse = np.exp(-0.1 * ((x - 32.0) ** 2 + (y - 20.0) ** 2))
    factor = (0.5 * speed) ** 2

    def step(state, row):
        before, now = state
        inner = now[1:-1, 1:-1]
        laplacian = now[2:, 1:-1] + now[:-2, 1:-1] + now[1:-1, 2:] + now[1:-1, :-2] - 4.0 * inner
        after = 2.0 * now - before + factor * np.pad(laplacian, 1)
        return (now, after), np.sum((after[40] - row) ** 2)

    _, misfits = lib.scan(step, (pulse, pulse), recorded)
    return np.sum(misfits)


def _draw_pulse(rng):
    return (0.3 * rng.standard_normal((12, 2)),)


@program(_draw_pulse)
def pulse_of_a_gate(lib, amplitudes):
    """The fidelity of a gate that twelve piecewise constant pulses make of two coupled qubits."""
    np = lib.np
    x = np.array([[0.0, 1.0], [1.0, 0.0]])
    z = np.array([[1.0, 0.0], [0.0, -1.0]])
    one = np.eye(2)
    drift = np.kron(z, z) + 0.2 * (np.kron(z, one) - np.kron(one, z))
    controls = np.stack([np.kron(x, one), np.kron(one, x)])
    wanted = np.diag(np.exp(-0.25j * np.pi * np.array([1.0, -1.0, -1.0, 1.0])))
    gate = np.eye(4) + 0.0j
    for k in range(12):
        hamiltonian = drift + np.einsum("c,cij->ij", amplitudes[k], controls)
        gate = lib.expm(-0.15j * hamiltonian) @ gate
    overlap = np.trace(np.conj(wanted).T @ gate) / 4.0
    return 1.0 - np.abs(overlap) ** 2 + 1e-3 * np.sum(amplitudes**2)


def _draw_flux(rng):
    return 1.0 + 0.1 * rng.standard_normal(24), np.array([0.4])


@program(_draw_flux)
def ring_with_flux(lib, hopping, flux):
    """The persistent current of a ring: eigenvalues of a Hermitian matrix, and its lowest state."""
    np = lib.np
    n = 24
    turned = hopping * np.exp(1j * flux[0] / n)
    upper = np.roll(np.eye(n), 1, axis=1) * turned[:, None]
    energies, states = np.linalg.eigh(upper + np.conj(upper).T)
    density = np.abs(states[:, 0]) ** 2
    return np.sum(np.tanh(-energies)) + np.sum(density**2)


def _draw_well(rng):
    return (np.array([0.5, 0.05, 1.0]) + 0.01 * rng.standard_normal(3),)


@program(_draw_well)
def crank_nicolson(lib, well):
    """Ten implicit steps of a packet in a well, with one complex matrix."""
    np = lib.np
    n, dt = 48, 0.05
    x = np.linspace(-4.0, 4.0, n)
    second = (2.0 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)) / (2.0 * (8.0 / (n - 1)) ** 2)
    energy = second + np.diag(well[0] * x**2 + well[1] * x**4 + well[2] * np.exp(-(x**2)))
    forth, back = np.eye(n) + 0.5j * dt * energy, np.eye(n) - 0.5j * dt * energy
    psi = np.exp(-((x - 1.0) ** 2) + 0.5j * x)
    for _ in range(10):
        psi = np.linalg.solve(forth, back @ psi)
    density = np.abs(psi) ** 2
    return np.sum(density * x) / np.sum(density)
