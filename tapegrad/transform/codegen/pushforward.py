"""Forward mode: the functions that compute tangents as well."""

from __future__ import annotations

import ast
from typing import Any

from numba.core import types

from tapegrad.transform.builder import Builder, result_of
from tapegrad.transform.codegen.analysis import unused_suffix
from tapegrad.transform.codegen.forward import Forward
from tapegrad.transform.codegen.instance import Instance, overlap_checks, paths
from tapegrad.transform.ir import Role, Structure, Value, leaf_names, name
from tapegrad.transform.kinds import is_array, is_real, shape_checks
from tapegrad.transform.lowering.partners import without_partners
from tapegrad.transform.nodes import call_of, expression_of, item, names, tuple_of
from tapegrad.transform.verifier.purpose import Half, Purpose

# Copies of the tangent of an array that is written to, by its layout. Views of an array and of its
# tangent are the same expressions, which copy for some layouts.
_COPY = {"C": ".copy()", "F": ".T.copy().T", "A": ".copy()[..., ::1]"}


def write_tangent(
    program: Any, instance: Instance, active: tuple[bool, ...], identifier: str
) -> None:
    """Write the function that computes the tangents of an instance."""
    function = without_partners(instance.function)
    leaves = instance.leaves()
    inputs = [leaf for leaf, is_active in zip(leaves, active, strict=True) if is_active]
    kinds = function.types
    changed = [n for n in inputs if is_array(kinds[n]) and instance.arrays.is_stored(n)]
    results = instance.results()
    varied = [*inputs, *instance.joined_results()]
    gen = Forward(program, function, instance.arrays, inputs, varied, [*results, *changed])
    builder = gen.builder
    parameters = [*function.params, *(gen.dot(leaf) for leaf in inputs)]
    for array in inner_arrays(gen, instance, inputs):
        builder.assign(name(gen.dot(array)), gen.zero(array))
    gen.block(function.body)
    dots = [gen.tangent(name(result)) for result in results]
    builder.result(tuple_of([result_of(function), tuple_of(dots)]))
    program.note_primal(identifier, function)
    program.purposes[identifier] = Purpose(Half.TANGENT, function.name, names=gen.values)
    program.note_mode(identifier, gen, identifier)
    program.add(builder.function(identifier, parameters), instance.dispatcher)


def inner_arrays(gen: Any, instance: Instance, inputs: list[str]) -> list[str]:
    """Return the outside arrays that have tangents and are given none.

    The function writes such arrays and reads them again. Parts of tuples get their tangents where
    they are named.
    """
    function = instance.function
    return [
        array
        for array in (*function.params, *function.statics)
        if array not in inputs and is_array(function.types.get(array)) and gen.is_active(array)
    ]


def write_pushforward(program: Any, instance: Instance, params: list[int]) -> str:
    """Write the function from the arguments and some tangents to the value and its tangent."""
    function = instance.function
    chosen = [instance.params[k] for k in params]
    inputs = [
        leaf
        for value in chosen
        for leaf in leaf_names(value)
        if is_real(function.types.get(leaf, types.none))
    ]
    active = tuple(leaf in inputs for leaf in instance.leaves())
    inner = program.tangent(instance, active)
    entry = program.fresh(f"{function.name}_pushforward")
    suffix = unused_suffix("_dot", function.types)
    tangents = [f"{function.params[k]}{suffix}" for k in params]
    values = {
        t: Value(Role.TANGENT, function.params[k]) for t, k in zip(tangents, params, strict=True)
    }
    program.purposes[entry] = Purpose(names=values)
    builder = Builder()
    builder.lines(overlap_checks(instance))
    leaves = instance.leaves()
    changed = {leaves[position] for position in instance.writes}
    given: dict[str, str] = {}  # the text of the tangent of each part
    for number, text, value in zip(params, tangents, chosen, strict=True):
        builder.lines(shape_checks(text, function.params[number], instance.kinds[number]))
        for path, leaf in paths(value, text):
            copy = _COPY[getattr(function.types[leaf], "layout", "C")]
            given[leaf] = path + copy if leaf in changed else path
    arguments = names(function.params)
    arguments += [expression_of(given[leaf]) for leaf in leaves if leaf in inputs]
    results = instance.results()
    found = tuple_of(names(["value", "dots"]))
    builder.assign(found, call_of(inner, *arguments))

    def convert(leaf: ast.expr) -> ast.expr:
        if isinstance(leaf, ast.Name) and leaf.id in results:
            return item(name("dots"), results.index(leaf.id))
        return ast.Constant(0)

    result = function.result
    built = result.build(convert) if isinstance(result, Structure) else convert(result)
    builder.result(tuple_of([name("value"), built]))
    program.add(builder.function(entry, [*function.params, *tangents]), instance.dispatcher)
    return entry
