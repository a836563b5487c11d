"""Code for LLVM of what generated functions consist of."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from llvmlite import ir as llvm
from numba.core import config, ir, lowering, types
from numba.core.cgutils import alloca_once, alloca_once_value, pointer_add
from numba.core.ir_utils import build_definitions
from numba.np.arrayobj import load_item, store_item

from tapegrad.kernels.llvm.errors import GivesBack
from tapegrad.kernels.llvm.library import LinkedLibrary
from tapegrad.kernels.llvm.slices import short_errors
from tapegrad.kernels.llvm.wrapper import CalledFromPython

_FLOATS = {operator.add: "fadd", operator.sub: "fsub", operator.mul: "fmul"}
_INTEGERS = {operator.add: "add", operator.sub: "sub", operator.mul: "mul"}
_COMPARISONS = {
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
    operator.eq: "==",
    operator.ne: "!=",
}
_INPLACE = {operator.iadd: operator.add, operator.isub: operator.sub, operator.imul: operator.mul}
_MOST_FACTORS = 16  # of a power that is written as a product
_INDICES = (types.intp, types.uintp)


class Lower(CalledFromPython, GivesBack, lowering.Lower):
    """numba's lowering, with code of its own for elements of arrays, numbers, and ranges.

    The values are those that numba's code computes, to the last bit.
    """

    def init(self) -> None:
        super().init()
        self._held: dict[Any, bool] = {}  # types whose values hold memory that is counted
        self._definitions = build_definitions(self.blocks)

    def holds_memory(self, kind: Any) -> bool:
        """Whether values of a type hold memory whose references are counted."""
        found = self._held.get(kind)
        if found is None:
            found = self.context.data_model_manager[kind].contains_nrt_meminfo()
            self._held[kind] = found
        return found

    # -- recursion ----------------------------------------------------------------------------

    def _lower_call_RecursiveCall(self, fnty: Any, expr: Any, signature: Any) -> Any:  # noqa: N802
        found = fnty.dispatcher_type.dispatcher.overloads.get(signature.args)
        if found is not None and isinstance(found.library, LinkedLibrary):
            if not found.library.is_emitted:  # for other types, so that it is compiled already
                found.library.emit()
        return super()._lower_call_RecursiveCall(fnty, expr, signature)

    # -- variables ----------------------------------------------------------------------------

    def incref(self, typ: Any, val: Any) -> None:
        if self.holds_memory(typ):
            super().incref(typ, val)

    def decref(self, typ: Any, val: Any) -> None:
        if self.holds_memory(typ):
            super().decref(typ, val)

    def storevar(self, value: Any, name: str, argidx: int | None = None) -> None:
        kind = self.typeof(name)
        if self.holds_memory(kind) or argidx is not None:
            super().storevar(value, name, argidx)
        elif name in self._singly_assigned_vars:
            self._blk_local_varmap[name] = value
        else:
            self._alloca_var(name, kind)
            self.builder.store(value, self.varmap[name])

    def delvar(self, name: str) -> None:
        if self.holds_memory(self.typeof(name)):
            super().delvar(name)
        elif name not in self._blk_local_varmap:
            self._singly_assigned_vars.discard(name)  # it is assigned later, in a loop

    # -- statements ---------------------------------------------------------------------------

    def lower_inst(self, inst: Any) -> None:
        if config.DEBUG_JIT or getattr(self, "_loc_notify_registry", ()):
            super().lower_inst(inst)
        elif isinstance(inst, ir.Del):
            self.delvar(inst.value)
        elif isinstance(inst, ir.Assign) and not isinstance(inst.value, ir.Arg):
            name = inst.target.name
            self.storevar(self.lower_assign(self.typeof(name), inst), name)
        elif isinstance(inst, ir.SetItem):
            self.lower_setitem(inst.target, inst.index, inst.value, self.fndesc.calltypes[inst])
        elif isinstance(inst, ir.StaticSetItem) and self._is_element(inst.target, inst.index_var):
            self.lower_setitem(inst.target, inst.index_var, inst.value, self.fndesc.calltypes[inst])
        else:
            super().lower_inst(inst)

    def lower_expr(self, resty: Any, expr: Any) -> Any:
        if expr.op == "static_getitem":
            if self._is_element(expr.value, expr.index_var):
                return self._element(resty, expr.value, expr.index_var)
        elif expr.op == "getiter":
            if self.typeof(expr.value.name) == types.range_state64_type:
                return self._range(resty, expr)
        elif expr.op == "iternext":
            if self.typeof(expr.value.name) == types.range_iter64_type:
                return self._next(resty, expr)
        elif expr.op in ("pair_first", "pair_second"):
            if not self.holds_memory(self.typeof(expr.value.name)):
                place = 0 if expr.op == "pair_first" else 1
                return self.builder.extract_value(self.loadvar(expr.value.name), place)
        return super().lower_expr(resty, expr)

    # -- numbers ------------------------------------------------------------------------------

    def lower_binop(self, resty: Any, expr: Any, op: Any) -> Any:
        made = self._number(expr, _INPLACE.get(op, op))
        if made is None:
            return super().lower_binop(resty, expr, op)
        signature = self.fndesc.calltypes[expr]
        return self.context.cast(self.builder, made, signature.return_type, resty)

    def _number(self, expr: Any, op: Any) -> Any:
        """Return the result of an operation on two numbers, None for other ones."""
        signature = self.fndesc.calltypes[expr]
        left, right = map(types.unliteral, signature.args)
        if op is operator.pow and signature.return_type == left == types.float64:
            exponent = self._definition(expr.rhs)
            if not self._is_integer(exponent) or not 0 < exponent.value <= _MOST_FACTORS:
                return None
            return self._power(self._operand(expr.lhs, left), exponent.value)
        if left != right:
            return None
        if left == types.float64:
            names = _FLOATS
        elif left == types.int64:
            names = _INTEGERS
        else:
            return None
        is_comparison = op in _COMPARISONS
        if not is_comparison and (op not in names or signature.return_type != left):
            return None
        operands = self._operand(expr.lhs, left), self._operand(expr.rhs, right)
        if not is_comparison:
            # overflow is undefined, as in numba: without that, LLVM vectorizes fewer loops
            flags = ["nsw"] if left == types.int64 else ()
            return getattr(self.builder, names[op])(*operands, flags=flags)
        if left == types.int64:
            return self.builder.icmp_signed(_COMPARISONS[op], *operands)
        compare = self.builder.fcmp_unordered if op is operator.ne else self.builder.fcmp_ordered
        return compare(_COMPARISONS[op], *operands)

    def _operand(self, variable: Any, kind: Any) -> Any:
        """Return the value of a variable as one of another type."""
        value = self.loadvar(variable.name)
        return self.context.cast(self.builder, value, self.typeof(variable.name), kind)

    def _power(self, base: Any, exponent: int) -> Any:
        """Return a power as the product that numba computes, bit by bit of the exponent."""
        found = None
        while True:
            if exponent & 1:
                found = base if found is None else self.builder.fmul(found, base)
            exponent >>= 1
            if not exponent:
                return found
            base = self.builder.fmul(base, base)

    # -- elements of arrays -------------------------------------------------------------------

    def lower_getitem(self, resty: Any, expr: Any, value: Any, index: Any, signature: Any) -> Any:
        if self._is_element(value, index):
            return self._element(resty, value, index)
        return super().lower_getitem(resty, expr, value, index, signature)

    def lower_setitem(
        self, target_var: Any, index_var: Any, value_var: Any, signature: Any
    ) -> None:
        kind = self.typeof(value_var.name)
        if not self._is_element(target_var, index_var) or not _is_number(kind):
            with short_errors():
                super().lower_setitem(target_var, index_var, value_var, signature)
            return
        array = self.typeof(target_var.name)
        # by way of the type that the assignment has for numba, as there
        value = self.context.cast(
            self.builder, self.loadvar(value_var.name), kind, signature.args[2]
        )
        value = self.context.cast(self.builder, value, signature.args[2], array.dtype)
        store_item(self.context, self.builder, array, value, self._pointer(target_var, index_var))

    def _element(self, resty: Any, value: Any, index: Any) -> Any:
        array = self.typeof(value.name)
        found = load_item(self.context, self.builder, array, self._pointer(value, index))
        return self.context.cast(self.builder, found, array.dtype, resty)

    def _is_element(self, array: Any, index: Any) -> bool:
        """Whether an index selects one element of an array of numbers."""
        if index is None or self.context.enable_boundscheck:
            return False
        kind, selects = self.typeof(array.name), self.typeof(index.name)
        if not isinstance(kind, types.Array) or not _is_number(kind.dtype):
            return False
        parts = selects.types if isinstance(selects, types.BaseTuple) else (selects,)
        return len(parts) == kind.ndim > 0 and all(
            types.unliteral(part) in _INDICES for part in parts
        )

    def _pointer(self, variable: Any, index: Any) -> Any:
        """Return the address of an element."""
        builder = self.builder
        kind, selects = self.typeof(variable.name), self.typeof(index.name)
        array, given = self.loadvar(variable.name), self.loadvar(index.name)
        parts: Sequence[Any] = (index,)
        if isinstance(selects, types.BaseTuple):
            parts = self._items(index) or [None] * kind.ndim
            indices = [builder.extract_value(given, axis) for axis in range(kind.ndim)]
            signs = [types.unliteral(part) == types.intp for part in selects.types]
        else:
            indices, signs = [given], [types.unliteral(selects) == types.intp]
        model = self.context.data_model_manager[kind]
        shape = model.get_field_position("shape")
        # LLVM would vectorize loops along other axes, too, with gathers that are slower
        inner = {"C": kind.ndim - 1, "F": 0}.get(kind.layout)
        for axis, (part, number, is_signed) in enumerate(zip(parts, indices, signs, strict=True)):
            if is_signed and not (axis == inner and self._is_natural(part)):
                extent = builder.extract_value(array, [shape, axis])
                is_negative = builder.icmp_signed("<", number, number.type(0))
                wrapped = builder.add(number, extent)
                indices[axis] = builder.select(is_negative, wrapped, number)
        data = builder.extract_value(array, model.get_field_position("data"))
        if kind.layout not in "CF":
            strides = model.get_field_position("strides")
            offset = None
            for axis, number in enumerate(indices):
                step = builder.mul(builder.extract_value(array, [strides, axis]), number)
                offset = step if offset is None else builder.add(offset, step)
            return pointer_add(builder, data, offset)
        order = range(kind.ndim) if kind.layout == "C" else range(kind.ndim - 1, -1, -1)
        place = None
        for axis in order:
            if place is None:
                place = indices[axis]
            else:
                extent = builder.extract_value(array, [shape, axis])
                place = builder.add(builder.mul(place, extent), indices[axis])
        return builder.gep(data, [place])

    # -- what is known of indices -------------------------------------------------------------

    def _definition(self, variable: Any) -> Any:
        """Return what a variable is assigned, through other names; None if not exactly once."""
        passed = set()
        while isinstance(variable, ir.Var) and variable.name not in passed:
            passed.add(variable.name)
            found = self._definitions.get(variable.name, ())
            if len(found) != 1:
                return None
            (variable,) = found
        return variable

    def _items(self, index: Any) -> Sequence[Any] | None:
        """Return the variables that a tuple consists of, None if that is not known."""
        found = self._definition(index)
        is_tuple = isinstance(found, ir.Expr) and found.op == "build_tuple"
        return found.items if is_tuple else None

    def _is_natural(self, variable: Any) -> bool:
        """Whether an index is known not to be negative: a constant, or that of a loop."""
        found = self._definition(variable)
        if isinstance(found, ir.Const):
            return self._is_integer(found) and found.value >= 0
        for op in ("pair_first", "iternext", "getiter"):
            if not isinstance(found, ir.Expr) or found.op != op:
                return False
            found = self._definition(found.value)
        if not self._is_range(found):
            return False
        first, step = found.args[0], self._step(found)
        if len(found.args) == 1:
            return True
        bound, least = (first, 0) if step == 1 else (found.args[1], -1)
        limit = self._definition(bound)
        return step in (1, -1) and self._is_integer(limit) and limit.value >= least

    def _is_integer(self, value: Any) -> bool:
        return isinstance(value, ir.Const) and type(value.value) is int

    def _is_range(self, expr: Any) -> bool:
        return (
            isinstance(expr, ir.Expr)
            and expr.op == "call"
            and not expr.kws
            and expr.vararg is None
            and isinstance(kind := self.typeof(expr.func.name), types.Function)
            and kind.typing_key is range
        )

    def _step(self, expr: Any) -> int | None:
        """Return the step of a range if it is a constant, None otherwise."""
        if len(expr.args) < 3:
            return 1
        found = self._definition(expr.args[2])
        return found.value if self._is_integer(found) else None

    # -- loops over ranges --------------------------------------------------------------------

    def _range(self, resty: Any, expr: Any) -> Any:
        """Return an iterator over a range."""
        made = self._definition(expr.value)
        step = self._step(made) if self._is_range(made) else None
        if step not in (1, -1):
            return super().lower_expr(resty, expr)
        builder = self.builder
        given = self.loadvar(expr.value.name)
        start, stop = (builder.extract_value(given, place) for place in (0, 1))
        ends = (start, stop) if step == 1 else (stop, start)
        is_run = builder.icmp_signed("<", *ends)
        zero = start.type(0)
        count = builder.select(is_run, builder.sub(*reversed(ends)), zero)
        kind = self.context.get_value_type(types.range_iter64_type)
        fields = {
            "iter": alloca_once_value(builder, start),
            "stop": stop,
            "step": start.type(step),
            "count": alloca_once(builder, start.type),
        }
        builder.store(count, fields["count"])
        model = self.context.data_model_manager[types.range_iter64_type]
        iterator = llvm.Constant(kind, llvm.Undefined)
        for name, value in fields.items():
            iterator = builder.insert_value(iterator, value, model.get_field_position(name))
        return iterator

    def _next(self, resty: Any, expr: Any) -> Any:
        """Return the next item of a range, and whether there is one."""
        builder = self.builder
        model = self.context.data_model_manager[types.range_iter64_type]
        iterator = self.loadvar(expr.value.name)
        place, step, left = (
            builder.extract_value(iterator, model.get_field_position(name))
            for name in ("iter", "step", "count")
        )
        count = builder.load(left)
        is_valid = builder.icmp_signed(">", count, count.type(0))
        found = alloca_once(builder, step.type)
        with builder.if_then(is_valid):  # LLVM vectorizes fewer loops without the branch
            item = builder.load(place)
            builder.store(item, found)
            builder.store(builder.sub(count, count.type(1), flags=["nsw"]), left)
            builder.store(builder.add(item, step), place)
        item = builder.load(found)
        pair = llvm.Constant(self.context.get_value_type(resty), llvm.Undefined)
        return builder.insert_value(builder.insert_value(pair, item, 0), is_valid, 1)


def _is_number(kind: Any) -> bool:
    return isinstance(kind, (types.Float, types.Integer, types.Boolean, types.Complex))
