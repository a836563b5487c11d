"""Functions that only compiled code calls: they have no machine code of their own.

numba links the code of a function into each of its callers, optimizes these as a whole, and writes
machine code for them. It writes machine code for the function as well, which would never run.

The function is optimized nevertheless: with one that is not, loops of callers took up to 1.4 times
as long.
"""

from __future__ import annotations

import re
from typing import Any

import llvmlite.binding as llvm
from numba import _dynfunc
from numba.core.codegen import JITCodeLibrary, RuntimeLinker
from numba.core.compiler import CompileResult, compile_result

# an environment holds the Python objects that a function needs
_READS_ENVIRONMENT = re.compile(r'load [^\n]*@"?_ZN08NumbaEnv')


class LinkedLibrary(JITCodeLibrary):
    """The code of a function for its callers, in LLVM's language.

    Attributes
    ----------
    is_emitted
        Whether it has machine code nevertheless: numba finds environments by addresses, and
        functions that take part in a recursion.
    """

    is_emitted = False

    def add_ir_module(self, ir_module: Any) -> None:
        self.is_emitted |= _READS_ENVIRONMENT.search(str(ir_module)) is not None
        super().add_ir_module(ir_module)

    def _finalize_final_module(self) -> None:
        names = [variable.name for variable in self._final_module.global_variables]
        if self.is_emitted or any(name.startswith(RuntimeLinker.PREFIX) for name in names):
            self.emit()
            return
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def emit(self) -> None:
        """Have machine code written, for callers that find it by its address."""
        self.is_emitted = True
        super()._finalize_final_module()

    @classmethod
    def of_bitcode(cls, codegen: Any, name: str, bitcode: bytes) -> LinkedLibrary:
        """Return a library that has been optimized before."""
        self = cls(codegen, name)
        self._final_module = llvm.parse_bitcode(bitcode)
        self._finalize_final_module()
        return self


def name_function(context: Any, library: LinkedLibrary, described: Any, environment: Any) -> Any:
    """Tell numba of a compiled function; return the object by which it is found."""
    library._ensure_finalized()
    if library.is_emitted:
        function = context.get_executable(library, described, environment)
    else:
        name = described.qualname.rpartition(".")[2]
        function = _dynfunc.make_function(  # as numba does for one without a wrapper
            described.lookup_module(), name, "", 0, environment, (library,)
        )
    context.insert_user_function(function, described, [library])
    return function


def reduced(result: CompileResult) -> tuple[Any, ...] | None:
    """Return what a compiled function is built from again; None if it has machine code."""
    library = result.library
    if not isinstance(library, LinkedLibrary) or library.is_emitted:
        return None
    described = result.fndesc
    described.typemap = described.calltypes = None  # as numba does: they need not be picklable
    bitcode = library._get_module_for_linking().as_bitcode()
    return (
        library.name,
        bitcode,
        described,
        result.environment,
        result.signature,
        result.reload_init,
    )


def keep_object(library: JITCodeLibrary) -> None:
    """Have machine code at hand that is written to disk.

    LLVM gives it to numba when it makes it, which it does not where it finds the names of a module
    in another one.
    """
    if library._compiled_object is None:
        machine = library.codegen._tm
        library._compiled_object = machine.emit_object(library._final_module)


def rebuilt(context: Any, parts: tuple[Any, ...]) -> CompileResult:
    """Return a compiled function from what `reduced` returns."""
    name, bitcode, described, environment, signature, reload_init = parts
    for load in reload_init:
        load()
    library = LinkedLibrary.of_bitcode(context.codegen(), name, bitcode)
    return compile_result(
        target_context=context,
        typing_context=context.typing_context,
        library=library,
        environment=environment,
        entry_point=name_function(context, library, described, environment),
        fndesc=described,
        type_annotation=None,
        signature=signature,
        objectmode=False,
        lifted=(),
        typing_error=None,
        call_helper=None,
        metadata=None,
        reload_init=reload_init,
    )
