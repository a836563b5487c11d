"""Images: denoising, deblurring, motion, sampling."""

import numpy as np

from .registry import program


def _scene(rng, size):
    y, x = np.mgrid[:size, :size] / size
    return (
        np.sin(6 * x) * np.cos(4 * y)
        + ((x - 0.5) ** 2 + (y - 0.4) ** 2 < 0.05)
        + 0.1 * rng.standard_normal((size, size))
    )


def _draw_pair(size):
    def draw(rng):
        return _scene(rng, size), _scene(rng, size)

    return draw


def _variation(np, x):
    down = x[1:, :-1] - x[:-1, :-1]
    right = x[:-1, 1:] - x[:-1, :-1]
    return np.sum(np.sqrt(down**2 + right**2 + 1e-6))


@program(_draw_pair(128))
def total_variation_denoising(lib, x, noisy):
    """The model of Rudin, Osher and Fatemi."""
    return 0.5 * lib.np.sum((x - noisy) ** 2) + 0.1 * _variation(lib.np, x)


def _draw_blurred(rng):
    point = np.zeros((128, 128))
    point[:7, :7] = np.outer(np.hanning(9)[1:-1], np.hanning(9)[1:-1]) / 16.0
    blurred = np.fft.irfft2(np.fft.rfft2(_scene(rng, 128)) * np.fft.rfft2(point), s=(128, 128))
    return _scene(rng, 128), point, blurred


@program(_draw_blurred)
def deconvolution(lib, x, point, blurred):
    """Deblurring in the Fourier domain with total variation."""
    np = lib.np
    model = np.fft.irfft2(np.fft.rfft2(x) * np.fft.rfft2(point), s=(128, 128))
    return 0.5 * np.sum((model - blurred) ** 2) + 0.02 * _variation(np, x)


@program(_draw_pair(96))
def bilateral_filter(lib, x, wanted):
    """Means over windows of 5 by 5, weighted by distance and by likeness."""
    np = lib.np
    padded = np.pad(x, 2, mode="edge")
    total, weights = np.zeros((96, 96)), np.zeros((96, 96))
    for i in range(5):
        for j in range(5):
            near = padded[i : i + 96, j : j + 96]
            weight = np.exp(-((i - 2) ** 2 + (j - 2) ** 2) / 8.0 - (near - x) ** 2 / 0.5)
            total = total + weight * near
            weights = weights + weight
    return np.sum((total / weights - wanted) ** 2)


def _draw_flow(rng):
    image = _scene(rng, 64)
    return 0.1 * rng.standard_normal((2, 64, 64)), image, np.roll(image, 1, axis=0)


@program(_draw_flow)
def optical_flow(lib, flow, first, second):
    """The energy of Horn and Schunck."""
    np = lib.np
    u, v = flow[0], flow[1]
    down, right = np.gradient(0.5 * (first + second))
    data = np.sum((right * u + down * v + second - first) ** 2)
    u_down, u_right = np.gradient(u)
    v_down, v_right = np.gradient(v)
    return data + 0.5 * np.sum(u_down**2 + u_right**2 + v_down**2 + v_right**2)


def _draw_affine(rng):
    move = np.array([[1.02, 0.05, -1.3], [-0.04, 0.97, 2.1]]) + 1e-3 * rng.standard_normal((2, 3))
    return move, _scene(rng, 64), _scene(rng, 64)


@program(_draw_affine)
def image_registration(lib, affine, moving, fixed):
    """An affine map of an image, sampled between its pixels."""
    np = lib.np
    y, x = np.meshgrid(np.arange(64.0), np.arange(64.0), indexing="ij")
    x_new = affine[0, 0] * x + affine[0, 1] * y + affine[0, 2]
    y_new = affine[1, 0] * x + affine[1, 1] * y + affine[1, 2]
    x_new, y_new = np.clip(x_new, 0.0, 62.999), np.clip(y_new, 0.0, 62.999)
    left, top = np.floor(x_new).astype(int), np.floor(y_new).astype(int)
    a, b = x_new - left, y_new - top
    upper = (1 - a) * moving[top, left] + a * moving[top, left + 1]
    lower = (1 - a) * moving[top + 1, left] + a * moving[top + 1, left + 1]
    return np.mean(((1 - b) * upper + b * lower - fixed) ** 2)


@program(_draw_pair(100))
def blur_by_roll(lib, x, wanted):
    """Five smoothing steps on a periodic image."""
    np = lib.np
    for _ in range(5):
        around = np.roll(x, 1, 0) + np.roll(x, -1, 0) + np.roll(x, 1, 1) + np.roll(x, -1, 1)
        x = 0.5 * x + 0.125 * around
    return np.sum((x - wanted) ** 2)


@program(_draw_pair(128))
def unsharp_mask(lib, x, wanted):
    """A separable blur with reflected borders, and what it leaves amplified."""
    np = lib.np
    weights = (1.0, 4.0, 6.0, 4.0, 1.0)
    rows = np.pad(x, ((2, 2), (0, 0)), mode="reflect")
    blurred = sum(w / 16.0 * rows[i : i + 128] for i, w in enumerate(weights))
    columns = np.pad(blurred, ((0, 0), (2, 2)), mode="reflect")
    blurred = sum(w / 16.0 * columns[:, i : i + 128] for i, w in enumerate(weights))
    return np.mean(np.abs(x + 1.5 * (x - blurred) - wanted))


def _draw_exit_wave(rng):
    wave = rng.standard_normal((40, 40)) + 1j * rng.standard_normal((40, 40))
    return wave, np.abs(rng.standard_normal((40, 40))) * 40.0


@program(_draw_exit_wave)
def ptychography(lib, specimen, measured):
    """Intensities behind a probe: the specimen is complex."""
    np = lib.np
    axis = np.linspace(-2.0, 2.0, 40)
    probe = np.exp(-(axis[:, None] ** 2) - axis**2)
    wave = np.fft.fft2(specimen * probe)
    amplitude = np.sqrt(wave.real**2 + wave.imag**2 + 1e-6)
    return np.mean((amplitude - measured) ** 2)
