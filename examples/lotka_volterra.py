"""Fit a differential equation to data: hares and lynxes of Hudson Bay, 1900 to 1920.

The Hudson's Bay Company counted the pelts that trappers brought in.  Lotka and Volterra describe
how the populations of the hares x and of the lynxes y, which eat them, oscillate:

    dx/dt = (alpha - beta y) x        dy/dt = (delta x - gamma) y

The script integrates this with a Runge-Kutta method, in scalar loops as is usual with numba, and
finds the four rates and the two populations of 1900 that fit the counts best: with the least sum
of squared differences of logarithms.  ``tapegrad.njit`` compiles the program,
``tg.value_and_grad`` its gradient for SciPy's BFGS, ``tg.hvp`` and ``tg.jacobian`` the derivatives
needed for the standard errors of parameters and curves.

    python examples/lotka_volterra.py
    python examples/lotka_volterra.py --output hares.png

The exit code is 1 if the gradient disagrees with finite differences, or if the fit misses the
known optimum or the published estimates (B. Carpenter 2018, a Bayesian fit of the same model).
Needs SciPy; rich (tables) and, for the picture, Matplotlib.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import tapegrad as tg

try:
    from scipy.optimize import minimize
except ImportError:
    raise SystemExit("This example needs SciPy: pip install scipy") from None

DATA = Path(__file__).parent / "data" / "hudson_bay.csv"
STEPS = 100  # of Runge-Kutta a year; the parameters are then right to nine digits
TOLERANCE = 1e-6  # relative, for a parameter against the known optimum

# --- the model ---------------------------------------------------------------------------------


@tg.njit
def step(x, y, alpha, beta, delta, gamma, h):
    """One step of the classical Runge-Kutta method."""
    dx1 = (alpha - beta * y) * x
    dy1 = (delta * x - gamma) * y
    xm = x + 0.5 * h * dx1
    ym = y + 0.5 * h * dy1
    dx2 = (alpha - beta * ym) * xm
    dy2 = (delta * xm - gamma) * ym
    xm = x + 0.5 * h * dx2
    ym = y + 0.5 * h * dy2
    dx3 = (alpha - beta * ym) * xm
    dy3 = (delta * xm - gamma) * ym
    xm = x + h * dx3
    ym = y + h * dy3
    dx4 = (alpha - beta * ym) * xm
    dy4 = (delta * xm - gamma) * ym
    x = x + h / 6 * (dx1 + 2 * dx2 + 2 * dx3 + dx4)
    y = y + h / 6 * (dy1 + 2 * dy2 + 2 * dy3 + dy4)
    return x, y


@tg.njit
def simulate(logs, points, interval, steps):
    """Logarithms of hares and lynxes at times 0, interval, 2 interval, ... (in years).

    The parameters come as logarithms too, so that whatever the solver tries is positive.
    """
    alpha, beta = math.exp(logs[0]), math.exp(logs[1])
    delta, gamma = math.exp(logs[2]), math.exp(logs[3])
    x, y = math.exp(logs[4]), math.exp(logs[5])
    h = interval / steps
    result = np.empty((points, 2))
    for k in range(points):
        if k > 0:
            for _ in range(steps):
                x, y = step(x, y, alpha, beta, delta, gamma, h)
        result[k, 0] = math.log(x)
        result[k, 1] = math.log(y)
    return result


@tg.njit
def misfit(logs, observed, steps):
    """Sum of squared errors of the logarithms, one row of ``observed`` a year."""
    model = simulate(logs, len(observed), 1.0, steps)
    total = 0.0
    for k in range(len(observed)):
        for species in range(2):
            total += (model[k, species] - observed[k, species]) ** 2
    return total


misfit_and_gradient = tg.value_and_grad(misfit)
misfit_hvp = tg.hvp(misfit)  # Hessian times a vector
curve_jacobian = tg.jacobian(simulate)


# --- the fit -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parameter:
    name: str
    unit: str
    optimum: float
    published: tuple[float, float, float]


# optimum: the same least squares with SciPy's DOP853 (tolerance 1e-12) as integrator.
# published: posterior mean and its 10 % and 90 % quantiles, B. Carpenter (2018), "Predator-Prey
# Population Dynamics: the Lotka-Volterra model in Stan".
PARAMETERS = [
    Parameter("alpha", "growth of hares, 1/year", 0.54015899, (0.545, 0.465, 0.630)),
    Parameter("beta", "loss of hares per lynx", 0.027165357, (0.028, 0.022, 0.033)),
    Parameter("delta", "growth of lynxes per hare", 0.023694638, (0.024, 0.020, 0.029)),
    Parameter("gamma", "loss of lynxes, 1/year", 0.79638604, (0.803, 0.692, 0.926)),
    Parameter("x(0)", "hares in 1900, thousands", 34.602424, (33.956, 30.415, 37.630)),
    Parameter("y(0)", "lynxes in 1900, thousands", 5.8445061, (5.933, 5.273, 6.614)),
]


def load() -> tuple[np.ndarray, np.ndarray]:
    """Years, and pelts (hare, lynx) in thousands."""
    table = np.loadtxt(DATA, delimiter=",", skiprows=1)
    return table[:, 0], np.ascontiguousarray(table[:, 1:])


def starting_point(pelts: np.ndarray) -> np.ndarray:
    """What the counts show at a glance.

    Small oscillations have the angular frequency sqrt(alpha gamma), and over a full cycle the
    populations average to gamma / delta and alpha / beta.  The cycle is known to take ten years.
    """
    frequency = 2 * np.pi / 10
    hares, lynxes = pelts.mean(axis=0)
    rates = [frequency, frequency / lynxes, frequency / hares, frequency]
    return np.log([*rates, *pelts[0]])


def hessian(logs: np.ndarray, observed: np.ndarray) -> np.ndarray:
    return np.array([misfit_hvp(logs, observed, STEPS, axis) for axis in np.eye(logs.size)])


def differences(f, x: np.ndarray, h: float) -> np.ndarray:
    """Derivative along every axis, with an error of order h**4."""

    def central(direction, h):
        return (np.asarray(f(x + h * direction)) - f(x - h * direction)) / (2 * h)

    return np.array([(4 * central(e, h / 2) - central(e, h)) / 3 for e in np.eye(x.size)])


def relative_error(value, reference) -> float:
    return float(np.abs(np.asarray(value) - reference).max() / np.abs(reference).max())


def check_derivatives(logs: np.ndarray, observed: np.ndarray) -> bool:
    gradient = misfit_and_gradient(logs, observed, STEPS)[1]
    expected = differences(lambda p: misfit(p, observed, STEPS), logs, 1e-3)
    first = relative_error(gradient, expected)
    curvature = hessian(logs, observed)
    expected = differences(lambda p: misfit_and_gradient(p, observed, STEPS)[1], logs, 1e-3)
    second = relative_error(curvature, expected)
    print(f"gradient and Hessian against differences: relative errors {first:.0e}, {second:.0e}")
    return first < 1e-8 and second < 1e-8


@dataclass(frozen=True)
class Run:
    derivative: str
    x: np.ndarray
    value: float
    misfits: int
    gradients: int
    seconds: float
    converged: bool


def minimise(start: np.ndarray, observed: np.ndarray, exact: bool) -> Run:
    """BFGS, with SciPy's own tolerance, from an exact gradient or from SciPy's differences."""
    calls = {"misfit": 0, "gradient": 0}

    def value_and_gradient(logs):
        calls["gradient"] += 1
        return misfit_and_gradient(logs, observed, STEPS)

    def value(logs):
        calls["misfit"] += 1
        return misfit(logs, observed, STEPS)

    began = time.perf_counter()
    # A trial step far out may overflow; the line search then shortens it, so no warning is due.
    with np.errstate(all="ignore"):
        if exact:
            solution = minimize(value_and_gradient, start, jac=True, method="BFGS")
        else:
            solution = minimize(value, start, jac="2-point", method="BFGS")
    return Run(
        "tapegrad" if exact else "differences (SciPy)",
        solution.x,
        float(solution.fun),
        calls["misfit"],
        calls["gradient"],
        time.perf_counter() - began,
        bool(solution.success),
    )


def covariance(logs: np.ndarray, observed: np.ndarray) -> np.ndarray:
    """Of the logarithms of the parameters: 2 s^2 H^-1, where S is 2 s^2 times -log likelihood."""
    variance = misfit(logs, observed, STEPS) / (observed.size - logs.size)
    return 2 * variance * np.linalg.inv(hessian(logs, observed))


# --- report ------------------------------------------------------------------------------------


def print_table(title: str, heads: list[str], rows: list[list[str]], left: int = 1) -> None:
    """The first ``left`` columns are texts, the others numbers."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print(title)
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        for row in [heads, *rows]:
            cells = zip(row, widths, strict=True)
            print(
                "  ".join(c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(cells))
            )
        return
    console = Console() if sys.stdout.isatty() else Console(width=110)
    table = Table(title=title, title_justify="left")
    for i, head in enumerate(heads):
        table.add_column(head, justify="left" if i < left else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def report_parameters(logs: np.ndarray, errors: np.ndarray) -> None:
    rows = []
    for parameter, value, error in zip(PARAMETERS, np.exp(logs), errors, strict=True):
        mean, low, high = (f"{number:.3f}" for number in parameter.published)
        # the error of a logarithm is the relative error of the number
        cells = [f"{value:.5g}", f"{error * value:.2g}", mean, f"{low} to {high}"]
        rows.append([parameter.name, parameter.unit, *cells])
    heads = ["", "", "fitted", "standard error", "published", "80 % interval"]
    print_table("Parameters", heads, rows, left=2)


def report_runs(runs: list[Run], observed: np.ndarray) -> None:
    rows = []
    optimum = np.array([parameter.optimum for parameter in PARAMETERS])
    for run in runs:
        left = np.abs(misfit_and_gradient(run.x, observed, STEPS)[1]).max()
        missed = np.abs(np.exp(run.x) / optimum - 1).max()
        counts = [str(run.misfits), str(run.gradients), f"{1e3 * run.seconds:.1f} ms"]
        rows.append([run.derivative, *counts, f"{left:.0e}", f"{missed:.0e}"])
    heads = ["gradient by", "misfits", "with gradient", "time", "gradient left", "off the optimum"]
    print_table("BFGS: calls made", heads, rows)


def report_speed(logs: np.ndarray, observed: np.ndarray) -> None:
    """The two in turn, so that both see the same machine; fastest of 15 rounds."""

    def seconds(function):
        began = time.perf_counter()
        for _ in range(20):
            function(logs, observed, STEPS)
        return (time.perf_counter() - began) / 20

    rounds = [(seconds(misfit), seconds(misfit_and_gradient)) for _ in range(15)]
    primal, both = np.min(rounds, axis=0)
    print(
        f"one misfit ({STEPS * (len(observed) - 1)} Runge-Kutta steps): {1e6 * primal:.0f} µs, "
        f"with gradient {1e6 * both:.0f} µs: {both / primal:.1f} times as long, "
        f"where differences take {logs.size + 1} misfits"
    )


def draw(logs: np.ndarray, cov: np.ndarray, years, pelts, path: Path) -> None:
    try:
        import matplotlib
    except ImportError:
        print("No picture: Matplotlib is missing (pip install matplotlib)", file=sys.stderr)
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    # Curves at 20 points a year, and from their Jacobian the standard error of each point.
    points, interval = 20 * (len(years) - 1) + 1, 1 / 20
    curves = simulate(logs, points, interval, STEPS // 20)
    jacobian = curve_jacobian(logs, points, interval, STEPS // 20)
    error = np.sqrt(np.einsum("pki,ij,pkj->pk", jacobian, cov, jacobian))
    when = years[0] + interval * np.arange(points)
    x, y = np.exp(curves).T
    alpha, beta, delta, gamma = np.exp(logs[:4])

    figure, (left, right) = plt.subplots(
        1, 2, figsize=(12.5, 5), layout="constrained", width_ratios=(1.5, 1)
    )
    colors = {"hare": "C0", "lynx": "C3"}
    for k, (name, color) in enumerate(colors.items()):
        band = np.exp(curves[:, k] + np.multiply.outer((-2, 2), error[:, k]))
        left.fill_between(when, *band, color=color, alpha=0.15, lw=0)
        left.plot(when, np.exp(curves[:, k]), color=color, lw=1.6)
        left.plot(years, pelts[:, k], "os"[k], color=color, ms=5.5, mec="white", label=name)
    left.set(
        title="counted, and fitted ± 2 standard errors",
        xlabel="year",
        ylabel="pelts, thousands",
        xticks=range(1900, 1921, 2),
        xlim=(1899.5, 1920.5),
        ylim=(0, None),
    )
    left.legend(frameon=False, loc="upper right", ncols=2)

    # Solutions stay on the level lines of this function: closed orbits around its minimum.
    def level(x, y):
        return delta * x - gamma * np.log(x) + beta * y - alpha * np.log(y)

    centre = np.array([gamma / delta, alpha / beta])
    grid = np.meshgrid(np.geomspace(5, 130, 300), np.geomspace(3, 90, 300))
    base, own = level(*centre), level(x[0], y[0])
    levels = base + (own - base) * np.array([0.05, 0.25, 0.6, 1.6])
    right.contour(
        *grid, level(*grid), levels=levels, colors="0.85", linewidths=0.9, linestyles="solid"
    )
    right.plot(x, y, color="C2", lw=1.8, label="fitted orbit")
    right.plot(*centre, "+", color="C2", ms=10, mew=1.8, label="equilibrium")
    for k in range(0, 200, 25):
        arrow = {"arrowstyle": "-|>", "color": "C2", "lw": 1.8, "mutation_scale": 13}
        right.annotate("", (x[k + 1], y[k + 1]), (x[k], y[k]), arrowprops=arrow)
    right.plot(*pelts.T, "-", color="0.6", lw=0.7)
    right.plot(*pelts.T, "o", color="0.3", ms=4.5, mec="white", label="counts")
    for year, count in zip(years, pelts, strict=True):
        outward = np.log(count / centre)
        shift = (-9 if year == 1909 else 9) * outward / np.hypot(*outward)  # 1920 is in the way
        style = {"fontsize": 7.5, "color": "0.3", "ha": "center", "va": "center"}
        right.annotate(f"{year % 100:02.0f}", count, shift, textcoords="offset points", **style)
    right.set(
        title="lynxes against hares, 1900 to 1920",
        xlabel="hare pelts, thousands",
        ylabel="lynx pelts, thousands",
        xscale="log",
        yscale="log",
        xticks=(5, 10, 20, 50, 100),
        yticks=(5, 10, 20, 50),
        xlim=(5.5, 130),
        ylim=(3, 90),
    )
    right.xaxis.set(major_formatter="{x:.0f}", minor_formatter="")
    right.yaxis.set(major_formatter="{x:.0f}", minor_formatter="")
    right.legend(frameon=False, loc="lower left")
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Hares and lynxes of Hudson Bay, and the equations of Lotka and Volterra")
    figure.savefig(path, dpi=120)
    plt.close(figure)
    print(f"picture: {path}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, help="draw data and fit to this PNG file")
    arguments = parser.parse_args()

    years, pelts = load()
    observed = np.log(pelts)
    start = starting_point(pelts)
    began = time.perf_counter()
    misfit(start, observed, STEPS)
    compiled = time.perf_counter()
    misfit_and_gradient(start, observed, STEPS)
    print(
        f"compiled: misfit in {compiled - began:.1f} s, with gradient in "
        f"{time.perf_counter() - compiled:.1f} s"
    )
    agrees = check_derivatives(start, observed)

    fit = minimise(start, observed, exact=True)
    other = minimise(start, observed, exact=False)
    cov = covariance(fit.x, observed)
    report_parameters(fit.x, np.sqrt(np.diag(cov)))
    spread = math.sqrt(fit.value / (observed.size - fit.x.size))
    print(
        f"sum of squares {misfit(start, observed, STEPS):.4g} at the start, {fit.value:.6g} at the "
        f"end: a count is off by {100 * spread:.0f} %, typically"
    )
    report_runs([fit, other], observed)
    report_speed(fit.x, observed)

    missed = [
        parameter.name
        for parameter, value in zip(PARAMETERS, np.exp(fit.x), strict=True)
        if not (
            abs(value / parameter.optimum - 1) < TOLERANCE
            and parameter.published[1] < value < parameter.published[2]
        )
    ]
    if not agrees:
        print("WRONG DERIVATIVE: see above")
    if not fit.converged:
        print("BAD FIT: no convergence")
    if missed:
        print(f"BAD FIT: {', '.join(missed)} off the known optimum or the published interval")
    if arguments.output:
        draw(fit.x, cov, years, pelts, arguments.output)
    return 0 if agrees and fit.converged and not missed else 1


if __name__ == "__main__":
    raise SystemExit(main())
