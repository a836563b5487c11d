"""Points, surfaces, cameras and curves."""

import numpy as np

from .registry import program


def _draw_clouds(rng):
    a = rng.standard_normal((100, 3))
    return a, a @ np.linalg.qr(rng.standard_normal((3, 3)))[0] + 0.1 * rng.standard_normal((100, 3))


@program(_draw_clouds)
def procrustes(lib, a, b):
    """The distance of two clouds of points after the best rotation."""
    np = lib.np
    a, b = a - np.mean(a, axis=0), b - np.mean(b, axis=0)
    u, _, vh = np.linalg.svd(a.T @ b)
    return np.sum((a @ (u @ vh) - b) ** 2)


def _draw_bundle(rng):
    offset = np.array([0.0, 0.0, 8.0])
    cameras = np.concatenate(
        [0.1 * rng.standard_normal((10, 3)), rng.standard_normal((10, 3)) + offset], axis=1
    )
    return (
        cameras,
        rng.standard_normal((200, 3)),
        rng.integers(0, 10, 1000),
        rng.integers(0, 200, 1000),
        0.2 * rng.standard_normal((1000, 2)),
    )


@program(_draw_bundle, argnums=(0, 1))
def bundle_adjustment(lib, cameras, points, camera, point, observed):
    """Errors of 1000 projections of 200 points into ten cameras."""
    np = lib.np
    pose, x = cameras[camera], points[point]
    rotation, translation = pose[:, :3], pose[:, 3:]
    angle = np.sqrt(np.sum(rotation**2, axis=1, keepdims=True) + 1e-12)
    axis = rotation / angle
    along = np.sum(axis * x, axis=1, keepdims=True)
    cosine = np.cos(angle)
    turned = cosine * x + np.sin(angle) * np.cross(axis, x) + (1.0 - cosine) * along * axis
    seen = turned + translation
    error = seen[:, :2] / seen[:, 2:] - observed
    squared = np.sum(error**2, axis=1)
    return np.sum(np.log1p(squared / 0.1))


def _draw_spheres(rng):
    spheres = np.concatenate([rng.uniform(-1, 1, (20, 3)), rng.uniform(0.1, 0.4, (20, 1))], axis=1)
    return spheres, rng.uniform(-1, 1, (5000, 3)), rng.standard_normal(5000)


@program(_draw_spheres)
def signed_distance(lib, spheres, points, wanted):
    """A smooth union of twenty balls, fitted to distances at 5000 points."""
    np = lib.np
    offset = points[:, None, :] - spheres[None, :, :3]
    distance = np.linalg.norm(offset, axis=-1) - np.abs(spheres[:, 3])
    union = -lib.special.logsumexp(-20.0 * distance, axis=1) / 20.0
    return np.mean((np.tanh(union) - wanted) ** 2)


def _draw_mesh(rng):
    corner = np.arange(31)[:, None] * 32 + np.arange(31)[None, :]
    upper = np.stack([corner, corner + 1, corner + 32], axis=-1).reshape(-1, 3)
    lower = np.stack([corner + 1, corner + 33, corner + 32], axis=-1).reshape(-1, 3)
    x, y = np.meshgrid(np.linspace(0, 1, 32), np.linspace(0, 1, 32))
    z = 0.1 * rng.standard_normal((32, 32))
    return np.stack([x, y, z], axis=-1).reshape(-1, 3), np.concatenate([upper, lower])


@program(_draw_mesh)
def area_of_mesh(lib, vertices, faces):
    """Area and volume under a surface of 1922 triangles."""
    np = lib.np
    a, b, c = vertices[faces[:, 0]], vertices[faces[:, 1]], vertices[faces[:, 2]]
    normal = np.cross(b - a, c - a)
    area = 0.5 * np.sum(np.sqrt(np.sum(normal**2, axis=1)))
    volume = np.sum(np.sum(a * np.cross(b, c), axis=1)) / 6.0
    return area + volume**2


def _draw_curve(rng):
    return rng.standard_normal((20, 2)), rng.standard_normal((500, 2))


@program(_draw_curve)
def spline_curve(lib, control, wanted):
    """A cubic B-spline through the plane: misfit, length and bending."""
    np = lib.np
    u = np.linspace(0.0, 16.999, 500)
    segment = np.floor(u).astype(int)
    t = (u - segment)[:, None]
    p0, p1, p2, p3 = (control[segment + i] for i in range(4))
    curve = (
        (1 - t) ** 3 * p0
        + (3 * t**3 - 6 * t**2 + 4) * p1
        + (-3 * t**3 + 3 * t**2 + 3 * t + 1) * p2
        + t**3 * p3
    ) / 6.0
    length = np.sum(np.sqrt(np.sum(np.diff(curve, axis=0) ** 2, axis=1)))
    bending = np.sum(np.diff(curve, n=2, axis=0) ** 2)
    return np.mean((curve - wanted) ** 2) + 0.01 * length + bending
