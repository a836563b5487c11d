"""Anomalies are found and told on both libraries."""

import re
import warnings

import pytest
from libraries import Programs

pytest.importorskip("torch")
program = Programs()


# -- anomalies ------------------------------------------------------------------------------------


def not_a_number(lib):
    return lib.make(lambda ctx, x: x.clone(), lambda ctx, g: g * float("nan"), name="Bad")


def anomaly(lib, action, error, recorded=True, check_nan=True):
    """What is raised and, of the warnings, the names of the ops and the functions in here."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with lib.set_detect_anomaly(recorded, check_nan):
            sweep = action(lib)
        with lib.set_detect_anomaly(True, check_nan), pytest.raises(error) as info:
            sweep()
    found = []
    for w in caught:
        text = str(w.message)
        found.append(w.category.__name__)
        found += re.findall(r"Error detected in \w+?Backward|induced by \w+?Backward", text)
        found += re.findall(r"No forward pass information available", text)
        found += re.findall(r"\bin (marked_\w+)", text)
    return str(info.value), found


def marked_nan(lib):
    y = not_a_number(lib).apply(lib.tensor([1.0, 2.0], True))
    return y.sum().backward


def marked_op(lib):
    y = lib.tensor([0.0, 1.0], True).sqrt()
    return (y * 0).sum().backward


def marked_error(lib):
    def fail(ctx, g):
        raise ValueError("mine")

    y = lib.make(lambda ctx, x: x.clone(), fail, name="Fails").apply(lib.tensor([1.0], True))
    return y.backward


def marked_hook(lib):
    def fail(g):
        raise ValueError("mine")

    y = lib.tensor([1.0], True).exp()
    y.register_hook(fail)
    return y.backward


def marked_parent(lib):
    inner = not_a_number(lib)
    outer = lib.make(lambda ctx, x: x.clone(), lambda ctx, g: inner.apply(g), name="Outer")
    x, v = lib.tensor([1.0], True), lib.tensor([1.0], True)
    (g,) = lib.grad(outer.apply(x), x, v, create_graph=True)
    return g.backward


def marked_mutation(lib):
    y = lib.tensor([1.0], True).exp()
    z = y.sum()
    y.add_(1)
    return z.backward


ANOMALIES = {
    "nan_in_a_function": (marked_nan, RuntimeError, {}),
    "nan_in_an_op": (marked_op, RuntimeError, {}),
    "nan_in_a_graph_recorded_outside": (marked_nan, RuntimeError, {"recorded": False}),
    "error_in_a_function": (marked_error, ValueError, {}),
    "error_in_a_function_without_check_nan": (marked_error, ValueError, {"check_nan": False}),
    "error_in_a_hook": (marked_hook, ValueError, {}),
    "nan_with_a_parent": (marked_parent, RuntimeError, {}),
    "overwritten_value": (marked_mutation, RuntimeError, {}),
}
for name, (action, error, options) in ANOMALIES.items():

    def anomalous(lib, action=action, error=error, options=options):
        text, found = anomaly(lib, action, error, **options)
        return text.partition("gradient computation")[0], found

    anomalous.__name__ = f"anomaly_{name}"
    program(anomalous)


@program(warns="Anomaly Detection has been enabled.")
def entering_detect_anomaly(lib):
    with lib.detect_anomaly(check_nan=False):
        y = not_a_number(lib).apply(lib.tensor([1.0], True))
        y.backward()
    return y


@program
def anomaly_without_check_nan(lib):
    x = lib.tensor([1.0, 2.0], True)
    with lib.set_detect_anomaly(True, check_nan=False):
        not_a_number(lib).apply(x).sum().backward()
    return x.grad


@program(raises="Hint: the backtrace further above shows the operation that failed to compute its")
def hint_with_the_mode(lib):
    with lib.set_detect_anomaly(True):
        marked_mutation(lib)()


@program(raises="Hint: enable anomaly detection to find the operation that failed to compute its")
def hint_without_the_mode(lib):
    marked_mutation(lib)()


@pytest.mark.parametrize("name", program)
def test_same(name):
    program.check(name)
