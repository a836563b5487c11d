"""A generated module: the functions that one derivative needs, and how they are assembled."""

from __future__ import annotations

import ast
import builtins
from typing import Any

import numpy as np
from numba.core import types

from tapegrad.transform.codegen.analysis import Arrays, leaf_names, unused_suffix
from tapegrad.transform.codegen.forward import Forward
from tapegrad.transform.codegen.instance import (
    Instance,
    check_overlaps,
    held_arrays,
    overlap_checks,
    paths,
)
from tapegrad.transform.codegen.keeping import is_short
from tapegrad.transform.codegen.mode import Mode
from tapegrad.transform.codegen.reverse import Reverse
from tapegrad.transform.codegen.reverse_state import ReverseState
from tapegrad.transform.codegen.store import namespace
from tapegrad.transform.declared import Declared
from tapegrad.transform.errors import TransformError
from tapegrad.transform.frontend import optionals
from tapegrad.transform.frontend.expressions import RESERVED
from tapegrad.transform.frontend.inference import infer
from tapegrad.transform.frontend.normalize import normalize
from tapegrad.transform.frontend.pruning import prune
from tapegrad.transform.frontend.source import Source
from tapegrad.transform.ir import FunctionIR, Let, Loop, Structure, name, take, walk
from tapegrad.transform.kinds import (
    holds_instance,
    is_array,
    is_real,
    shape_checks,
    zero_text,
)
from tapegrad.transform.lowering.fusion import fuse
from tapegrad.transform.lowering.lower import Lowering
from tapegrad.transform.printer import Writer, print_function, show, show_result
from tapegrad.transform.rules.base import Held
from tapegrad.transform.rules.calls import Call

# Copies of the tangent of an array that is written to, by its layout. Views of an array and of its
# tangent are the same expressions, which copy for some layouts.
_COPY = {"C": ".copy()", "F": ".T.copy().T", "A": ".copy()[..., ::1]"}


class Variant:
    """The forward and reverse functions of an instance for one choice of active arguments."""

    def __init__(self, active: tuple[bool, ...], forward_name: str, reverse_name: str) -> None:
        self.active = active
        self.forward_name = forward_name
        self.reverse_name = reverse_name
        self.shadowed: list[bool] = []  # real results whose shadows the forward function returns
        self.written = False
        # assumed until they are known, for functions that call themselves
        self.uses_tape = True  # it keeps values
        self.takes_shadows = True  # its forward function takes the shadows of its arguments


class Program:
    """The functions of a generated module."""

    def __init__(self) -> None:
        self.instances: dict[Any, Instance] = {}
        self.variants: dict[Any, Variant] = {}
        self.tangents: dict[Any, str] = {}
        self.texts: list[tuple[str, Any]] = []  # each function, with what it was made from
        # for the verifier: forward functions that are not called, and the primal of each function
        self.unwritten: list[str] = []
        self.primals: dict[str, tuple[str, set[str]]] = {}
        self.modes: dict[str, tuple[Mode, Any]] = {}  # see `note_mode`
        self.statics: dict[str, Any] = {}
        self.origins: dict[str, Any] = {}  # how to find each of them in another process
        self.taken: set[str] = set(RESERVED)
        self._todo: list[Instance] = []

    def note_primal(self, identifier: str, function: FunctionIR) -> None:
        """Keep what the verifier has to know of the function that generated code is made from."""
        arrays = {name for name, kind in function.types.items() if is_array(kind)}
        self.primals[identifier] = print_function(function, identifier), arrays

    def note_mode(self, identifier: str, mode: Mode, unit: Any) -> None:
        """Keep what is known of a generated function; a unit is forward and reverse code."""
        self.modes[identifier] = mode, unit

    def fresh(self, stem: str) -> str:
        """Return an unused name of the module."""
        return take(stem, self.taken)

    def write(self, text: str, dispatcher: Any) -> None:
        """Add a function that was made from a compiled one and inherits its options."""
        self.texts.append((text, dispatcher))

    def instance(self, dispatcher: Any, kinds: tuple[Any, ...]) -> Instance:
        """Return the instance for some argument types; it is analysed later."""
        key = (dispatcher, kinds)
        if key not in self.instances:
            self.instances[key] = Instance(dispatcher, kinds)
            self._todo.append(self.instances[key])
        return self.instances[key]

    def analyse(self) -> None:
        """Lower all instances and find their effects."""
        while self._todo:
            instance = self._todo.pop()
            try:
                self._lower(instance)
            except TransformError as error:
                if not self.instances or instance is next(iter(self.instances.values())):
                    raise
                instance.error = error
        known = [i for i in self.instances.values() if i.error is None]
        while any(instance.find_effects() for instance in known):
            pass
        for instance in known:
            check_overlaps(instance)
        while any(map(self._find_disturbed, reversed(known))):  # callees first
            pass

    def _find_disturbed(self, instance: Instance) -> bool:
        """Refuse a function that changes what a class instance holds; return whether it does.

        Values read from instances are assumed not to change.
        """
        if instance.error is not None:
            return False
        function = instance.function
        for statement in walk(function.body):
            rule = statement.rule if isinstance(statement, Let) else None
            error = None
            if isinstance(rule, Call) and any(map(holds_instance, rule.kinds)):
                error = rule.error
            elif isinstance(rule, Held) and instance.arrays.is_stored(statement.target):
                error = TransformError(
                    "cannot differentiate a function that writes into an array that an instance of "
                    "a class holds; write into a copy, or pass the array as an argument",
                    function.source,
                    instance.arrays.store_line(function.body, statement.target),
                )
            if error is not None:
                if instance is next(iter(self.instances.values())):
                    raise error
                instance.error = error
                return True
        return False

    def _lower(self, instance: Instance) -> None:
        """Lower one instance to the form that is differentiated."""
        source = Source(instance.dispatcher.py_func)
        given = instance.kinds
        prune(source, given)
        function, kinds, result = normalize(source, lambda form: infer(form, given))
        function.types = dict(kinds)
        if not runs_in_parallel(instance.dispatcher):
            for statement in walk(function.body):
                if isinstance(statement, Loop):
                    statement.parallel = False
        Declared(instance.dispatcher).apply(function, given, result)
        for param, kind in zip(function.params, given, strict=True):
            function.types[param] = types.unliteral(kind)
        optionals.split(function)
        fuse(function)
        lowering = Lowering(function, self)
        instance.function = lowering.run()
        instance.params = [lowering.parts.get(param, name(param)) for param in function.params]

    def variant(
        self,
        instance: Instance,
        active: tuple[bool, ...],
        same: bool,
        kept: tuple[bool, ...],
    ) -> Variant:
        """Return the forward and reverse functions of an instance, generating them at first use."""
        key = (id(instance), active, same, kept)
        found = self.variants.get(key)
        if found is not None:
            found.written = True  # its assumptions are now in use
            return found
        stem = instance.function.name
        found = Variant(active, self.fresh(f"{stem}_forward"), self.fresh(f"{stem}_reverse"))
        self.variants[key] = found
        write_split(self, instance, found, same, kept)
        return found

    def tangent(self, instance: Instance, active: tuple[bool, ...]) -> str:
        """Return the function that computes tangents as well, generating it at first use."""
        key = (id(instance), active)
        if key not in self.tangents:
            self.tangents[key] = self.fresh(f"{instance.function.name}_tangent")
            write_tangent(self, instance, active, self.tangents[key])
        return self.tangents[key]

    def static(self, text: str, value: Any, origin: Any) -> str:
        """Return the name in this module of an object that a function refers to as `text`."""
        texts = [text]
        if own := getattr(value, "__name__", ""):  # it may have been imported by name
            texts += [f"{module}.{own}" for module in ("math", "np", "np.linalg")]
        for found in texts:
            if known(found, value):
                return found
        stem = "".join(c if c.isalnum() else "_" for c in text)
        # local variables of functions have single underscores before numbers
        for found in [stem, *(f"{stem}__{k}" for k in range(1, len(self.statics) + 2))]:
            if found not in self.statics and found in self.taken:
                continue
            if self.statics.get(found, value) is value:
                break
        self.taken.add(found)
        self.statics[found] = value
        self.origins.setdefault(found, origin)
        return found

    def derived(self, base: Any, kind: str, positions: tuple[int, ...]) -> str:
        """Return the name of a derivative of a derivative."""
        made = getattr(base, kind)(positions)
        return self.static(kind, made, (kind, self.origin_of(base), positions))

    def origin_of(self, value: Any) -> Any:
        """Return how to find an object of the module in another process, None if unknown."""
        return next((self.origins.get(t) for t, v in self.statics.items() if v is value), None)


def known(text: str, value: Any) -> bool:
    """Whether a dotted name means an object in every generated module."""
    first, *rest = text.split(".")
    found = namespace({}).get(first, getattr(builtins, first, None))
    for attribute in rest:
        found = getattr(found, attribute, None)
    return found is value


def runs_in_parallel(dispatcher: Any) -> bool:
    """Whether ``prange`` loops of a function may run in parallel."""
    if "_made_for" in dispatcher.py_func.__globals__:  # generated, from a function where they may
        return True
    return bool(dispatcher.targetoptions.get("parallel"))


def write_tangent(
    program: Program, instance: Instance, active: tuple[bool, ...], identifier: str
) -> None:
    """Write the function that computes the tangents of an instance."""
    function = instance.function
    leaves = instance.leaves()
    inputs = [leaf for leaf, is_active in zip(leaves, active, strict=True) if is_active]
    kinds = function.types
    changed = [n for n in inputs if is_array(kinds[n]) and instance.arrays.is_stored(n)]
    results = instance.results()
    varied = [*inputs, *instance.joined_results()]
    gen = Forward(program, function, instance.arrays, inputs, varied, [*results, *changed])
    writer = gen.writer
    parameters = [*function.params, *(gen.dot(leaf) for leaf in inputs)]
    writer.open(f"def {identifier}({', '.join(parameters)}):")
    for line in inner_arrays(gen, instance, inputs):
        writer(line)
    gen.block(function.body)
    dots = [gen.tangent(name(result)) for result in results]
    writer(f"return {show_result(function)}, ({', '.join(dots)}{',' if dots else ''})")
    program.note_primal(identifier, function)
    program.note_mode(identifier, gen, identifier)
    program.write(writer.text(), instance.dispatcher)


def inner_arrays(gen: Any, instance: Instance, inputs: list[str]) -> list[str]:
    """Return the lines that make tangents of outside arrays that are given none.

    The function writes such arrays and reads them again. Parts of tuples get their tangents where
    they are named.
    """
    function = instance.function
    return [
        f"{gen.dot(array)} = np.zeros_like({array})"
        for array in (*function.params, *function.statics)
        if array not in inputs and is_array(function.types.get(array)) and gen.is_active(array)
    ]


def write_pushforward(program: Program, instance: Instance, params: list[int]) -> str:
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
    writer = Writer()
    writer.open(f"def {entry}({', '.join([*function.params, *tangents])}):")
    for line in overlap_checks(instance):
        writer(line)
    leaves = instance.leaves()
    changed = {leaves[position] for position in instance.writes}
    given: dict[str, str] = {}  # text of the tangent of each part
    for number, text, value in zip(params, tangents, chosen, strict=True):
        for line in shape_checks(text, function.params[number], instance.kinds[number]):
            writer(line)
        for path, leaf in paths(value, text):
            copy = _COPY[getattr(function.types[leaf], "layout", "C")]
            given[leaf] = path + copy if leaf in changed else path
    arguments = [*function.params, *(given[leaf] for leaf in leaves if leaf in inputs)]
    results = instance.results()
    writer(f"value, dots = {inner}({', '.join(arguments)})")

    def convert(leaf: ast.expr) -> ast.expr:
        if isinstance(leaf, ast.Name) and leaf.id in results:
            return name(f"dots[{results.index(leaf.id)}]")
        return ast.Constant(0)

    result = function.result
    built = result.build(convert) if isinstance(result, Structure) else convert(result)
    writer(f"return value, {show(built)}")
    program.write(writer.text(), instance.dispatcher)
    return entry


def write_split(
    program: Program, instance: Instance, variant: Variant, same: bool, kept: tuple[bool, ...]
) -> None:
    """Write the forward and the reverse function of an instance."""
    function = instance.function
    arrays = Arrays(function)
    leaves = instance.leaves()
    if same:
        whole = [leaf for leaf in leaves if is_array(function.types.get(leaf))]
        for dtype in {elements(function.types[leaf]) for leaf in whole}:
            arrays.unite([leaf for leaf in whole if elements(function.types[leaf]) == dtype])
    inputs = [leaf for leaf, active in zip(leaves, variant.active, strict=True) if active]
    given = [leaf for leaf in inputs if is_array(function.types[leaf])]
    results = instance.results()
    outputs = [*results, *(leaf for leaf in given if arrays.is_stored(leaf))]
    varied = [*inputs, *instance.joined_results()]
    ends = [*leaves, *(show(leaf) for leaf in instance.result_leaves())]
    unstable = {arrays.of(n) for n, is_kept in zip(ends, kept, strict=True) if not is_kept}
    # by position: one number may be returned twice
    seeds = [
        (n, seed_name(function, k))
        for k, n in enumerate(results)
        if not is_array(function.types[n])
    ]

    def reversed_with(recomputes: bool) -> tuple[ReverseState, Reverse, Writer, list[str]]:
        gen = ReverseState(program, function, arrays, varied, outputs, unstable, split=True)
        gen.recomputes = recomputes
        returned = [n for n in results if is_array(function.types[n]) and gen.is_active(n)]
        variant.shadowed = [n in returned for n in results]
        reverse = Reverse(gen, given, returned)

        def before() -> None:
            for result, seed in seeds:
                gen.add(result, seed, ast.Constant(1.0))

        code, _ = reverse.region(gen.top, before)
        gen.uses_tape |= reverse.keeping.keeps_inside(function.body) or bool(gen.top.stored)
        return gen, reverse, code, returned

    gen, reverse, code, returned = reversed_with(is_short(function))
    if gen.recomputes and gen.uses_tape:
        gen, reverse, code, returned = reversed_with(False)
    scalars = [leaf for leaf in inputs if not is_array(function.types[leaf])]
    if not variant.written:
        variant.uses_tape = gen.uses_tape
        variant.takes_shadows = any(map(reverse.shadows.is_wanted, given))
    writer = Writer()
    shadows = [leaf + gen.suffix for leaf in given]
    tape = ["tape", "top"] if variant.uses_tape else []
    parameters = [*function.params, *shadows, *(seed for _, seed in seeds), *tape]
    writer.open(f"def {variant.reverse_name}({', '.join(parameters)}):")
    for leaf in scalars:
        writer(f"{gen.bar(leaf)} = {gen.zero(leaf)}")
    writer.extend(code)
    found = [gen.bar(leaf) for leaf in scalars] + tape[1:]
    writer(f"return {', '.join(found)}" if found else "return None")
    program.write(writer.text(), instance.dispatcher)
    writer = Writer()
    parameters = [*function.params, *(shadows if variant.takes_shadows else []), *tape]
    writer.open(f"def {variant.forward_name}({', '.join(parameters)}):")
    reverse.shadows.write_inner(writer, instance.paths())
    reverse.forward.write(writer, function.body)
    found = [show_result(function), *(n + gen.suffix for n in returned), *tape]
    writer(f"return {', '.join(found)}")
    program.note_primal(variant.forward_name, function)
    gen.types.update((seed, function.types[result]) for result, seed in seeds)
    for identifier in (variant.forward_name, variant.reverse_name):
        program.note_mode(identifier, gen, variant)
    if variant.uses_tape or returned:
        program.write(writer.text(), instance.dispatcher)
    else:  # never called
        program.unwritten.append(writer.text())


def elements(kind: Any) -> Any:
    """Return the real type of the elements of an array, or of their real and imaginary parts."""
    return getattr(kind.dtype, "underlying_float", kind.dtype)


def seed_name(function: FunctionIR, position: int) -> str:
    """Return the name of the cotangent of a part of the result."""
    return f"g{unused_suffix('_seed', function.types)}_{position}"


def write_pullback(
    program: Program,
    instance: Instance,
    params: list[int],
    seeds: int,
    returns: str,
    out: str = "",
) -> str:
    """Write the function from arguments to a gradient, and return its name.

    Parameters
    ----------
    program, instance
        The module, and the function to differentiate.
    params
        Positions of the arguments to differentiate with respect to.
    seeds
        How many cotangents of the result are parameters as well; with 0, the cotangent of the only
        result is 1.
    returns
        ``gradient`` (of the only argument) or ``gradients`` (a tuple), prefixed with ``value, `` to
        return the value as well.
    out
        The name of the parameter with the arrays to write the gradient to, if there is one.
    """
    function = instance.function
    results = instance.results()
    inputs = [
        leaf
        for k in params
        for leaf in leaf_names(instance.params[k])
        if is_real(function.types.get(leaf, types.none))
    ]
    gen = ReverseState(program, function, instance.arrays, inputs, results, split=False)
    given = [leaf for leaf in inputs if is_array(function.types[leaf])]
    reverse = Reverse(gen, given, [])
    starts = [f"{gen.bar(leaf)} = {gen.zero(leaf)}" for leaf in inputs if leaf not in given]
    entry = program.fresh(f"{function.name}_{'pullback' if seeds else 'gradient'}")
    parameters = list(function.params)
    if seeds:
        parameters += [seed_name(function, k) for k in range(len(results))]
    if out:
        while out in function.types:
            out += "_"
        parameters.append(out)

    def before() -> None:
        for position, result in enumerate(results):
            if not gen.is_active(result):
                continue
            seed = seed_name(function, position) if seeds else "1.0"
            if is_array(function.types[result]):
                for line in shape_checks(seed, result, function.types[result]) if seeds else []:
                    gen.write(line)
                gen.add_array(result, name(seed))
            else:
                gen.add(result, seed, ast.Constant(1.0))

    code, _ = reverse.combined(gen.top, before, starts)
    writer = Writer()
    writer.open(f"def {entry}({', '.join(parameters)}):")
    uses_tape = gen.uses_tape or reverse.keeping.keeps_inside(function.body)
    if uses_tape:
        writer("tape = runtime.take_tape()")
        writer("top = 0")
    for line in overlap_checks(instance):
        writer(line)
    texts = instance.paths()
    buffers: dict[str, str] = {}
    if out:
        is_tuple = returns.endswith("gradients")
        for number, k in enumerate(params):
            found = paths(instance.params[k], f"{out}[{number}]" if is_tuple else out)
            buffers.update((leaf, path) for path, leaf in found if leaf in given)
        outside = [text for text, value in program.statics.items() if isinstance(value, np.ndarray)]
        for line in buffer_checks(instance, buffers, outside):
            writer(line)
    for leaf in given:
        zeros = f"runtime.cleared({buffers[leaf]})" if out else f"np.zeros_like({texts[leaf]})"
        writer(f"{leaf}{gen.suffix} = {zeros}")
    reverse.shadows.write_inner(writer, texts)
    writer.extend(code)
    grads = [gradient_text(instance.params[k], inputs, function, gen.bar) for k in params]
    if uses_tape:
        writer("runtime.give_tape(tape)")
    program.note_primal(entry, function)
    program.note_mode(entry, gen, entry)
    gradient = grads[0] if returns.endswith("gradient") else f"({', '.join(grads)},)"
    value = f"{show_result(function)}, " if returns.startswith("value") else ""
    writer(f"return {value}{gradient}")
    program.write(writer.text(), instance.dispatcher)
    return entry


def buffer_checks(instance: Instance, buffers: dict[str, str], outside: list[str]) -> list[str]:
    """Return the lines that refuse buffers for the gradient with other shapes, or that overlap.

    They are compared with the arguments, with arrays from `outside`, and with each other.
    """
    kinds, texts = instance.function.types, instance.paths()
    lines: list[str] = []
    others = [(n, texts[n]) for n in instance.leaves() if is_array(kinds.get(n))]
    taken = [*(text for _, text in others), *held_arrays(instance), *outside]
    for leaf, buffer in buffers.items():
        lines += shape_checks(buffer, texts[leaf], kinds[leaf])
        for other in taken:
            lines.append(f"if runtime.overlap({buffer}, {other}):")
            text = f"{buffer} shares elements with {other}; pass an array of its own"
            lines.append(f"    raise ValueError({text!r})")
        taken.append(buffer)
    return lines


def gradient_text(value: Any, inputs: list[str], function: FunctionIR, bar_of: Any) -> str:
    """Return the text of the gradient of an argument, in the structure of the argument."""

    def convert(leaf: ast.expr) -> ast.expr:
        assert isinstance(leaf, ast.Name)
        kind = function.types[leaf.id]
        if leaf.id not in inputs:
            return name(f"np.zeros_like({leaf.id})" if is_array(kind) else zero_text(kind))
        bar = name(bar_of(leaf.id))
        if kind in (types.float32, types.complex64):
            return ast.Call(name(f"np.{kind}"), [bar], [])
        return bar

    return show(value.build(convert) if isinstance(value, Structure) else convert(value))
