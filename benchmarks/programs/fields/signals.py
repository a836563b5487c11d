"""Signal processing: spectra, filters, convolutions."""

import numpy as np

from .registry import program


def _draw_periodogram(rng):
    t = np.arange(1024.0)
    y = 1.2 * np.sin(0.31 * t + 0.4) + rng.standard_normal(1024)
    return np.array([1.0, 0.3105, 0.3, 0.1, 0.2]), y


@program(_draw_periodogram)
def periodogram(lib, parameters, y):
    """Whittle likelihood of a sinusoid in noise with a coloured spectrum."""
    np = lib.np
    amplitude, frequency, phase, log_noise, colour = (parameters[i] for i in range(5))
    t = np.arange(1024.0)
    residual = y - amplitude * np.sin(frequency * t + phase)
    power = np.abs(np.fft.rfft(residual)) ** 2 / 1024.0
    omega = np.linspace(0.0, np.pi, 513)
    spectrum = np.exp(log_noise) / (1.0 + colour**2 - 2.0 * colour * np.cos(omega))
    return np.sum(np.log(spectrum) + power / spectrum)


def _draw_chirp(rng):
    t = np.linspace(0.0, 1.0, 2048)
    chirp = np.sin(2 * np.pi * (30 * t + 40 * t**2)) * np.exp(-((t - 0.5) ** 2) / 0.02)
    return np.array([29.0, 41.0, 0.14]), np.roll(chirp, 200) + 0.5 * rng.standard_normal(2048), t


@program(_draw_chirp)
def matched_filter(lib, parameters, data, t):
    """The largest response to a chirp, over all delays, smoothed."""
    np = lib.np
    phase = 2 * np.pi * (parameters[0] * t + parameters[1] * t**2)
    template = np.sin(phase) * np.exp(-((t - 0.5) ** 2) / parameters[2] ** 2)
    template = template / np.sqrt(np.sum(template**2))
    response = np.fft.irfft(np.fft.rfft(data) * np.conj(np.fft.rfft(template)), n=2048)
    return -lib.special.logsumexp(4.0 * response) / 4.0


def _draw_track(steps):
    def draw(rng):
        position = np.cumsum(np.cumsum(rng.standard_normal(steps) * 0.1))
        return np.array([-1.0, 0.0]), position + rng.standard_normal(steps)

    return draw


@program(_draw_track(300))
def kalman_filter(lib, parameters, y):
    """Likelihood of 300 positions under constant velocity, two states."""
    np = lib.np
    q, r = np.exp(2.0 * parameters[0]), np.exp(2.0 * parameters[1])
    transition = np.array([[1.0, 1.0], [0.0, 1.0]])
    noise = q * np.array([[0.25, 0.5], [0.5, 1.0]])
    h = np.array([1.0, 0.0])

    def step(state, observed):
        mean, cov = state
        mean, cov = transition @ mean, transition @ cov @ transition.T + noise
        innovation = observed - h @ mean
        s = h @ cov @ h + r
        gain = cov @ h / s
        mean, cov = mean + gain * innovation, cov - np.outer(gain, h @ cov)
        return (mean, cov), 0.5 * (np.log(2 * np.pi * s) + innovation**2 / s)

    _, losses = lib.scan(step, (np.zeros(2), 10.0 * np.eye(2)), y)
    return np.sum(losses)


@program(_draw_track(100))
def unrolled_kalman_filter(lib, parameters, y):
    """The same for 100 positions, as a loop of Python."""
    np = lib.np
    q, r = np.exp(2.0 * parameters[0]), np.exp(2.0 * parameters[1])
    transition = np.array([[1.0, 1.0], [0.0, 1.0]])
    noise = q * np.array([[0.25, 0.5], [0.5, 1.0]])
    h = np.array([1.0, 0.0])
    mean, cov = np.zeros(2), 10.0 * np.eye(2)
    loss = 0.0
    for i in range(100):
        mean, cov = transition @ mean, transition @ cov @ transition.T + noise
        innovation = y[i] - h @ mean
        s = h @ cov @ h + r
        gain = cov @ h / s
        mean, cov = mean + gain * innovation, cov - np.outer(gain, h @ cov)
        loss = loss + 0.5 * (np.log(2 * np.pi * s) + innovation**2 / s)
    return loss


def _draw_convolution(rng):
    signal, kernel = rng.standard_normal(20000), np.hanning(17)[1:-1] / 8.0
    wanted = np.convolve(signal, kernel, mode="same") + 0.1 * rng.standard_normal(20000)
    return kernel + 0.1 * rng.standard_normal(15), signal, wanted


@program(_draw_convolution, argnums=(0, 1))
def convolution(lib, kernel, signal, wanted):
    """A filter of fifteen coefficients and its input, fitted to the output."""
    np = lib.np
    error = np.convolve(signal, kernel, mode="same") - wanted
    return np.mean(error**2) + 0.01 * np.mean(np.abs(signal))


def _draw_phases(rng):
    image = np.zeros((64, 64))
    image[20:44, 24:40] = rng.random((24, 16))
    return rng.random((64, 64)), np.abs(np.fft.fft2(image)), (image > 0).astype(float)


@program(_draw_phases)
def phase_retrieval(lib, image, magnitude, support):
    """Misfit of the magnitudes of a Fourier transform, and what is outside of the support."""
    np = lib.np
    error = np.abs(np.fft.fft2(image)) - magnitude
    return np.sum(error**2) / 4096.0 + 10.0 * np.sum(((1.0 - support) * image) ** 2)


def _draw_biquad(rng):
    x = rng.standard_normal(1000)
    return np.array([0.2, 0.3, 0.2, -0.5, 0.25]), x, np.cumsum(x) * 0.1


@program(_draw_biquad)
def recursive_filter(lib, coefficients, x, wanted):
    """A filter of second order, sample by sample, fitted to an output."""
    np = lib.np
    b0, b1, b2, a1, a2 = (coefficients[i] for i in range(5))

    def step(state, sample):
        first, second = state
        out = b0 * sample + first
        return (b1 * sample - a1 * out + second, b2 * sample - a2 * out), out

    _, y = lib.scan(step, (np.zeros(()), np.zeros(())), x)
    return np.mean((y - wanted) ** 2)


def _draw_series(rng):
    return rng.standard_normal((24, 2)), rng.standard_normal((24, 2))


@program(_draw_series)
def soft_alignment(lib, a, b):
    """Soft dynamic time warping of two series, by the antidiagonals of the table of costs."""
    np, n, far = lib.np, 24, 1e6
    costs = np.sum((a[:, None] - b[None]) ** 2, axis=-1)
    rows = np.arange(n)
    last, now = np.concatenate([np.zeros(1), np.full(n, far)]), np.full(n + 1, far)
    for k in range(2 * n - 1):
        columns = k - rows
        inside = (columns >= 0) & (columns < n)
        cost = np.where(inside, costs[rows, np.clip(columns, 0, n - 1)], far)
        ways = np.stack([now[1:], now[:-1], last[:-1]])
        reached = cost - 0.5 * lib.special.logsumexp(-ways / 0.5, axis=0)
        reached = np.where(inside, reached, far)
        last, now = now, np.concatenate([np.full(1, far), reached])
    return now[n]


def _draw_layers(rng):
    return rng.uniform(1.0, 3.0, 6), rng.uniform(0.2, 1.0, 6)


@program(_draw_layers)
def layered_earth(lib, resistivity, thickness):
    """Impedances of a layered earth at thirty frequencies, by tanh of complex numbers."""
    np = lib.np
    omega = 2.0 * np.pi * np.logspace(-2, 2, 30)
    impedance = np.sqrt(1j * omega * 10.0 ** resistivity[5])
    for k in range(4, -1, -1):
        own = np.sqrt(1j * omega * 10.0 ** resistivity[k])
        wave = np.tanh(0.02 * thickness[k] * np.sqrt(1j * omega / 10.0 ** resistivity[k]))
        impedance = own * (impedance + own * wave) / (own + impedance * wave)
    return np.sum(np.log(np.abs(impedance)) ** 2) + np.sum(np.angle(impedance) ** 2)
