"""Types of all names of a function in normal form, by numba's type inference."""

from __future__ import annotations

import ast
import itertools
import linecache
import re
import warnings
from types import FunctionType
from typing import Any

import numpy as np
from numba.core import compiler, errors, ir, types
from numba.core.compiler_machinery import (
    AnalysisPass,
    FunctionPass,
    PassManager,
    register_pass,
)
from numba.core.registry import cpu_target
from numba.core.untyped_passes import (
    DeadBranchPrune,
    InlineClosureLikes,
    LiteralPropagationSubPipelinePass,
)
from numba.extending import intrinsic, models, register_model

from tapegrad.kernels.llvm.inference import Inference
from tapegrad.transform.builder import print_function
from tapegrad.transform.errors import TransformError
from tapegrad.transform.frontend import pipelines
from tapegrad.transform.frontend.flow import NO_SEQUENCE
from tapegrad.transform.frontend.quick_types import stand_in_for
from tapegrad.transform.frontend.untyped import refuse_untyped
from tapegrad.transform.ir import FunctionIR
from tapegrad.transform.printer import UNDEFINED
from tapegrad.transform.syntax import nodes_in, text_of


class _Undefined(types.Type):
    """The type of an undefined name; it unifies with any other type."""

    def __init__(self) -> None:
        super().__init__("undefined value")

    def unify(self, typingctx: Any, other: Any) -> Any:
        return other


_UNDEFINED = _Undefined()
register_model(_Undefined)(models.OpaqueModel)


@intrinsic
def _undefined(typingctx: Any) -> Any:
    return _UNDEFINED(), lambda *_: None


def _merged(value: Any, calls: set[str]) -> list[str] | None:
    """Return the names that a value may be a copy of, none if undefined; None for a new value."""
    if isinstance(value, ir.Var):
        return [value.name]
    if isinstance(value, ir.Expr) and value.op == "phi":
        return [v.name for v in value.incoming_values if v is not ir.UNDEFINED]
    if isinstance(value, ir.Expr) and value.op == "call" and value.func.name in calls:
        return []
    return None


@register_pass(mutates_CFG=False, analysis_only=False)
class _Unmerge(FunctionPass):
    """Removes undefined values from numba's phis.

    Otherwise numba would type operations on the result of a phi as if it were undefined.
    """

    _name = "tapegrad_unmerge_undefined"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        assigned = [
            statement
            for block in state.func_ir.blocks.values()
            for statement in block.find_insts(ir.Assign)
        ]
        calls = {
            a.target.name
            for a in assigned
            if isinstance(a.value, ir.Global) and a.value.value is _undefined
        }
        sources = {a.target.name: _merged(a.value, calls) for a in assigned}
        undefined = {n for n, merged in sources.items() if merged is not None}
        while given := {n for n in undefined if not undefined.issuperset(sources[n] or ())}:
            undefined -= given
        for a in assigned:
            if isinstance(a.value, ir.Expr) and a.value.op == "phi":
                if a.target.name not in undefined:
                    a.value.incoming_values[:] = [
                        v if v is ir.UNDEFINED or v.name not in undefined else ir.UNDEFINED
                        for v in a.value.incoming_values
                    ]
        return True


@register_pass(mutates_CFG=False, analysis_only=True)
class _Collect(AnalysisPass):
    """Ends the compilation, with the types as its result."""

    _name = "tapegrad_collect_types"

    def __init__(self) -> None:
        AnalysisPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        state["cr"] = (dict(state.typemap), state.return_type)
        return False


class _TypesOnly(compiler.CompilerBase):
    """numba's pipeline up to type inference."""

    def define_pipelines(self) -> list[PassManager]:
        builder = compiler.DefaultPassBuilder
        untyped = builder.define_untyped_pipeline(self.state)
        manager = PassManager("tapegrad_types")
        # there are no closures, lists must not become arrays, and branches are already decided
        omitted = (InlineClosureLikes, DeadBranchPrune, LiteralPropagationSubPipelinePass)
        manager.passes.extend(p for p in untyped.passes if p[0] not in omitted)
        manager.add_pass(_Unmerge, "values of some paths only")
        manager.add_pass(Inference, "types")
        manager.add_pass(_Collect, "collect")
        manager.finalize()
        return [manager]


class _Outside(ast.NodeTransformer):
    """Renames outside values of a function to unique names."""

    def __init__(self, statics: dict[str, Any]) -> None:
        self.statics = statics
        self.namespace: dict[str, Any] = {"np": np, UNDEFINED: _undefined}
        self._texts: dict[str, str] = {}

    def named(self, unique: str) -> str:
        """Return the text that stood for an outside value before it got a unique name."""
        return self._texts.get(unique, unique)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        module, _, name = text_of(node.func).rpartition(".")
        if module == "np" and not node.keywords:
            quick = stand_in_for(name, len(node.args))
            if quick is not None:
                node.func = ast.copy_location(
                    ast.Name(f"quick_{name}_{len(node.args)}", ast.Load()), node.func
                )
                self.namespace[node.func.id] = quick
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.outside(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return self.outside(node)

    def outside(self, node: ast.expr) -> ast.expr:
        """Return the unique name of an outside value, or the node unchanged."""
        text = text_of(node)
        if text not in self.statics:
            return self.generic_visit(node)  # type: ignore[return-value]
        found = f"outside_{''.join(c if c.isalnum() else '_' for c in text)}"
        while self.namespace.get(found, self.statics[text]) is not self.statics[text]:
            found += "_"
        self.namespace[found] = self.statics[text]
        self._texts[found] = text
        return ast.copy_location(ast.Name(found, ast.Load()), node)


# numba's errors for a loop that indexes a set, or a dict with string keys
_NO_POSITIONS = re.compile(r"getitem\((set\(|DictType\[)|Cannot cast int64 to unicode_type")


def infer(function: FunctionIR, arguments: tuple[Any, ...]) -> tuple[dict[str, Any], Any]:
    """Return the numba type of every name, and that of the result.

    Parameters
    ----------
    function
        A function in normal form.
    arguments
        numba types of its arguments.
    """
    text = print_function(function, f"{function.name}_normal")
    filename = f"<normal form of {function.name}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    outside = _Outside(function.statics)
    namespace = outside.namespace
    exec(compile(outside.visit(ast.parse(text)), filename, "exec"), namespace)
    try:
        with warnings.catch_warnings():
            # such warnings would concern the normal form
            warnings.simplefilter("ignore", errors.NumbaTypeSafetyWarning)
            normal = namespace[f"{function.name}_normal"]
            typemap, result = pipelines.run(_TypesOnly, normal, arguments)
    except errors.TypingError as error:
        if _NO_POSITIONS.search(str(error)):
            line = function.source.tree.lineno
            raise TransformError(NO_SEQUENCE, function.source, line) from None
        _refuse_callees(function, str(error))
        refuse_untyped(function, arguments, str(error), outside.named)
        shown = ", ".join(map(str, arguments))
        raise TransformError(
            f"numba finds no types for {function.name}({shown}) in the form in which it is "
            f"differentiated ({_said(str(error))}); let every variable and every condition have "
            "one type, the same on all paths",
            function.source,
            function.source.tree.lineno,
        ) from None
    found: dict[str, Any] = {}
    context = cpu_target.typing_context
    parameters = {f"arg.{param}" for param in function.params}
    for identifier, kind in typemap.items():
        if identifier in parameters:
            continue
        base = identifier.split(".")[0]
        if base.startswith("$"):
            continue  # numba's internal names
        kind = types.unliteral(kind)
        if kind == _UNDEFINED:
            continue
        if base in found and found[base] != kind:
            unified = context.unify_types(found[base], kind)
            kind = unified if unified is not None else found[base]
        found[base] = kind
    return found, result


# errors of `tapegrad.transform.eager_calls` for arguments that a function does not accept
_NO_RESULT = re.compile(r"TypingError: (tapegrad\.(?:\w+\.)*(\w+) of \(.*?\): .*)")


def _refuse_callees(function: FunctionIR, said: str) -> None:
    """Refuse, with its line, the call that caused an error of numba.

    These are calls of transforms, of plain functions, and of functions of the package with
    unsupported arguments.
    """
    no_result = _NO_RESULT.search(said)
    for call in nodes_in(function.source.tree, ast.Call):
        text = text_of(call.func)
        value = function.statics.get(text)
        if (getattr(value, "__module__", None) or "").startswith("tapegrad.func."):
            raise function.source.refuse(
                f"cannot call {text} in a compiled function; make the derivative outside of "
                f"it, and call that: g = {text}(f)",
                call,
            )
        typing = getattr(value, "tapegrad_overloaded", None)
        if typing and no_result and typing.label.split(".")[-1] == no_result[2]:
            raise function.source.refuse(f"cannot call {no_result[1]}", call)
        if isinstance(value, FunctionType) and not _is_typed(value):
            if (value.__module__ or "").split(".")[0] == "tapegrad":
                raise function.source.refuse(
                    f"cannot call {text} in a compiled function, which takes the package's "
                    "functions of numbers and arrays only; use NumPy's functions, or a loop",
                    call,
                )
            raise function.source.refuse(
                f"cannot call {text}, which is not compiled; decorate it with tg.njit or "
                "numba.njit",
                call,
            )


def _is_typed(value: Any) -> bool:
    """Whether numba has a type for a value."""
    typing = getattr(value, "tapegrad_overloaded", None)
    if typing is not None and typing.parameters is None:
        return False
    try:
        cpu_target.typing_context.resolve_value_type(value)
    except ValueError:
        return False
    return True


def _said(text: str) -> str:
    """Return the text of a numba error without locations in the normal form."""
    said = re.sub(r",? (defined )?at <normal form[^>]*> \(\d+\)", "", text)
    lines = [line.strip() for line in said.splitlines()]
    lines = [line for line in lines if line and "mode pipeline" not in line]
    return " ".join(
        itertools.takewhile(lambda line: not line.startswith(("File", "During")), lines)
    )
