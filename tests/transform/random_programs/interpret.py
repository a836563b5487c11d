"""Generated derivatives, run by Python itself.

They are plain Python. That makes programs many times faster to judge than with machine code, of
which only types are needed; an array that was not filled shows as nan, in every run.
"""

import contextlib
import functools
import types
import warnings
import weakref
from unittest import mock

import numba
import numpy as np
from numba.core import compiler, extending, typing
from numba.core.compiler_machinery import AnalysisPass, PassManager, register_pass
from numba.core.dispatcher import Dispatcher, ObjModeLiftedWith
from numba.core.errors import ForceLiteralArg, NumbaWarning
from numba.core.registry import cpu_target
from numba.core.typed_passes import NopythonTypeInference
from numba.core.typing.templates import _IntrinsicTemplate
from numba.np.ufunc.dufunc import DUFunc

from tapegrad.eager.tensor import Tensor
from tapegrad.transform import composed, runtime, vjps
from tapegrad.transform.builder import print_function
from tapegrad.transform.codegen import program
from tapegrad.transform.derivatives import Derivative
from tapegrad.transform.errors import UnequalExtentsError
from tapegrad.transform.frontend import inference
from tapegrad.transform.functions import ops, scalar_ops
from tapegrad.transform.optimize import sizes
from tapegrad.transform.rules import derivative_calls
from tapegrad.transform.rules.partials import elementary
from tests.transform.random_programs.tapes import STAND_INS

INTRINSIC = extending._Intrinsic
COMPILED = "numba.", "tapegrad.kernels.", "tapegrad.transform.runtime"  # these work on addresses


@register_pass(mutates_CFG=False, analysis_only=True)
class _Types(AnalysisPass):
    _name = "random_programs_types"

    def __init__(self):
        AnalysisPass.__init__(self)

    def run_pass(self, state):
        state["cr"] = state.return_type
        return False


class _TypesOnly(compiler.CompilerBase):
    def define_pipelines(self):
        manager = PassManager("random_programs")
        untyped = compiler.DefaultPassBuilder.define_untyped_pipeline(self.state)
        manager.passes.extend(untyped.passes)
        manager.add_pass(NopythonTypeInference, "types")
        manager.add_pass(_Types, "collect")
        manager.finalize()
        return [manager]


def result_type(function, kinds):
    """The type that numba finds for what a Python function returns."""
    return numba.types.unliteral(exact_type(function, kinds))


def exact_type(function, kinds):
    """The same, with its value where numba knows it."""
    flags = compiler.Flags()
    flags.nrt, flags.enable_looplift, flags.error_model = True, False, "python"
    typing_context, target_context = cpu_target.typing_context, cpu_target.target_context
    return compiler.compile_extra(
        typing_context, target_context, function, kinds, None, flags, {}, pipeline_class=_TypesOnly
    )


def result_of(dispatcher, kinds):
    """The type that numba finds for what a compiled function returns."""
    if not is_of_library(dispatcher):
        return result_type(dispatcher.py_func, kinds)
    try:
        return exact_type(dispatcher.py_func, kinds)
    except ForceLiteralArg as error:  # it wants to know the values of arguments
        raise error.bind_fold_arguments(
            lambda args, kws: dispatcher._compiler.fold_argument_types(args, kws)[1]
        ) from None


@contextlib.contextmanager
def types_only(small_blocks=True):
    """Let numba find the types of what functions return without compiling them.

    numba's own functions are not compiled either, unless they are called by code that is. Blocks of
    loops are as small as the programs of tests, so that all loops that may have them do.
    """
    small = (
        {"WIDTH": 3, "SHORT": 1, "LEAST_GAIN": -1000} if small_blocks else {"WIDTH": sizes.WIDTH}
    )
    template, compiled = Dispatcher.get_call_template, Dispatcher.get_overload
    compile_block, compiling = ObjModeLiftedWith.compile, 0

    def fully(method):
        """The same method of numba, in which what is called is compiled."""

        def call(*args):
            nonlocal compiling
            compiling += 1
            try:
                return method(*args)
            finally:
                compiling -= 1

        return call

    # intrinsics remember what they found when they are compiled later
    compile_core = fully(compiler.Compiler._compile_core)
    type_intrinsic = fully(_IntrinsicTemplate.generic)

    def compile_lifted(self, signature):
        return compile_block(self, signature) if compiling else None  # the block says its types

    def get_overload(self, signature):
        kinds = tuple(signature.args if isinstance(signature, typing.Signature) else signature)
        if kinds not in self.overloads:
            if not compiling:
                return NOT_COMPILED
            self.compile(kinds)  # what compiled code calls must be compiled after all
        return compiled(self, signature)

    def get_call_template(self, args, kws):
        if compiling and (is_of_library(self) or isinstance(self, Derivative)):
            return template(self, args, kws)
        pysig, kinds = self._compiler.fold_argument_types(args, kws)
        kinds = tuple(kinds)
        function = self.implementation(kinds) if isinstance(self, Derivative) else self
        if calls_itself(function):
            return template(self, args, kws)
        known = SIGNATURES.setdefault(function, {})
        if kinds not in known:
            known[kinds] = typing.signature(result_of(function, kinds), *kinds)
        name = self.py_func.__name__
        signatures = list(known.values())
        made = typing.make_concrete_template(name, key=name, signatures=signatures)
        return made, pysig, kinds, {}

    def result_kind(function, kinds):
        made, _, kinds, _ = function.get_call_template(kinds, {})
        return made(cpu_target.typing_context).apply(kinds, {}).return_type

    inferred = {}

    def infer(function, arguments):
        """Find the types of a function once for all its derivatives: no program changes names."""
        outside = tuple((text, id(value)) for text, value in sorted(function.statics.items()))
        key = print_function(function, function.name), outside, arguments
        if key not in inferred:
            inferred[key] = inference.infer(function, arguments), list(function.statics.values())
        return inferred[key][0]

    with (
        mock.patch.multiple(sizes, **small),
        mock.patch.object(program, "infer", infer),
        mock.patch.object(composed, "result_kind", result_kind),
        mock.patch.object(derivative_calls, "result_kind", result_kind),
        mock.patch.object(vjps, "result_kind", result_kind),
        mock.patch.object(Dispatcher, "get_call_template", get_call_template),
        mock.patch.object(Dispatcher, "get_overload", get_overload),
        mock.patch.object(compiler.Compiler, "_compile_core", compile_core),
        mock.patch.object(_IntrinsicTemplate, "generic", type_intrinsic),
        mock.patch.object(ObjModeLiftedWith, "compile", compile_lifted),
        warnings.catch_warnings(),
        np.errstate(all="ignore"),  # Python's numbers warn where compiled ones do not
    ):
        # with NUMBA_OPT=0 numba does not keep functions that name large arrays or pointers
        warnings.filterwarnings("ignore", "Cannot cache compiled function", NumbaWarning)
        yield


SIGNATURES = weakref.WeakKeyDictionary()
NOT_COMPILED = "not compiled"  # what numba keeps as the code of a function of which it needs types


def is_of_library(dispatcher):
    """Whether a function is one of numba's or ours: not of a user, and not generated."""
    return module_of(dispatcher).startswith(("numba.", "tapegrad."))


def module_of(dispatcher):
    return str(dispatcher.py_func.__globals__.get("__name__", ""))


def calls_itself(dispatcher):
    """Whether a function may reach itself: then numba wants compiled code of what it reaches."""
    seen, waiting = set(), [dispatcher]
    while waiting:
        function = waiting.pop().py_func
        found = [function.__globals__.get(name) for name in function.__code__.co_names]
        called = {f for f in found if isinstance(f, Dispatcher) and not is_of_library(f)}
        if dispatcher in called:
            return True
        waiting += called - seen
        seen |= called
    return False


def empty(shape, dtype=np.float64):
    found = np.empty(shape, dtype)
    found.fill(np.nan if found.dtype.kind in "fc" else 0)
    return found


def full(shape, value, dtype=None):
    """An array of one number: for compiled code the sum of a float32 and a float is a double."""
    return np.full(shape, value, dtype or (np.float64 if isinstance(value, np.float32) else None))


NUMPY = types.ModuleType("numpy")
NUMPY.__dict__.update(np.__dict__)
NUMPY.empty = empty
NUMPY.full = full
NUMPY.empty_like = lambda like, dtype=None: empty(like.shape, dtype or like.dtype)


@functools.cache
def compiled_intrinsic(value):
    """A compiled function that does what only compiled code can."""
    return numba.njit(lambda *args: value(*args))


def is_op(value):
    """Whether a function is an op: Python's calls of it return tensors."""
    return isinstance(value, types.FunctionType) and value in elementary()


def is_of_tensors(function):
    """Whether a function is one of the package that Python runs, and that returns tensors."""
    package, _, part = function.__module__.partition(".")
    return package == "tapegrad" and part.partition(".")[0] in ("", "eager", "ops")


def of_its_operands(ufunc):
    """A function made with `numba.vectorize`, with the result type that it has in compiled code.

    Called by Python it computes with complex numbers if it was compiled for nothing else before.
    """

    def call(*args):
        found = ufunc(*args)
        return (
            found.real if np.iscomplexobj(found) and not any(map(np.iscomplexobj, args)) else found
        )

    return call


def with_arrays(function):
    """A function of tensors, which compiled code calls for arrays."""

    def call(*args, **kws):
        found = function(*args, **kws)
        return found.numpy()[()] if isinstance(found, Tensor) else found

    return call


class Interpreter:
    """Runs functions of programs and of generated modules without machine code."""

    def __init__(self):
        self.functions = {}  # by the identity of a dispatcher, which is kept alive
        self.modules = {}

    def value(self, found):
        """What a name of a module stands for when it is interpreted."""
        if found is np:
            return NUMPY
        for compiled, stand_in in STAND_INS:
            if found is compiled:
                return stand_in
        if isinstance(found, Dispatcher):
            return self.function(found)
        if isinstance(found, DUFunc):
            return of_its_operands(found)
        if isinstance(found, INTRINSIC) or is_op(found):
            return compiled_intrinsic(found)
        if isinstance(found, types.FunctionType) and is_of_tensors(found):
            return with_arrays(found)
        if found is scalar_ops:
            return ops
        if isinstance(found, types.ModuleType) and found.__name__.split(".")[0] == "tapegrad":
            return Members(self, found)
        return found

    def function(self, dispatcher):
        """A Python function for a dispatcher; what is not generated stays compiled."""
        if id(dispatcher) not in self.functions:
            made = dispatcher
            if isinstance(dispatcher, Derivative):
                made = self.derivative(dispatcher)
            elif not module_of(dispatcher).startswith(COMPILED):
                made = self.interpreted(dispatcher.py_func)
            self.functions[id(dispatcher)] = dispatcher, made
        return self.functions[id(dispatcher)][1]

    def derivative(self, dispatcher):
        def call(*args):
            kinds = tuple(map(numba.typeof, args))
            # Python's own floats have complex powers where those of compiled code are nan
            given = [np.float64(value) if type(value) is float else value for value in args]
            if (assuming := dispatcher.assuming_implementation(kinds)) is not None:
                try:
                    return self.function(assuming)(*given)
                except UnequalExtentsError:
                    pass
            return self.function(self.entry(dispatcher, kinds))(*given)

        return call

    def entry(self, dispatcher, kinds):
        """The function of a generated module that is run."""
        found = dispatcher.implementation(kinds)
        if dispatcher.root.targetoptions.get("parallel"):
            return found
        return dispatcher.fastest_implementation(kinds)

    def interpreted(self, function):
        """The function, in a module of interpreted functions."""
        made = None

        def call(*args, **kws):
            nonlocal made
            if made is None:
                made = types.FunctionType(
                    function.__code__,
                    self.module(function.__globals__),
                    function.__name__,
                    function.__defaults__,
                    function.__closure__,
                )
            return made(*args, **kws)

        return call

    def module(self, names):
        if id(names) not in self.modules:
            found = {
                name: value if name.startswith("__") else self.value(value)
                for name, value in names.items()
            }
            self.modules[id(names)] = names, found
        return self.modules[id(names)][1]


class Workers(Interpreter):
    """Runs the parallel versions of generated functions, one worker after the other.

    Parameters
    ----------
    count
        The number of workers.
    random
        Draws the order in which they run: one that reads what another writes is found out.
    """

    def __init__(self, count, random):
        super().__init__()
        self.count = count
        self.random = random
        self.numba = types.SimpleNamespace(prange=self.in_any_order)

    def entry(self, dispatcher, kinds):
        return dispatcher.fastest_implementation(kinds)

    def in_any_order(self, *bounds):
        return self.random.permutation(range(*bounds))

    def function(self, dispatcher):
        if not isinstance(dispatcher, Derivative) and dispatcher.targetoptions.get("parallel"):

            def call(*args):
                names = {**self.module(dispatcher.py_func.__globals__), "numba": self.numba}
                return types.FunctionType(dispatcher.py_func.__code__, names)(*args)

            self.functions[id(dispatcher)] = dispatcher, call
        return super().function(dispatcher)

    def value(self, found):
        if found is runtime.workers_for:
            return lambda count: max(1, min(self.count, count))
        return super().value(found)


class Members:
    """The functions of one of our modules, as attributes."""

    def __init__(self, interpreter, module):
        self.__interpreter = interpreter
        self.__module = module

    def __getattr__(self, name):
        if name.startswith("array_") and name[-1] in "CF":
            name = name[:-1] + "A"  # types on the tape: Python's arrays may have other layouts
        value = self.__interpreter.value(getattr(self.__module, name))
        setattr(self, name, value)
        return value
