"""Derivatives of numba functions, as numba functions.

Each of them is a numba dispatcher whose compilation first writes source: for the types of the
arguments it generates a module (or finds it on disk) and compiles the function that stands in it.
So it is called from Python and from compiled code like any other numba function.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import warnings
from typing import Any

from numba.core import sigutils, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import OmittedArg
from numba.core.errors import NumbaError, NumbaWarning
from numba.core.registry import CPUDispatcher
from numba.core.typing.typeof import Purpose, typeof

from tapegrad.kernels import native
from tapegrad.tensor import Tensor
from tapegrad.transform import store
from tapegrad.transform.analysis import leaf_names
from tapegrad.transform.errors import TransformError
from tapegrad.transform.fingerprint import Fingerprint
from tapegrad.transform.program import Instance, Program, write_pullback, write_pushforward
from tapegrad.transform.stubs import stub

_OPTIONS = ("error_model", "boundscheck", "nogil")


class Recording(CPUDispatcher):
    """A numba function that records itself when it is called with tensors."""

    def typeof_pyval(self, val: Any) -> Any:
        """Return the numba type of an argument; that of a tensor is found without a search."""
        if isinstance(val, Tensor):
            self._types_active_call.add(types.pyobject)
            return types.pyobject
        return super().typeof_pyval(val)

    def _compile_for_args(self, *args: Any, **kws: Any) -> Any:
        # what numba calls for arguments that it has no compiled code for, to get what it calls then
        from tapegrad.transform import recording

        if recording.has_tensors((*args, *kws.values())):
            self._types_active_call.clear()
            return functools.partial(recording.record, self)
        found = super()._compile_for_args(*args, **kws)
        self.enter(args)
        return found

    def enter(self, args: tuple[Any, ...]) -> bool:
        """Take note of the first call from Python with arguments of some types.

        Returns whether numba finds the compiled code itself from now on.
        """
        return True


class Derivative(Recording):
    """Base of the derivatives.

    Parameters
    ----------
    base
        What it is a derivative of: a numba function or another derivative.
    label
        Added to the name of the base.
    extra
        Names of arguments after those of the base.
    """

    _tapegrad_transform = True

    def __init__(self, base: Any, label: str, extra: tuple[str, ...] = ()) -> None:
        self.base = base
        self.label = label
        self.added = len(extra)
        super().__init__(
            stub(base.py_func, f"{base.py_func.__name__}_{label}", extra),
            targetoptions={"nopython": True, **options(base)},
        )
        self._implementations: dict[Any, Any] = {}
        self._entered: set[Any] = set()

    def spec(self) -> tuple[Any, ...]:
        """Return what distinguishes it from other derivatives of the same base."""
        raise NotImplementedError

    def base_kinds(self, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the types of the arguments that the base takes."""
        return kinds[: len(inspect.signature(self.base.py_func).parameters)]

    def generate(self, program: Program, kinds: tuple[Any, ...]) -> str:
        """Write it for the types of its arguments; return the name of the function."""
        raise NotImplementedError

    def _tapegrad_recipe(self) -> tuple[Any, ...]:
        return (type(self).__name__, self.spec(), self.base)

    def compile(self, sig: Any) -> Any:
        """Compile it for a signature."""
        arguments, _ = sigutils.normalize_signature(sig)
        arguments = tuple(arguments)
        found = self.overloads.get(arguments)
        if found is not None:
            return found.entry_point
        with global_compiler_lock, warnings.catch_warnings():
            # functions that are passed as arguments keep numba from writing to its cache
            warnings.filterwarnings("ignore", "Cannot cache compiled function", NumbaWarning)
            inner = self.implementation(arguments)
            try:
                inner.compile(arguments)
            except NumbaError as error:
                raise TransformError(
                    f"numba cannot compile {self.py_func.__name__} for "
                    f"({', '.join(map(str, arguments))}): {error}"
                ) from None
            compiled = inner.overloads[arguments]
            if arguments not in self.overloads:
                self.add_overload(compiled)
        return compiled.entry_point

    def add_overload(self, compiled: Any) -> None:
        """Keep compiled code; calls from Python have it after their first one."""
        self.overloads[tuple(compiled.signature.args)] = compiled

    def enter(self, args: tuple[Any, ...]) -> bool:
        """Check the derivative in its first call, if that is asked for."""
        from tapegrad.transform import checking

        kinds = tuple(
            types.Omitted(a.value) if isinstance(a, OmittedArg) else typeof(a, Purpose.argument)
            for a in args
        )
        if kinds in self._entered:
            return True
        if not checking.passes(self, args):
            return False
        self.compile(kinds)
        super().add_overload(self.overloads[kinds])
        self._entered.add(kinds)
        return True

    def implementation(self, arguments: tuple[Any, ...]) -> Any:
        """Return the generated numba function for the types of the arguments."""
        kinds = tuple(types.unliteral(kind) for kind in arguments)
        found = self._implementations.get(kinds)
        if found is None:
            found = self._implementations[kinds] = self._load(kinds)
        return found

    def source(self, kinds: tuple[Any, ...]) -> str:
        """Return the generated source for the types of the arguments."""
        filename = self.implementation(kinds).py_func.__code__.co_filename
        lines = linecache.getlines(filename)[1:]  # without the line for the machine
        return "".join(lines).removesuffix("# end\n").strip() + "\n"

    def _load(self, kinds: tuple[Any, ...]) -> Any:
        fingerprint = Fingerprint(self)
        fingerprint.complete &= not any(isinstance(kind, types.Dispatcher) for kind in kinds)
        key = fingerprint.key(repr(kinds))
        recipe = store.Recipe(fingerprint, lambda: self.base.implementation(self.base_kinds(kinds)))
        namespace = store.load(key, recipe, self) if fingerprint.complete else None
        if namespace is None:
            program = Program()
            entry = self.generate(program, kinds)
            given = {**options(self.base), "cache": not fingerprint.recursive}
            shown = ", ".join(f"{name}={value!r}" for name, value in given.items())
            text = "\n\n".join(f"@numba.njit({shown})\n{part}" for part in program.texts)
            about = {"entry": entry, "statics": recipe.write(program.statics, program.origins)}
            if not fingerprint.complete:
                key = native.fingerprint(key.encode(), repr(id(self)).encode())
            namespace = store.save(key, text, about, program.statics)
            namespace["_about"] = about
        return namespace[namespace["_about"]["entry"]]

    # -- derivatives of it --------------------------------------------------------------------

    def pushed(self, positions: tuple[int, ...]) -> Derivative:
        """Return the function from arguments and tangents to the value and its tangent."""
        return pushforward(self, positions)

    def pulled(self, positions: tuple[int, ...]) -> Derivative | None:
        """Return the function from arguments and cotangents to cotangents of arguments."""
        return None

    def plain(self, kinds: tuple[Any, ...]) -> Any:
        """Return the generated function if it can be differentiated like one of the user's."""
        return None


def options(base: Any) -> dict[str, Any]:
    """Return the compiler's options that a derivative takes over."""
    return {name: base.targetoptions[name] for name in _OPTIONS if name in base.targetoptions}


def differentiable(program: Program, base: Any, kinds: tuple[Any, ...], wrap: bool) -> Instance:
    """Return what is differentiated for a base: its function, or the one generated for it.

    With `wrap`, a function that calls the derivative, for rules of the call to be used.
    """
    changed = changed_arguments(base, kinds) if isinstance(base, Derivative) else frozenset()
    ruled = getattr(base, "rule_vjp" if wrap else "rule_jvp", None)
    if ruled is not None:
        instance = program.instance(_caller(base), kinds)
    elif not isinstance(base, Derivative):
        instance = program.instance(base, kinds)
    elif wrap and base.plain(kinds) is None:
        instance = program.instance(_caller(base, tuple(sorted(changed))), kinds)
    else:
        instance = program.instance(base.implementation(kinds), kinds)
    program.analyse()
    return instance


@functools.cache
def _caller(base: Any, copied: tuple[int, ...] = ()) -> Any:
    """Return a numba function that calls another one, for the rule of the call to be used."""
    import numba

    parameters = list(inspect.signature(base.py_func).parameters)
    names = ", ".join(parameters)
    given = ", ".join(f"{n}.copy()" if k in copied else n for k, n in enumerate(parameters))
    text = f"def {base.py_func.__name__}({names}):\n    return derivative({given})\n"
    key = native.fingerprint(text.encode(), repr(id(base)).encode())
    function = native.compile_source(key, text, base.py_func.__name__)
    function.__globals__["derivative"] = base
    return numba.njit(function)


@functools.cache
def changed_arguments(function: Any, kinds: tuple[Any, ...]) -> frozenset[int]:
    """Return the numbers of the arguments that a function (or what it is made of) writes into."""
    root = function
    while isinstance(root, Derivative):
        root = root.base
    program = Program()
    count = len(inspect.signature(root.py_func).parameters)
    instance = program.instance(root, tuple(types.unliteral(kind) for kind in kinds[:count]))
    program.analyse()
    leaves = instance.leaves()
    written = {leaves[position] for position in instance.writes}
    return frozenset(
        number
        for number, value in enumerate(instance.params)
        if written.intersection(leaf_names(value))
    )


def check_numbers(
    base: Any, numbers: tuple[int, ...], kinds: tuple[Any, ...], instance: Instance
) -> None:
    """Refuse to differentiate by an argument that is not real."""
    from tapegrad.transform.lower import holds_real

    for number in numbers:
        if not holds_real(kinds[number]):
            name = instance.function.params[number]
            raise TransformError(
                f"argument {number} ({name}) of {base.py_func.__name__} has type {kinds[number]}; "
                "derivatives are by floats and arrays of floats: pass a float, or astype(float)"
            )


class Pullback(Derivative):
    """Value and gradient, or one of the two, perhaps with given cotangents of the value.

    With `seeds`, that many cotangents of (the real parts of) the value are arguments.
    """

    def __init__(self, base: Any, numbers: tuple[int, ...], seeds: int, returns: str) -> None:
        self.numbers = numbers
        self.seeds = seeds
        self.returns = returns
        names = tuple(f"g_{k}" for k in range(seeds))
        super().__init__(base, "pullback" if seeds else "gradient", names)

    def spec(self) -> tuple[Any, ...]:
        return (self.numbers, self.seeds, self.returns)

    def generate(self, program: Program, kinds: tuple[Any, ...]) -> str:
        own = kinds[: len(kinds) - self.seeds]
        instance = differentiable(program, self.base, own, wrap=True)
        check_numbers(self.base, self.numbers, own, instance)
        if not self.seeds:
            self._check_result(instance)
        return write_pullback(program, instance, list(self.numbers), self.seeds, self.returns)

    def _check_result(self, instance: Instance) -> None:
        from numba.core.types import Array

        function = instance.function
        results = instance.results()
        if len(results) != 1 or isinstance(function.types[results[0]], Array):
            what = (
                "nothing that is real"
                if not results
                else ("several numbers" if len(results) > 1 else "an array")
            )
            raise TransformError(
                f"the gradient is of one number, and {function.name} returns {what}; use "
                "tg.jacobian or tg.jvp",
                function.source,
                function.source.tree.lineno,
            )

    def pulled(self, positions: tuple[int, ...]) -> Derivative | None:
        return Pulled(self, positions)


class Pushforward(Derivative):
    """Value and tangent, for tangents of some arguments (a Jacobian times a vector)."""

    def __init__(self, base: Any, numbers: tuple[int, ...]) -> None:
        self.numbers = numbers
        names = list(inspect.signature(base.py_func).parameters)
        super().__init__(base, "pushforward", tuple(f"{names[k]}_dot" for k in numbers))

    def spec(self) -> tuple[Any, ...]:
        return (self.numbers,)

    def generate(self, program: Program, kinds: tuple[Any, ...]) -> str:
        own = kinds[: len(kinds) - len(self.numbers)]
        instance = differentiable(program, self.base, own, wrap=False)
        check_numbers(self.base, self.numbers, own, instance)
        names = list(inspect.signature(self.py_func).parameters)[len(own) :]
        for number, tangent, name in zip(self.numbers, kinds[len(own) :], names, strict=True):
            if not _is_tangent(own[number], tangent):
                raise TransformError(
                    f"{name} is of type {tangent}; a tangent has the type of its argument, here "
                    f"{own[number]}"
                )
        return write_pushforward(program, instance, list(self.numbers))

    def plain(self, kinds: tuple[Any, ...]) -> Any:
        own = kinds[: len(kinds) - len(self.numbers)]
        base: Any = self.base
        if isinstance(base, Derivative) and base.plain(own) is None:
            return None
        return self.implementation(kinds)


def _is_tangent(kind: Any, tangent: Any) -> bool:
    """Whether a type suits the tangents of another."""
    if isinstance(kind, types.Array):
        return (
            isinstance(tangent, types.Array)
            and tangent.ndim == kind.ndim
            and isinstance(tangent.dtype, types.Float)
        )
    if isinstance(kind, types.BaseTuple):
        return (
            isinstance(tangent, types.BaseTuple)
            and len(kind) == len(tangent)
            and all(map(_is_tangent, kind, tangent))
        )
    return isinstance(tangent, (types.Float, types.Integer))


class Composed(Derivative):
    """A function of other derivatives, written as text."""

    def text(self, name: str, kinds: tuple[Any, ...]) -> str:
        """Return the source of the function."""
        raise NotImplementedError

    def parts(self) -> dict[str, Derivative]:
        """Return the derivatives that it calls, by the names of its attributes."""
        raise NotImplementedError

    def generate(self, program: Program, kinds: tuple[Any, ...]) -> str:
        for attribute, part in self.parts().items():
            program.statics[attribute] = part
            program.origins[attribute] = ("root", None, attribute)
        entry = program.fresh(self.py_func.__name__)
        program.texts.append(self.text(entry, kinds))
        return entry

    def _names(self) -> list[str]:
        return list(inspect.signature(self.py_func).parameters)


class Pulled(Composed):
    """Cotangents of the arguments of a gradient, by the symmetry of the Hessian.

    A gradient of ``sum(g * f(x))`` with the cotangent ``u``: that of ``x`` is the second
    derivative times ``u``, which is the tangent of the gradient in direction ``u``; that of ``g``
    is the tangent of ``f`` in direction ``u``.
    """

    def __init__(self, gradient: Pullback, positions: tuple[int, ...]) -> None:
        self.positions = positions
        self.with_value = gradient.returns.startswith("value")
        count = len(inspect.signature(gradient.base.py_func).parameters)
        self.own = tuple(k for k in positions if k < count)
        self.count = count
        if self.own:
            self.pushed_gradient = pushforward(
                pullback(gradient.base, self.own, gradient.seeds, "gradients"), gradient.numbers
            )
        if len(self.own) < len(positions):
            self.pushed_value = pushforward(gradient.base, gradient.numbers)
        extra = ("u_value",) if self.with_value else ()
        super().__init__(
            gradient, "pulled", (*extra, *(f"u_{k}" for k in range(len(gradient.numbers))))
        )

    def spec(self) -> tuple[Any, ...]:
        return (self.positions,)

    def parts(self) -> dict[str, Derivative]:
        names = ("pushed_gradient", "pushed_value")
        return {name: getattr(self, name) for name in names if hasattr(self, name)}

    def text(self, name: str, kinds: tuple[Any, ...]) -> str:
        names = self._names()
        tangents = names[len(names) - len(self.base.numbers) :]
        given = names[: self.count + self.base.seeds]
        lines = [f"def {name}({', '.join(names)}):"]
        if self.own:
            arguments = ", ".join([*given, *tangents])
            lines.append(f"    gradients, pulled = pushed_gradient({arguments})")
        if len(self.own) < len(self.positions):
            arguments = ", ".join([*given[: self.count], *tangents])
            lines.append(f"    value, tangent = pushed_value({arguments})")
        items = []
        for position in self.positions:
            if position < self.count:
                place = self.own.index(position)
                scaled = f"gradients[{place}] * {names[len(given)]} + " if self.with_value else ""
                items.append(f"{scaled}pulled[{place}]")
            else:
                items.append(self._part(position - self.count, kinds[: self.count]))
        lines.append(f"    return ({', '.join(items)},)")
        return "\n".join(lines) + "\n"

    def _part(self, number: int, kinds: tuple[Any, ...]) -> str:
        """Return the text of a real part of the tangent of the value."""
        from tapegrad.transform.lower import is_real

        base = self.base.base
        base.compile(kinds)
        result = base.overloads[kinds].signature.return_type
        if not isinstance(result, types.BaseTuple):
            return "tangent"
        real = [k for k, item in enumerate(result) if is_real(item)]
        return f"tangent[{real[number]}]"


class HessianProduct(Composed):
    """The Hessian of a function times a vector."""

    def __init__(self, base: Any, number: int) -> None:
        self.number = number
        self.pushed_gradient = pushforward(pullback(base, (number,), 0, "gradient"), (number,))
        super().__init__(base, "hvp", ("vector",))

    def spec(self) -> tuple[Any, ...]:
        return (self.number,)

    def parts(self) -> dict[str, Derivative]:
        return {"pushed_gradient": self.pushed_gradient}

    def text(self, name: str, kinds: tuple[Any, ...]) -> str:
        names = ", ".join(self._names())
        return (
            f"def {name}({names}):\n"
            f"    gradient, product = pushed_gradient({names})\n"
            "    return product\n"
        )


class Jacobian(Composed):
    """The matrix of all derivatives, by columns or by rows, whichever are fewer."""

    def __init__(self, base: Any, numbers: tuple[int, ...], single: bool) -> None:
        self.numbers = numbers
        self.single = single
        # forward mode is how derivatives are differentiated; of a gradient columns are rows anyway
        self.columns_only = isinstance(base, Derivative)
        for number in numbers:
            setattr(self, f"column_{number}", pushforward(base, (number,)))
            if not self.columns_only:
                setattr(self, f"row_{number}", pullback(base, (number,), 1, "gradient"))
        super().__init__(base, "jacobian")
        self.primal = base

    def spec(self) -> tuple[Any, ...]:
        return (self.numbers, self.single)

    def parts(self) -> dict[str, Derivative]:
        found = {"primal": self.base}
        for number in self.numbers:
            found[f"column_{number}"] = getattr(self, f"column_{number}")
            if not self.columns_only:
                found[f"row_{number}"] = getattr(self, f"row_{number}")
        return found

    def text(self, name: str, kinds: tuple[Any, ...]) -> str:
        from tapegrad.transform.lower import holds_real, is_array

        names = self._names()
        for number in self.numbers:
            if isinstance(kinds[number], types.BaseTuple) or not holds_real(kinds[number]):
                raise TransformError(
                    f"the Jacobian is by a float or an array of floats; argument {number} "
                    f"({names[number]}) has type {kinds[number]}"
                )
        base = self.base
        base.compile(kinds)
        result = base.overloads[kinds].signature.return_type
        if isinstance(result, types.BaseTuple) or not holds_real(result):
            raise TransformError(
                "the Jacobian is of a float or an array of floats; "
                f"{base.py_func.__name__} returns {result}"
            )
        copied = [f"{n}.copy()" if is_array(k) else n for n, k in zip(names, kinds, strict=True)]
        lines = [f"def {name}({', '.join(names)}):", f"    value = primal({', '.join(copied)})"]
        found = []
        for number in self.numbers:
            x, kind = names[number], kinds[number]
            if not is_array(kind):
                lines.append(f"    _, column = column_{number}({', '.join(copied)}, 1.0)")
                lines.append(f"    found_{number} = column")
            elif not is_array(result) and not self.columns_only:
                lines.append(f"    row = row_{number}({', '.join(copied)}, 1.0)")
                lines.append(f"    found_{number} = row")
            elif not is_array(result):
                lines += [
                    f"    found = np.zeros({x}.size)",
                    f"    for k in range({x}.size):",
                    f"        tangent = np.zeros({x}.size, {x}.dtype)",
                    "        tangent[k] = 1.0",
                    f"        tangents = tangent.reshape({x}.shape)",
                    f"        _, column = column_{number}({', '.join(copied)}, tangents)",
                    "        found[k] = column",
                    f"    found_{number} = found.reshape({x}.shape)",
                ]
            else:
                shape = f"value.shape + {x}.shape"
                lines.append(f"    found = np.empty((value.size, {x}.size), value.dtype)")
                columns = [
                    f"for k in range({x}.size):",
                    f"    tangent = np.zeros({x}.size, {x}.dtype)",
                    "    tangent[k] = 1.0",
                    f"    tangents = tangent.reshape({x}.shape)",
                    f"    _, column = column_{number}({', '.join(copied)}, tangents)",
                    "    found[:, k] = column.copy().reshape(-1)",
                ]
                rows = [
                    "for k in range(value.size):",
                    "    g = np.zeros(value.size, value.dtype)",
                    "    g[k] = 1.0",
                    f"    row = row_{number}({', '.join(copied)}, g.reshape(value.shape))",
                    "    found[k, :] = row.copy().reshape(-1)",
                ]
                if self.columns_only:
                    lines += [f"    {line}" for line in columns]
                else:
                    lines.append(f"    if {x}.size <= value.size:")
                    lines += [f"        {line}" for line in columns]
                    lines.append("    else:")
                    lines += [f"        {line}" for line in rows]
                lines.append(f"    found_{number} = found.reshape({shape})")
            found.append(f"found_{number}")
        ending = found[0] if self.single else f"({', '.join(found)},)"
        lines.append(f"    return {ending}")
        return "\n".join(lines) + "\n"


# -- each derivative once -------------------------------------------------------------------------


@functools.cache
def pullback(base: Any, numbers: tuple[int, ...], seeds: int, returns: str) -> Pullback:
    """Return the gradient of a function by some arguments."""
    return Pullback(base, numbers, seeds, returns)


@functools.cache
def pushforward(base: Any, numbers: tuple[int, ...]) -> Pushforward:
    """Return the value and tangent of a function for tangents of some arguments."""
    return Pushforward(base, numbers)


@functools.cache
def hessian_product(base: Any, number: int) -> HessianProduct:
    """Return the Hessian of a function times a vector."""
    return HessianProduct(base, number)


@functools.cache
def jacobian(base: Any, numbers: tuple[int, ...], single: bool) -> Jacobian:
    """Return the Jacobian of a function."""
    return Jacobian(base, numbers, single)
