"""Functions of the rules write the arguments that their effects name, and no others."""

import ast
import inspect
import textwrap

import pytest
from numba.core.extending import _Intrinsic

from tapegrad.transform.rules import arrays
from tapegrad.transform.rules.effects import EFFECTS
from tapegrad.transform.syntax import callee_of


def python_of(name):
    function = getattr(arrays, name)
    return getattr(function, "py_func", None) or function._dispatcher.py_func


def written(function):
    """The parameters that a function assigns elements of, or adds to, itself or by a call."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    parameters = [*inspect.signature(function).parameters]
    views = {name: name for name in parameters}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            base = node.value
            if callee_of(base) == "np.atleast_2d":
                (base,) = base.args
            while isinstance(base, (ast.Subscript, ast.Attribute)):
                base = base.value
            if isinstance(base, ast.Name) and base.id in views and base is not node.value:
                views[node.targets[0].id] = views[base.id]
    for node in ast.walk(tree):
        targets = []
        if isinstance(node, ast.Assign):
            targets = [t for t in node.targets if isinstance(t, ast.Subscript)]
        elif isinstance(node, ast.AugAssign):
            targets = [node.target]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call = node.value
            text = callee_of(call) or ""
            if text in EFFECTS:
                targets = [call.args[place] for place in places_of(EFFECTS[text])]
            elif hasattr(arrays, text):
                targets = [call.args[place] for place in written_by_helper(text)]
        for target in targets:
            while isinstance(target, (ast.Subscript, ast.Attribute)):
                target = target.value
            if isinstance(target, ast.Name) and target.id in views:
                found.add(views[target.id])
    return found


def places_of(effect):
    """The positions of the arguments that a function writes by its effect."""
    return {place for place in (effect.adds_to, effect.assigns) if place is not None}


def written_by_helper(name):
    if isinstance(getattr(arrays, name), _Intrinsic):  # those of requests write the first array
        return [0]
    function = python_of(name)
    parameters = [*inspect.signature(function).parameters]
    return sorted(parameters.index(one) for one in written(function))


@pytest.mark.parametrize("name", sorted(EFFECTS))
def test_effects(name):
    function, effect = python_of(name), EFFECTS[name]
    parameters = [*inspect.signature(function).parameters]
    assert written(function) == {parameters[place] for place in places_of(effect)}


def test_every_derivative_has_an_effect():
    derivatives = {
        function.__name__
        for spec in arrays.SPECS.values()
        for function in (*spec.vjp.values(), *spec.jvp.values())
        if function is not None
    }
    assert derivatives <= EFFECTS.keys()
