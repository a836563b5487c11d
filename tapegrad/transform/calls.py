"""Calls of other functions: the rule of a call, and of what it stands for.

A callee that is differentiated becomes two functions of the generated module: ``f_forward``, which
keeps what its reverse needs on the caller's tape, and ``f_reverse``, which takes it from there. A
callee that keeps nothing is called as it is in the forward pass.
"""

from __future__ import annotations

import ast
import inspect
from typing import Any

import numba
from numba.core import types

from tapegrad.transform.functions import stop_gradient
from tapegrad.transform.ir import (
    Let,
    Structure,
    constant,
    defined,
    leaves_of,
    name,
    names_in,
    reads,
    walk,
)
from tapegrad.transform.kinds import holds_array, holds_real, is_array, is_real
from tapegrad.transform.printer import show
from tapegrad.transform.rules import Passive, Rule, real_names


def function_of(kind: Any) -> Any:
    """Return the dispatcher that a value of a numba type is, or None."""
    return kind.dispatcher if isinstance(kind, types.Dispatcher) else None


def is_dispatcher(value: Any) -> bool:
    """Whether a value is a compiled numba function."""
    return hasattr(value, "py_func") and hasattr(value, "targetoptions")


def find(lowering: Any, callee: Any, expr: ast.Call, kind: Any) -> Rule | None:
    """Return the rule of the call of a numba function or a transform, None for anything else."""
    from tapegrad.transform import arrays, runtime

    if callee is stop_gradient:
        return Stopped()
    if callee is runtime.overlap or getattr(callee, "tapegrad_passive", False):
        return Passive(True)
    if callee in (runtime.push_array, runtime.pop_array):
        return Keep(lowering, expr)
    if callee in arrays.ADDITIONS:
        return Addition(lowering, expr)
    transform = getattr(callee, "_tapegrad_transform", None)
    if transform is None and not is_dispatcher(callee):
        return None
    values = bind(lowering, callee)
    kinds = tuple(lowering.type_of(value) for value in values)
    real = any(holds_real(k) for k in kinds)
    if not real and (transform is not None or not any(map(holds_array, kinds))):
        return None
    if transform is not None:
        inner = callee.plain(kinds)
        if inner is not None:
            return Call(lowering, inner, values, kinds)
        from tapegrad.transform.derivatives import changed_arguments, shared_results

        for number in changed_arguments(callee, kinds):
            if not _is_own_copy(lowering, values[number]):
                raise lowering.refuse(
                    f"{callee.py_func.__name__} writes into its argument {number}; pass a copy "
                    "(x.copy()) to differentiate the call"
                )
        if shared_results(callee, kinds):
            raise lowering.refuse(
                f"{callee.base.py_func.__name__} returns (a view of) its argument; return a copy "
                "to differentiate the call of its derivative"
            )
        return TransformCall(lowering, callee, values, kinds)
    if getattr(callee, "rule_vjp", None) is not None:
        return Ruled(lowering, callee, values, kinds)
    if getattr(callee, "rule_jvp", None) is not None:
        return ForwardRuled(lowering, callee, values, kinds)
    return Call(lowering, callee, values, kinds)


def _is_own_copy(lowering: Any, value: Any) -> bool:
    """Whether an argument is a copy that was made for one call."""
    if not isinstance(value, ast.Name):
        return False
    statements = list(walk(lowering.function.body))
    makers = [s for s in statements if isinstance(s, Let) and s.target == value.id]
    copied = any(
        isinstance(s.expr, ast.Call)
        and isinstance(s.expr.func, ast.Attribute)
        and s.expr.func.attr == "copy"
        for s in makers
    )
    return copied and sum(reads(s).count(value.id) for s in statements) == 1


def bind(lowering: Any, callee: Any) -> list[Any]:
    """Return the arguments of the call that is lowered in order, with defaults."""
    call = lowering.call

    def value_of(argument: ast.expr) -> Any:
        return lowering.value(argument) if isinstance(argument, ast.Name) else argument

    values = [value_of(argument) for argument in call.args]
    function = getattr(callee, "py_func", None)
    if function is None:
        return values
    parameters = list(inspect.signature(function).parameters.values())
    named = {k.arg: value_of(k.value) for k in call.keywords}
    found = list(values)
    for parameter in parameters[len(values) :]:
        if parameter.name in named:
            found.append(named[parameter.name])
        elif parameter.default is not parameter.empty:
            found.append(_default(lowering, callee, parameter))
    return found


def _default(lowering: Any, callee: Any, parameter: inspect.Parameter) -> Any:
    """Return what stands for an argument that a call leaves out."""

    def value_of(value: Any) -> Any:
        if isinstance(value, (int, float, bool, str, type(None))):
            return constant(value)
        if type(value) is tuple:
            return Structure(numba.typeof(value), [value_of(item) for item in value])
        raise lowering.refuse(
            f"cannot differentiate a call that leaves out {parameter.name!r}, whose default is "
            f"of type {type(value).__name__}; pass it"
        )

    return value_of(parameter.default)


class Stopped(Rule):
    """``stop_gradient(x)``, which is a copy where `x` is an array."""

    fresh = True

    def push(self, gen: Any, let: Let) -> None:
        gen.set_dot(let, None)


class Addition(Rule):
    """A call that adds an array to (chosen elements of) another, in generated code."""

    cheap = False
    calls = True

    def __init__(self, lowering: Any, expr: ast.Call) -> None:
        self.call = expr
        self._inputs = real_names([expr.args[-1]], lowering)

    def inputs(self) -> list[str]:
        return self._inputs

    def written(self) -> list[str]:
        """Return the array that is added to."""
        return [self.call.args[0].id]

    def push(self, gen: Any, let: Let) -> None:
        """Write the call, and the same one of the tangents."""
        gen.write(show(self.call))
        if not gen.is_active(self.call.args[0].id):
            return
        tangents = {n: gen.dot(n) for n in [self.call.args[0].id, *self._inputs]}
        if self._inputs and not gen.is_active(self._inputs[0]):
            return
        gen.write(show(gen.replaced(self.call, tangents)))

    def pull(self, gen: Any, let: Let) -> None:
        """Refuse: a gradient is differentiated in forward mode."""
        if gen.is_active(self.call.args[0].id):
            gen.refuse("cannot differentiate this gradient once more in reverse mode", let.line)


class Keep(Rule):
    """What puts an array onto the tape by reference, or takes it from there, in generated code.

    The tangents of what is on the tape are on a tape of their own, at the same places.
    """

    cheap = False
    calls = True

    def __init__(self, lowering: Any, expr: ast.Call) -> None:
        self.call = expr
        self.types = lowering.types
        self._inputs = real_names(expr.args, lowering)

    def inputs(self) -> list[str]:
        return self._inputs

    def shared(self, let: Let) -> list[list[str]]:
        """Return what shares elements: what is on the tape may be taken from it."""
        return [[n for n in (*self._inputs, *defined(let)) if self._is_real_array(n)]]

    def _is_real_array(self, identifier: str) -> bool:
        kind = self.types.get(identifier)
        return isinstance(kind, types.Array) and isinstance(kind.dtype, types.Float)

    def written(self) -> list[str]:
        """Return the tape."""
        return [self.call.args[0].id]

    def push(self, gen: Any, let: Let) -> None:
        """Write the call, and the same one of the tape of tangents."""
        gen.write(f"{let.target} = {show(self.call)}")
        if not gen.is_active(self.call.args[0].id):
            return
        names = [n for n in (*self._inputs, *defined(let)) if self._is_real_array(n)]
        dots = {n: gen.dot(n) for n in names}
        pattern = gen.replaced(ast.parse(let.target, mode="eval").body, dots)
        gen.write(f"{show(pattern)} = {show(gen.replaced(self.call, dots))}")

    def pull(self, gen: Any, let: Let) -> None:
        """Refuse: a gradient is differentiated in forward mode."""
        if gen.is_active(self.call.args[0].id):
            gen.refuse("cannot differentiate this gradient once more in reverse mode", let.line)


class Call(Rule):
    """The call of a numba function that is differentiated as well."""

    cheap = False
    calls = True

    def __init__(
        self, lowering: Any, callee: Any, values: list[Any], kinds: tuple[Any, ...]
    ) -> None:
        self.callee = callee
        self.values = values
        self.kinds = kinds
        self.types = lowering.types
        self.instance = lowering.program.instance(callee, kinds)
        self._inputs = [
            leaf.id
            for value in values
            for leaf in leaves_of(value)
            if isinstance(leaf, ast.Name) and is_real(self.types.get(leaf.id, types.none))
        ]

    @property
    def error(self) -> Any:
        """Why the callee cannot be differentiated, None if it can."""
        return self.instance.error

    def inputs(self) -> list[str]:
        return self._inputs

    def written(self) -> list[str]:
        """Return the arrays that the callee writes."""
        if self.error is not None:
            return self.arrays()
        leaves = self.leaves()
        found = [leaves[position] for position in self.instance.writes]
        return [leaf.id for leaf in found if isinstance(leaf, ast.Name)]

    def arrays(self) -> list[str]:
        """Return the arrays among the arguments."""
        return [leaf.id for leaf in self.leaves() if self._is_array(leaf)]

    def _is_array(self, leaf: Any) -> bool:
        identifier = leaf.id if isinstance(leaf, ast.Name) else leaf
        return isinstance(identifier, str) and isinstance(self.types.get(identifier), types.Array)

    def shared(self, let: Let) -> list[list[str]]:
        """Return the groups of arguments and results that may show the same elements."""
        results = [n for n in self.results(let) if self._is_array(n)]
        if self.error is not None:
            return [[*results, *self.arrays()]]
        leaves = self.leaves()
        found = []
        for made, given in self.instance.shared:
            group = [self.results(let)[k] for k in made]
            group += [leaves[k].id for k in given if self._is_array(leaves[k])]
            found.append(group)
        return found

    def leaves(self) -> list[ast.expr]:
        return [leaf for value in self.values for leaf in leaves_of(value)]

    def variant(self, gen: Any, let: Let) -> Any:
        """Return the pair of generated functions for what is known of the arguments here.

        That is which of them are active, and which arrays (of the results, too) keep their elements
        from now on.
        """
        root = gen.scopes.roots[id(let)]
        kept = tuple(
            not self._is_array(leaf)
            or gen.keeps(leaf.id if isinstance(leaf, ast.Name) else leaf, root)
            for leaf in (
                *self.leaves(),
                *(self.results(let) if self.instance.result_leaves() else ()),
            )
        )
        return gen.program.variant(
            self.instance, self.active_leaves(gen), self.same_arrays(gen), kept
        )

    def active_leaves(self, gen: Any) -> tuple[bool, ...]:
        """Return which parts of the arguments carry derivatives."""
        return tuple(
            isinstance(leaf, ast.Name) and leaf.id in self._inputs and gen.is_active(leaf.id)
            for leaf in self.leaves()
        )

    def same_arrays(self, gen: Any) -> bool:
        """Whether two arguments may be parts of one array of which one is written."""
        arrays = self.arrays()
        classes = [gen.arrays.of(array) for array in arrays]
        return bool(self.instance.writes) and len(set(classes)) < len(classes)

    def results(self, let: Let) -> list[str]:
        return [let.target] if let.leaves is None else let.leaves

    def is_differentiated(self, gen: Any, let: Let) -> bool:
        """Whether any cotangent goes into the call."""
        if self.error is not None or not any(gen.is_active(n) for n in self._inputs):
            return False
        outputs = [n for n in self.results(let) if gen.is_active(n)]
        return bool(outputs) or any(gen.is_active(n) for n in self.written())

    def pull(self, gen: Any, let: Let) -> None:
        """Write the call of the reverse function."""
        if not self.is_differentiated(gen, let):
            return
        variant = self.variant(gen, let)
        for array in self.passed(gen, let):
            gen.want(array + gen.suffix)
        arguments: list[str] = []
        for value in self.values:
            gen.read(expr_of(value))
            arguments.append(text_of(value))
        scalars: list[str] = []
        leaves = self.leaves()
        for leaf, active in zip(leaves, variant.active, strict=True):
            if not active:
                continue
            assert isinstance(leaf, ast.Name)
            if is_array(self.types[leaf.id]):
                arguments.append(gen.shadow(leaf.id))
            else:
                scalars.append(leaf.id)
        for result in self.results(let):
            kind = self.types.get(result, types.none)
            if is_real(kind) and not is_array(kind):
                arguments.append(gen.bar(result) if result in gen.has else "0.0")
        targets = [f"{n}_part" for n in scalars]
        targets = [f"{n}_{k}" for k, n in enumerate(targets)]
        if variant.uses_tape:
            gen.uses_tape = True
            arguments += ["tape", "top"]
            targets.append("top")
        call = f"{variant.reverse_name}({', '.join(arguments)})"
        if targets:
            gen.write(f"{', '.join(targets)} = {call}")
        else:
            gen.write(call)
        for scalar, target in zip(scalars, targets, strict=False):
            gen.add(scalar, target, ast.Constant(1.0))

    def passed(self, gen: Any, let: Let) -> list[str]:
        """Return the arrays whose shadows go into the forward call, or come out of it."""
        if not self.is_differentiated(gen, let):
            return []
        variant = self.variant(gen, let)
        found = self.shadowed_results(variant, let)
        if variant.takes_shadows:
            found += [n for n in self.arrays() if n in self._inputs and gen.is_active(n)]
        return found

    def shadowed_results(self, variant: Any, let: Let) -> list[str]:
        """Return the arrays of the result whose shadows the callee makes."""
        results = self.real_results(let)
        return [n for n, made in zip(results, variant.shadowed, strict=True) if made]

    def write_forward(self, gen: Any, writer: Any, let: Let) -> None:
        """Write the call of the forward function, and the shadows of its results."""
        variant = self.variant(gen, let) if self.is_differentiated(gen, let) else None
        returned = [] if variant is None else self.shadowed_results(variant, let)
        if variant is None or not (variant.uses_tape or returned):
            writer(f"{let.target} = {show(let.expr)}")
        else:
            arguments = [text_of(value) for value in self.values]
            if variant.takes_shadows:
                active = zip(self.leaves(), variant.active, strict=True)
                arguments += [
                    leaf.id + gen.suffix for leaf, on in active if on and self._is_array(leaf)
                ]
            targets = [let.target, *(n + gen.suffix for n in returned)]
            if variant.uses_tape:
                arguments += ["tape", "top"]
                targets += ["tape", "top"]
            writer(f"{', '.join(targets)} = {variant.forward_name}({', '.join(arguments)})")
        for result in self.results(let):
            if result not in returned and gen.is_wanted(result):
                writer(f"{result}{gen.suffix} = np.zeros_like({result})")

    def uses_tape(self, gen: Any, let: Let) -> bool:
        """Whether the call keeps anything on the tape."""
        return self.is_differentiated(gen, let) and self.variant(gen, let).uses_tape

    def push(self, gen: Any, let: Let) -> None:
        """Write the call of the function that computes tangents as well."""
        if self.error is not None or not any(map(gen.is_active, self._inputs)):
            gen.write(f"{let.target} = {show(let.expr)}")
            self.zero_results(gen, let)
            return
        active = self.active_leaves(gen)
        function = gen.program.tangent(self.instance, active)
        arguments = [text_of(value) for value in self.values]
        for leaf, is_active in zip(self.leaves(), active, strict=True):
            if is_active:
                arguments.append(gen.dot(leaf.id))
        dots = [gen.dot(n) for n in self.real_results(let)]
        pattern = f"({', '.join(dots)}{',' if dots else ''})"
        gen.write(f"{let.target}, {pattern} = {function}({', '.join(arguments)})")

    def real_results(self, let: Let) -> list[str]:
        return [n for n in self.results(let) if is_real(self.types.get(n, types.none))]

    def zero_results(self, gen: Any, let: Let) -> None:
        for result in self.real_results(let):
            if gen.is_active(result):
                gen.write(f"{gen.dot(result)} = {gen.zero(result)}")


class ForwardRuled(Call):
    """The call of a function with a forward rule of its own; reverse mode is that of its source."""

    error = None  # of the source, which forward mode does not need

    def __init__(
        self, lowering: Any, callee: Any, values: list[Any], kinds: tuple[Any, ...]
    ) -> None:
        super().__init__(lowering, callee, values, kinds)
        self.jvp = self.static(lowering, "jvp")

    def static(self, lowering: Any, kind: str) -> str | None:
        """Return the name of a rule in the generated module, None if there is no such rule."""
        rule = getattr(self.callee, f"rule_{kind}")
        if rule is None:
            return None
        origin = lowering.program.origin_of(self.callee)
        text = f"{self.callee.__name__}_{kind}"
        return lowering.program.static(text, rule, ("attribute", origin, f"rule_{kind}"))

    def pull(self, gen: Any, let: Let) -> None:
        if self.instance.error is not None and self.is_differentiated(gen, let):
            raise self.instance.error
        super().pull(gen, let)

    def push(self, gen: Any, let: Let) -> None:
        if self.jvp is None:
            if self.instance.error is not None and any(map(gen.is_active, self._inputs)):
                raise self.instance.error
            super().push(gen, let)
            return
        gen.write(f"{let.target} = {show(let.expr)}")
        if any(map(gen.is_active, self.results(let))):
            arguments = [text_of(value) for value in self.values]
            for value in self.values:
                if isinstance(value, Structure):
                    arguments.append(show(value.build(lambda leaf: name(gen.tangent(leaf)))))
                else:
                    arguments.append(gen.tangent(value))
            arguments.append(let.target)
            dots = gen.dot(let.target) if let.leaves is None else _dotted(let, gen)
            gen.write(f"{dots} = {self.jvp}({', '.join(arguments)})")


class Ruled(ForwardRuled):
    """The call of a function with a reverse rule of its own."""

    def __init__(
        self, lowering: Any, callee: Any, values: list[Any], kinds: tuple[Any, ...]
    ) -> None:
        super().__init__(lowering, callee, values, kinds)
        self.vjp = self.static(lowering, "vjp")

    def contents(self, let: Let) -> list[str]:
        leaves = [leaf.id for leaf in self.leaves() if isinstance(leaf, ast.Name)]
        return [*leaves, *self.results(let)]

    def is_differentiated(self, gen: Any, let: Let) -> bool:
        found = super().is_differentiated(gen, let)
        instance = self.instance
        if found and instance.error is None and (instance.writes or instance.shared):
            what = "writes into its argument" if instance.writes else "returns its argument"
            gen.refuse(
                f"{self.callee.py_func.__name__} has a rule of its own and {what}; let it work on "
                "a copy",
                let.line,
            )
        return found

    def passed(self, gen: Any, let: Let) -> list[str]:
        return []

    def uses_tape(self, gen: Any, let: Let) -> bool:
        return False

    def write_forward(self, gen: Any, writer: Any, let: Let) -> None:
        writer(f"{let.target} = {show(let.expr)}")
        gen.write_shadows(writer, let)

    def pull(self, gen: Any, let: Let) -> None:
        if not self.is_differentiated(gen, let):
            return
        arguments = []
        for value in self.values:
            expr = self.read(expr_of(value))
            gen.read(expr)
            arguments.append(show(expr))
        pattern = ast.parse(let.target, mode="eval").body
        gen.read(self.read(pattern))
        arguments.append(show(self.read(pattern)))

        def cotangent(node: ast.expr) -> str:
            if isinstance(node, ast.Tuple):
                return f"({', '.join(map(cotangent, node.elts))},)"
            assert isinstance(node, ast.Name)
            kind = self.types.get(node.id, types.none)
            if is_array(kind):
                return gen.shadow(node.id)
            return gen.bar(node.id) if is_real(kind) and node.id in gen.has else "0.0"

        found = f"cotangents_{gen.number()}"
        gen.write(f"{found} = {self.vjp}({', '.join([*arguments, cotangent(pattern)])})")
        for position, value in enumerate(self.values):
            for path, leaf in _paths(value, f"{found}[{position}]"):
                if isinstance(leaf, ast.Name) and leaf.id in self._inputs:
                    if gen.is_active(leaf.id):
                        if is_array(self.types[leaf.id]):
                            gen.add_array(leaf.id, name(path))
                        else:
                            gen.add(leaf.id, path, ast.Constant(1.0))


class TransformCall(Rule):
    """The call of a derivative that was made with `tapegrad.grad` and its siblings."""

    cheap = False
    calls = True
    fresh = True

    def __init__(
        self, lowering: Any, callee: Any, values: list[Any], kinds: tuple[Any, ...]
    ) -> None:
        self.callee = callee
        self.values = values
        self.kinds = kinds
        self.types = lowering.types
        self._inputs = [
            leaf.id
            for value in values
            for leaf in leaves_of(value)
            if isinstance(leaf, ast.Name) and is_real(self.types.get(leaf.id, types.none))
        ]

    def inputs(self) -> list[str]:
        return self._inputs

    def results(self, let: Let) -> list[str]:
        return [let.target] if let.leaves is None else let.leaves

    def contents(self, let: Let) -> list[str]:
        return [leaf.id for value in self.values for leaf in leaves_of(value) if names_in(leaf)]

    def written(self) -> list[str]:
        """Return the arrays that the callee writes: copies of their own."""
        from tapegrad.transform.derivatives import changed_arguments

        changed = changed_arguments(self.callee, self.kinds)
        return [self.values[k].id for k in changed]

    def cotangents(self, gen: Any, let: Let) -> list[ast.expr]:
        """Return the cotangents of the value, if it is returned, and of each gradient."""

        def one(node: ast.expr, kind: Any) -> ast.expr:
            if isinstance(node, ast.Tuple):
                items = zip(node.elts, kind, strict=True)
                return Structure(kind, [one(*item) for item in items]).build(lambda leaf: leaf)
            assert isinstance(node, ast.Name)
            if is_array(self.types[node.id]):
                return name(gen.shadow(node.id))
            return name(gen.bar(node.id) if node.id in gen.has else "0.0")

        returns = self.callee.returns
        parts = [ast.parse(let.target, mode="eval").body]
        kinds = [self.kinds[number] for number in self.callee.numbers]
        if returns.startswith("value"):
            parts = parts[0].elts
            kinds.insert(0, types.float64)
        if returns.endswith("gradients"):
            parts = [*parts[:-1], *parts[-1].elts]
        return [one(part, kind) for part, kind in zip(parts, kinds, strict=True)]

    def active_positions(self, gen: Any) -> tuple[int, ...]:
        """Return the numbers of the arguments that carry derivatives."""
        return tuple(
            position
            for position, value in enumerate(self.values)
            if any(gen.is_active(n) for n in self.real_leaves(value))
        )

    def real_leaves(self, value: Any) -> list[str]:
        return [
            leaf.id
            for leaf in leaves_of(value)
            if isinstance(leaf, ast.Name) and leaf.id in self._inputs
        ]

    def push(self, gen: Any, let: Let) -> None:
        """Write the call of the derivative of the derivative."""
        positions = self.active_positions(gen)
        if not positions:
            gen.write(f"{let.target} = {show(let.expr)}")
            for result in self.results(let):
                if gen.is_active(result):
                    gen.write(f"{gen.dot(result)} = {gen.zero(result)}")
            return
        pushed = gen.program.derived(self.callee, "pushed", positions)
        arguments = [text_of(value) for value in self.values]
        for position in positions:
            value = self.values[position]
            if isinstance(value, Structure):
                arguments.append(show(value.build(lambda leaf: name(gen.tangent(leaf)))))
            else:
                arguments.append(gen.tangent(value))
        pattern = let.target
        dots = _dotted(let, gen)
        gen.write(f"{pattern}, {dots} = {pushed}({', '.join(arguments)})")

    def pull(self, gen: Any, let: Let) -> None:
        """Write the call that gives the cotangents: a Hessian is symmetric."""
        positions = self.active_positions(gen)
        results = [n for n in self.results(let) if is_real(self.types.get(n, types.none))]
        live = [n for n in results if gen.is_active(n)]
        if not positions or not live:
            return
        if not any(n in gen.has or is_array(self.types[n]) for n in live):
            return
        pulled = gen.program.derived(self.callee, "pulled", positions)
        if pulled is None:
            gen.refuse(
                f"cannot differentiate {self.callee!r} in reverse mode here; differentiate the "
                "outer function in forward mode (tg.jvp, or tg.jacobian of few arguments)",
                let.line,
            )
        arguments = []
        for value in self.values:
            expr = self.read(expr_of(value))
            gen.read(expr)
            arguments.append(show(expr))
        arguments += [show(g) for g in self.cotangents(gen, let)]
        found = f"cotangents_{gen.number()}"
        gen.write(f"{found} = {pulled}({', '.join(arguments)})")
        for number, position in enumerate(positions):
            for path, leaf in _paths(self.values[position], f"{found}[{number}]"):
                if not isinstance(leaf, ast.Name) or leaf.id not in self._inputs:
                    continue
                if not gen.is_active(leaf.id):
                    continue
                if is_array(self.types[leaf.id]):
                    gen.add_array(leaf.id, name(path))
                else:
                    gen.add(leaf.id, path, ast.Constant(1.0))


def expr_of(value: Any) -> ast.expr:
    """Return the expression of an argument."""
    return value.build(lambda leaf: leaf) if isinstance(value, Structure) else value


def text_of(value: Any) -> str:
    """Return the text of an argument."""
    return show(expr_of(value))


def _paths(value: Any, path: str) -> list[tuple[str, Any]]:
    """Return the atoms of a value with the text that takes them out of one like it."""
    if not isinstance(value, Structure):
        return [(path, value)]
    return [found for k, item in enumerate(value.items) for found in _paths(item, f"{path}[{k}]")]


def _dotted(let: Let, gen: Any) -> str:
    """Return the pattern that takes the tangents of a result apart."""
    pattern = ast.parse(let.target, mode="eval").body

    class Dot(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return name(gen.dot(node.id))

    return ast.unparse(Dot().visit(pattern))
