"""The base class of derivatives: numba functions whose compilation first writes source.

For the types of the arguments, a module is generated or found on disk, and the function in it is
compiled.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import linecache
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numba
import numpy as np
from numba.core import sigutils, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import OmittedArg
from numba.core.errors import NumbaError, NumbaWarning, TypingError
from numba.core.registry import CPUDispatcher
from numba.core.typing.typeof import Purpose, typeof, typeof_impl

from tapegrad.cuda.array import DeviceArray
from tapegrad.eager.lines import level_of_user
from tapegrad.eager.tensor import Tensor
from tapegrad.garbage import without_collection
from tapegrad.imports import whole_imports
from tapegrad.kernels import native
from tapegrad.kernels.dtypes import not_compiled
from tapegrad.kernels.progress import compiling
from tapegrad.probes import add_call_probe, probe
from tapegrad.tape.avals import DIFFERENTIABLE
from tapegrad.transform import blas, fourier, frozen, lapack  # noqa: F401 (symbols of machine code)
from tapegrad.transform.cache.fingerprint import Fingerprint
from tapegrad.transform.codegen import store
from tapegrad.transform.declared import Declared
from tapegrad.transform.errors import (
    RoundedWarning,
    SerialLoopWarning,
    SlowerCodeWarning,
    TransformError,
    UnconfirmedWarning,
    UnequalExtentsError,
)
from tapegrad.transform.ir import leaf_names
from tapegrad.transform.kept import kept_with_function
from tapegrad.transform.optimize import sizes
from tapegrad.transform.protocols import Bound, Claim, Instance, Program
from tapegrad.transform.stubs import inherited_options, stub
from tapegrad.transform.syntax import unlike
from tapegrad.transform.tape_memory import large_arrays, limit  # noqa: F401 (so do these)

_numbers = itertools.count()  # of modules that are not on disk


@typeof_impl.register(DeviceArray)
def _refuse_device(value: DeviceArray, context: Any) -> Any:
    raise TypeError(
        "a function compiled by numba takes arrays of the host: give it x.cpu(), or let "
        "tapegrad.vmap(f, target='cuda') compute it for all items of a batch on the device"
    )


def has_tensors(args: tuple[Any, ...]) -> bool:
    """Whether any argument of a call is a tensor, or a tuple with tensors."""
    for a in args:  # noqa: SIM110 - faster than any(), in every call with tensors
        if isinstance(a, Tensor) or (isinstance(a, tuple) and has_tensors(a)):
            return True
    return False


class Recording(CPUDispatcher):
    """A numba function that records itself when it is called with tensors."""

    record: Any  # calls it with tensors (`tapegrad.transform.recording`)
    over_items: Any  # calls it for all items of a batch (`tapegrad.transform.ensembles`)

    def typeof_pyval(self, val: Any) -> Any:
        """Return the numba type of an argument; for a tensor, without a search."""
        if isinstance(val, Tensor):
            return types.pyobject
        if isinstance(val, (list, set, dict)):
            _check_items(self.py_func.__name__, val)
        return super().typeof_pyval(val)

    @probe(lambda args: None if has_tensors(args) else f"compile {_name(args)}", "compile")
    def _compile_for_args(self, *args: Any, **kws: Any) -> Any:
        # numba calls this if it has no code for the arguments, and then calls the result
        if has_tensors(args) or (kws and has_tensors(tuple(kws.values()))):
            self._types_active_call.clear()
            return functools.partial(self.record, self)
        self.check_dtypes((*args, *kws.values()))
        found = self.compiled_for_call(args, kws)
        self.enter(args)
        return found

    def check_dtypes(self, args: Iterable[Any]) -> None:
        """Refuse arrays of dtypes that compiled code does not know, also in tuples."""
        for number, arg in enumerate(args):
            for dtype in filter(_is_unknown, _dtypes_in(arg)):
                raise TypeError(not_compiled(self.py_func.__name__, number, dtype))

    def compiled_for_call(self, args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        """Compile it for the arguments of a call from Python; return what is called."""
        return super()._compile_for_args(*args, **kws)

    def enter(self, args: tuple[Any, ...]) -> bool:
        """Process the first call from Python with arguments of some types.

        Returns whether numba finds the compiled code without this method from now on.
        """
        return True


def _is_unknown(dtype: np.dtype) -> bool:
    """Whether compiled code does not take arrays of a dtype."""
    return dtype not in DIFFERENTIABLE if dtype.kind in "fc" else not dtype.isnative


def _dtypes_in(value: Any) -> Iterator[np.dtype]:
    """Yield the dtypes of an array, or of those in a tuple."""
    if isinstance(value, tuple):
        for item in value:
            yield from _dtypes_in(item)
    elif isinstance(value, np.ndarray):
        yield value.dtype


def _name(args: tuple[Any, ...]) -> str:
    return str(args[0].py_func.__name__)


add_call_probe(Recording, _name, "function")


def _check_items(name: str, value: Any) -> None:
    """Refuse a container that holds a tensor."""
    items = value.values() if isinstance(value, dict) else value
    if any(isinstance(item, Tensor) for item in items):
        raise TypeError(
            f"{name}: got a {type(value).__name__} of tensors; pass the tensors as arguments of "
            "their own, or one tensor (tg.stack)"
        )


class Derivative(Recording):
    """Base of the derivatives.

    Parameters
    ----------
    base
        The numba function or derivative to differentiate.
    label
        The suffix of the name of the base.
    extra
        Names of additional arguments after those of the base.
    """

    _tapegrad_transform = True
    once: Any  # the cached constructor, which takes a base and the result of `spec`
    is_doubted = False  # whether it checks itself in its first call although nobody asks for that
    assumes = False  # whether it has a version for arguments whose extents are probably equal
    check: Any  # compares it with the function in a call (`tapegrad.transform.checks.checking`)
    # the pushforward for tangents of the arguments at some positions, and the function from
    # arguments and a cotangent of the result to the cotangents of the arguments at some positions
    jvp: ClassVar[Callable[[Any, tuple[int, ...]], Derivative]]
    vjp: ClassVar[Callable[[Any, tuple[int, ...]], Derivative]]

    def __init__(self, base: Any, label: str, extra: tuple[str, ...] = ()) -> None:
        self.base = base
        self.label = label
        self.given = len(extra)
        super().__init__(
            stub(base.py_func, label, extra),
            targetoptions={"nopython": True, **inherited_options(base)},
        )
        self._modules: dict[Any, dict[str, Any]] = {}  # generated, by types
        self._entered: set[Any] = set()  # types of calls from Python
        self._called = False  # whether the next compilation is for a call from Python
        self._made: dict[Any, Any] = {}  # hashes of the names of the function when they were made
        self._dropped: list[Any] = []  # code that may still run
        if extra and self.py_func.__defaults__:
            kind: Any = type(self)
            self.__class__ = _binding(kind)
        self.root: Any = base.root if isinstance(base, Derivative) else base
        frozen.enter(self.root, self)

    def extra_names(self) -> list[str]:
        """Return the names of the arguments after those of the base."""
        names = list(inspect.signature(self.py_func).parameters)
        return names[len(names) - self.given :]

    def spec(self) -> tuple[Any, ...]:
        """Return what distinguishes it from other derivatives of the same base."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).once, (self.base, *self.spec())

    def generate(self, program: Program, kinds: tuple[Any, ...]) -> str:
        """Generate the code for the types of its arguments; return the name of the function."""
        raise NotImplementedError

    def claim(self, kinds: tuple[Any, ...]) -> Claim | None:
        """Return what it returns for types of arguments, None if that is not to be compared."""
        return None

    def finish(self, program: Program, entry: str) -> None:
        """Give the functions of the module, after they were verified, their last form."""

    def _tapegrad_recipe(self) -> tuple[Any, ...]:
        return (type(self).__name__, self.spec(), self.base)

    @probe(lambda args: f"compile {_name(args)}", "compile")
    def compile(self, sig: Any) -> Any:
        """Compile it for a signature."""
        arguments, _ = sigutils.normalize_signature(sig)
        arguments = tuple(arguments)
        what = f"a derivative of {self.root.py_func.__name__}"
        with compiling(what), global_compiler_lock, without_collection():
            called, self._called = self._called, False
            if called and (assuming := self._compiled_assuming(arguments)) is not None:
                return assuming.entry_point
            found = self.overloads.get(arguments)
            if found is not None:
                return found.entry_point
            compiled = self._compiled(self.fastest_implementation(arguments), arguments)
            if arguments not in self.overloads:
                self.add_overload(compiled)
        return compiled.entry_point

    def compiled_for_call(self, args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        """Compile it for the arguments of a call from Python; return what is called."""
        with global_compiler_lock:
            self._called = True
            try:
                found = super().compiled_for_call(args, kws)
            finally:
                self._called = False
        if isinstance(self, _Assuming):
            return functools.partial(self.assume, found)
        return found

    def _compiled_assuming(self, arguments: tuple[Any, ...]) -> Any:
        """Return the machine code for arguments whose extents are equal, None for none.

        Only Python calls it, and the general version if it raises that they differ.
        """
        version = self.assuming_implementation(arguments)
        if version is None:
            return None
        if not isinstance(self, _Assuming):
            kind: Any = type(self)
            self.__class__ = _assuming(kind)
        return self._compiled(version, arguments)

    def _compiled(self, inner: Any, arguments: tuple[Any, ...]) -> Any:
        """Return the machine code of a generated function."""
        with global_compiler_lock, warnings.catch_warnings():
            # functions that are passed as arguments keep numba from writing to its cache
            warnings.filterwarnings("ignore", "Cannot cache compiled function", NumbaWarning)
            inner.py_func.shown_as = self.py_func.__name__  # also if it is a faster version
            try:
                inner.compile(arguments)
            except NumbaError as error:
                raise self._internal(arguments, error) from None
            return inner.overloads[arguments]

    def _internal(self, arguments: tuple[Any, ...], error: NumbaError) -> TransformError:
        """Return the error for generated code that numba does not compile."""
        cause: BaseException | None = error
        while cause is not None:  # the cause may be that an inner derivative was refused
            if isinstance(cause, TransformError):
                return cause
            cause = cause.__cause__ or cause.__context__
        code = self.root.py_func.__code__
        shown = ", ".join(map(str, arguments))
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = " ".join(
            [line for line in lines if "File " not in line and "derivative_" not in line][:3]
        )
        return TransformError(
            f"numba does not compile what was generated for {self.py_func.__name__}({shown}): this "
            "is an error of tapegrad, not of your function; please report it with the source of "
            f"the function, these types, and what numba says: {type(error).__name__}: {said}\n"
            f'  File "{code.co_filename}", line {code.co_firstlineno}, in {code.co_name}'
        )

    def add_overload(self, compiled: Any) -> None:
        """Keep compiled code; calls from Python use it after the first call."""
        self.overloads[tuple(compiled.signature.args)] = compiled

    def enter(self, args: tuple[Any, ...]) -> bool:
        """Check the derivative in its first call, if checks are on."""
        kinds = tuple(
            types.Omitted(a.value) if isinstance(a, OmittedArg) else typeof(a, Purpose.argument)
            for a in args
        )
        if kinds in self._entered:
            return True
        if not self.check(*self.checked(args)):
            return False
        compiled = self._compiled_assuming(kinds)
        if compiled is None:
            self.compile(kinds)
            super().add_overload(self.overloads[kinds])
        else:
            codes = [kind._code for kind in compiled.signature.args]
            self._insert(codes, compiled.entry_point, compiled.objectmode)
        self._entered.add(kinds)
        return True

    def checked(self, args: tuple[Any, ...]) -> tuple[Derivative, tuple[Any, ...]]:
        """Return the derivative, and its arguments, that is checked in place of this one."""
        return self, args

    def implementation(self, arguments: tuple[Any, ...]) -> Any:
        """Return the generated numba function for the types of the arguments."""
        kinds = tuple(types.unliteral(kind) for kind in arguments)
        bound = self._bound(kinds)
        count = len(inspect.signature(self.root.py_func).parameters)
        named = frozen.check(self.root, bound.kinds[:count])
        if kinds not in self._modules:
            frozen.settle(self.root, bound.kinds[:count], named)
            self._modules[kinds] = self._load(kinds, bound)
            self._made[bound.kinds] = named
        namespace = self._modules[kinds]
        return namespace[namespace["_about"]["entry"]]

    def fastest_implementation(self, arguments: tuple[Any, ...]) -> Any:
        """Return the function to run: a version of the generated one, or that itself."""
        found = self.implementation(arguments)
        return found.py_func.__globals__[found.py_func.__globals__["_about"]["run"]]

    def assuming_implementation(self, arguments: tuple[Any, ...]) -> Any:
        """Return the version for arguments whose extents are probably equal, None for none."""
        namespace = self.implementation(arguments).py_func.__globals__
        return namespace.get(namespace["_about"]["assuming"])

    def made(self) -> list[tuple[tuple[Any, ...], Any]]:
        """Return the types that it was made for, each with the hashes of names at that time."""
        return list(self._made.items())

    def forget(self) -> None:
        """Regenerate it at the next call."""
        self._dropped.append(list(self.overloads.values()))
        self._make_finalizer()()
        self._reset_overloads()
        self._modules.clear()
        self._entered.clear()
        self._made.clear()
        forget_effects()

    recompile = forget

    def source(self, kinds: tuple[Any, ...]) -> str:
        """Return the generated source for the types of the arguments; defaults may be omitted."""
        _, kinds = self._compiler.fold_argument_types(kinds, {})
        filename = self.implementation(kinds).py_func.__code__.co_filename
        lines = linecache.getlines(filename)[2:]  # without the checksum and header
        return "".join(lines).removesuffix("# end\n").strip() + "\n"

    def _load(self, kinds: tuple[Any, ...], bound: Bound) -> Any:
        fingerprint = Fingerprint(self)
        fingerprint.add_kinds(kinds)
        key = fingerprint.key(sizes.described())
        recipe = store.Recipe(fingerprint, self, kinds)
        namespace = store.load(key, recipe) if fingerprint.complete else None
        if namespace is None:
            generate = _generation().generate
            made = generate(self, kinds, bound, recipe, not fingerprint.recursive)
            if not fingerprint.complete:
                key = native.fingerprint(key.encode(), repr((id(self), next(_numbers))).encode())
            namespace = store.save(key, made.text, made.about, made.statics)
        namespace["_made_for"] = (self, kinds)
        for message in namespace["_about"]["in order"]:
            warnings.warn(SerialLoopWarning(message), stacklevel=level_of_user())
        for message in namespace["_about"]["rounded"]:
            warnings.warn(RoundedWarning(message), stacklevel=level_of_user())
        for message in namespace["_about"]["slower"]:
            warnings.warn(SlowerCodeWarning(message), stacklevel=level_of_user())
        for message in namespace["_about"]["doubted"]:
            self.is_doubted = True
            warnings.warn(UnconfirmedWarning(message), stacklevel=level_of_user())
        return namespace

    # -- omitted arguments --------------------------------------------------------------------

    def _bound(self, kinds: tuple[Any, ...]) -> Bound:
        """Return the complete call for the types of the given arguments.

        If defaults are omitted, the last given arguments are the additional ones.
        """
        names = list(inspect.signature(self.py_func).parameters)
        count = len(names) - self.given
        texts: list[str | None] = [*names]
        if any(isinstance(kind, types.Omitted) for kind in kinds[count:]):
            given = zip(names, kinds, strict=True)
            texts = _assign(self, [n for n, kind in given if not isinstance(kind, types.Omitted)])
            required = [self._default(name) is inspect.Parameter.empty for name in names]
            if len(texts) < len(names) or any(
                text is None and (needed or place >= count)
                for place, (text, needed) in enumerate(zip(texts, required, strict=True))
            ):
                raise TypeError(
                    f"{self.py_func.__name__}: missing arguments; the last are "
                    f"{', '.join(names[count:])}"
                )
        position = dict(zip(names, kinds, strict=True))
        declared, own = Declared(self.root), len(inspect.signature(self.root.py_func).parameters)
        found: list[Any] = []
        calls: list[str] = []
        defaults: dict[str, tuple[str, Any]] = {}
        for place, (name, text) in enumerate(zip(names, texts, strict=True)):
            kind = position[text] if text is not None else types.Omitted(self._default(name))
            if isinstance(kind, types.Omitted):
                text = unlike(f"d_{name}", {*names, *defaults})
                defaults[text] = name, kind.value
                kind = types.unliteral(numba.typeof(kind.value))
            assert text is not None
            if place < own and (to := declared.conversion(place, own, kind)) is not None:
                kind, text = to, f"np.{to}({text})"
            if place >= count:
                text, kind = self.converted(place - count, text, kind, found)
            found.append(kind)
            calls.append(text)
        return Bound(tuple(found), calls, defaults)

    def converted(self, number: int, text: str, kind: Any, own: list[Any]) -> tuple[str, Any]:
        """Return an additional argument as the generated code takes it: its text and its type.

        Parameters
        ----------
        number
            Its number among the additional arguments.
        text, kind
            The text and the type of what is given.
        own
            The types of the arguments of the base.
        """
        if isinstance(kind, types.Array) and _is_integral(kind.dtype):
            kind = types.Array(types.float64, kind.ndim, "C")
            text = f"np.ascontiguousarray({text}).astype(np.float64)"
        elif isinstance(kind, types.Boolean):
            kind, text = types.float64, f"(1.0 if {text} else 0.0)"
        return text, kind

    def _default(self, name: str) -> Any:
        return inspect.signature(self.py_func).parameters[name].default

    # -- higher derivatives -------------------------------------------------------------------

    def changed_arguments(self, kinds: tuple[Any, ...]) -> frozenset[int]:
        """Return the positions of the arguments that it writes to."""
        if isinstance(self.base, Derivative):
            return self.base.changed_arguments(kinds)
        return written_arguments(self, kinds)

    def shares_results(self, kinds: tuple[Any, ...]) -> bool:
        """Whether results of the root function may share elements with its arguments."""
        return bool(effects(self, kinds).shared)

    def plain(self, kinds: tuple[Any, ...]) -> Any:
        """Return the generated function if it can be differentiated like a user's function."""
        return None


def _generation() -> Any:
    """Return the compiler, which is imported when a derivative has to be made."""
    with whole_imports("tapegrad.transform.generation"):
        from tapegrad.transform import generation

    return generation


remembered: list[Callable[[], None]] = []  # each forgets what it knows of functions


def forget_effects() -> None:
    """Forget what functions write to and share, after one of them was compiled again."""
    for forget in remembered:
        forget()


@kept_with_function
def effects(function: Any, kinds: tuple[Any, ...]) -> Instance:
    """Return the instance of a function, or of the root of a derivative, with its effects."""
    root = function.root if isinstance(function, Derivative) else function
    count = len(inspect.signature(root.py_func).parameters)
    return _generation().analysed(root, kinds[:count])


remembered.append(effects.cache_clear)


def written_arguments(function: Any, kinds: tuple[Any, ...]) -> frozenset[int]:
    """Return the positions of the arguments that a function, or the root of one, writes to."""
    instance = effects(function, kinds)
    leaves = instance.leaves()
    written = {leaves[position] for position in instance.writes}
    return frozenset(
        number
        for number, value in enumerate(instance.params)
        if written.intersection(leaf_names(value))
    )


def _is_integral(kind: Any) -> bool:
    return isinstance(kind, (types.Integer, types.Boolean))


def _assign(function: Any, given: list[str]) -> list[str | None]:
    """Return the name passed for each argument of a function, None for a default.

    The last given arguments are those that derivatives add.
    """
    count = len(inspect.signature(function.py_func).parameters)
    if isinstance(function, Derivative) and function.given and len(given) < count:
        own = _assign(function.base, given[: -function.given])
        return [*own, *given[-function.given :]]
    return [*given, *[None] * (count - len(given))]


def complete(function: Any, args: tuple[Any, ...], kws: dict[str, Any]) -> tuple[Any, ...]:
    """Return all arguments of a call with keywords, in order."""
    if isinstance(function, Derivative) and not kws.keys() & set(function.extra_names()):
        own = len(args) - function.given
        return (*complete(function.base, args[:own], kws), *args[own:])
    bound = inspect.signature(function.py_func).bind(*args, **kws)
    bound.apply_defaults()
    return bound.args


if TYPE_CHECKING:
    _Mixed = Derivative  # what the classes below are mixed into
else:
    _Mixed = object


class _Binding(_Mixed):
    """Binds arguments if some with defaults precede those that a derivative adds.

    numba's binding of keywords does not know that the last positional arguments are the added ones.
    """

    def __call__(self, *args: Any, **kws: Any) -> Any:
        if self._binds(kws):
            return super().__call__(*complete(self, args, kws))
        return super().__call__(*args, **kws)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Return numba's template for calls from compiled code."""
        if self._binds(kws):
            raise TypingError(
                f"{self.py_func.__name__}: with arguments by keyword, pass "
                f"{', '.join(self.extra_names())} by keyword as well"
            )
        return super().get_call_template(args, kws)

    def _binds(self, kws: Any) -> bool:
        return bool(kws) and not kws.keys() & set(self.extra_names())


class _Assuming(_Mixed):
    """Has versions for arguments whose extents are equal; calls another one if they differ."""

    def __call__(self, *args: Any, **kws: Any) -> Any:
        return self.assume(super().__call__, *args, **kws)

    def assume(self, version: Callable[..., Any], *args: Any, **kws: Any) -> Any:
        """Call a version for equal extents, or the general one."""
        try:
            return version(*args, **kws)
        except UnequalExtentsError:
            pass
        given = inspect.signature(self.py_func).bind(*args, **kws).args
        kinds = tuple(typeof(a, Purpose.argument) for a in given)
        return self.fastest_implementation(kinds)(*given)


@functools.cache
def _assuming(kind: type) -> type:
    return type(kind.__name__, (_Assuming, kind), {})


@functools.cache
def _binding(kind: type) -> type:
    return type(kind.__name__, (_Binding, kind), {})
