"""Generated derivatives, run by Python itself.

They are plain Python. That makes programs many times faster to judge than with machine code, of
which only types are needed; an array that was not filled shows as nan, in every run.
"""

import functools
import types

import numba
import numpy as np
from numba.core import compiler, extending, typing
from numba.core.compiler_machinery import AnalysisPass, PassManager, register_pass
from numba.core.dispatcher import Dispatcher
from numba.core.registry import cpu_target
from numba.core.typed_passes import NopythonTypeInference

from tapegrad.transform.derivatives import Derivative

INTRINSIC = extending._Intrinsic
OURS = ("random_program_", "tapegrad_derivative_", "tapegrad_generated_")


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


def keep_from_compiling(module):
    """Keep a module's functions from being compiled where numba asks for types of results."""
    found = [value for value in vars(module).values() if isinstance(value, Dispatcher)]
    codes = [dispatcher.py_func.__code__ for dispatcher in found]
    if any(code.co_name in code.co_names for code in codes):
        return  # numba wants compiled code of a function that calls itself, and of what it calls
    for dispatcher in found:
        only_types(dispatcher)


def only_types(dispatcher):
    """Keep a function from being compiled."""
    known = {}

    def get_call_template(args, kws):
        pysig, args = dispatcher._compiler.fold_argument_types(args, kws)
        kinds = tuple(args)
        if kinds not in known:
            flags = compiler.Flags()
            flags.nrt, flags.enable_looplift, flags.error_model = True, False, "python"
            result = compiler.compile_extra(
                cpu_target.typing_context,
                cpu_target.target_context,
                dispatcher.py_func,
                kinds,
                None,
                flags,
                {},
                pipeline_class=_TypesOnly,
            )
            known[kinds] = typing.signature(result, *kinds)
        name = dispatcher.py_func.__name__
        template = typing.make_concrete_template(name, key=name, signatures=list(known.values()))
        return template, pysig, args, {}

    dispatcher.get_call_template = get_call_template


def empty(shape, dtype=np.float64):
    found = np.empty(shape, dtype)
    found.fill(np.nan if found.dtype.kind == "f" else 0)
    return found


NUMPY = types.ModuleType("numpy")
NUMPY.__dict__.update(np.__dict__)
NUMPY.empty = empty
NUMPY.empty_like = lambda like, dtype=None: empty(like.shape, dtype or like.dtype)


@functools.cache
def compiled_intrinsic(value):
    """A compiled function that does what only compiled code can."""
    return numba.njit(lambda *args: value(*args))


class Interpreter:
    """Runs functions of programs and of generated modules without machine code."""

    def __init__(self):
        self.functions = {}  # by the identity of a dispatcher, which is kept alive
        self.modules = {}

    def value(self, found):
        """What a name of a module stands for when it is interpreted."""
        if found is np:
            return NUMPY
        if isinstance(found, Dispatcher):
            return self.function(found)
        if isinstance(found, INTRINSIC):
            return compiled_intrinsic(found)
        if isinstance(found, types.ModuleType) and found.__name__.startswith("tapegrad.transform"):
            return Members(self, found)
        return found

    def function(self, dispatcher):
        """A Python function for a dispatcher; what is not generated stays compiled."""
        if id(dispatcher) not in self.functions:
            made = dispatcher
            if isinstance(dispatcher, Derivative):
                made = self.derivative(dispatcher)
            elif str(dispatcher.py_func.__globals__.get("__name__", "")).startswith(OURS):
                made = self.interpreted(dispatcher.py_func)
            self.functions[id(dispatcher)] = dispatcher, made
        return self.functions[id(dispatcher)][1]

    def derivative(self, dispatcher):
        def call(*args):
            kinds = tuple(map(numba.typeof, args))
            return self.function(dispatcher.implementation(kinds))(*args)

        return call

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


class Members:
    """The functions of one of our modules, as attributes."""

    def __init__(self, interpreter, module):
        self.__interpreter = interpreter
        self.__module = module

    def __getattr__(self, name):
        if name.startswith("array_"):  # types on the tape: Python's arrays may have other layouts
            name = name[:-1] + "A"
        value = self.__interpreter.value(getattr(self.__module, name))
        setattr(self, name, value)
        return value
