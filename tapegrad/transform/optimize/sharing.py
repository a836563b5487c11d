"""Which arrays of a generated function may share elements."""

from __future__ import annotations

import ast

from tapegrad.transform import facts
from tapegrad.transform.frontend.liveness import assigned
from tapegrad.transform.syntax import callee_of, nodes_in, paired

_NEW = frozenset(f"np.{name}" for name in facts.MADE)
# parts of the tape, which is no array of the user
_KEPT = ("runtime.pop_elements", "runtime.pop_owned_elements")
_PARTS = ("runtime.owned_row", "runtime.row", *_KEPT)
_PARAMETERS, _ANYTHING = "parameters", "anything"


class Sharing:
    """Where the arrays of a function come from: parameters, and places that make arrays."""

    def __init__(self, function: ast.FunctionDef) -> None:
        self._origins: dict[str, set[str]] = {
            parameter.arg: {_PARAMETERS} for parameter in function.args.args
        }
        made: dict[str, list[ast.expr]] = {}
        for node in nodes_in(function, ast.Assign):
            for target, value in paired(node.targets[0], node.value):
                match target:
                    case ast.Name(id=name):
                        made.setdefault(name, []).append(value)
                    case ast.Tuple([ast.Name(id=array), _]) if callee_of(value) in _KEPT:
                        made.setdefault(array, []).append(value)
                    case _:
                        for name in assigned([ast.Assign([target], value)]):
                            made.setdefault(name, []).append(ast.Constant(None))
        self._rows = {name for name, values in made.items() if callee_of(values[0]) in _PARTS}
        for name in made:  # so far
            self._origins.setdefault(name, set())
        is_changed = True
        while is_changed:
            is_changed = False
            for name, values in made.items():
                found = set(self._origins[name])
                before = len(found)
                for number, value in enumerate(values):
                    found |= self._of(value, f"{name} {number}")
                self._origins[name] = found
                is_changed |= len(found) != before

    def _of(self, value: ast.expr, place: str) -> set[str]:
        match value:
            case ast.Call():
                return {place if _is_new(value) else _ANYTHING}
            case ast.BinOp(_, ast.MatMult()):
                return {place}
            case ast.Name(id=name):
                return self._origins.get(name, {_ANYTHING})  # it may be a name of the module
            case ast.Subscript(whole):
                return self._of(whole, place)
        return {_ANYTHING}

    def may_share(self, one: str, other: str) -> bool:
        """Whether two arrays may have elements in common."""
        if one in self._rows or other in self._rows:
            return False
        found = [self._origins.get(name, {_ANYTHING}) for name in (one, other)]
        return bool(found[0] & found[1]) or any(_ANYTHING in origins for origins in found)


def _is_new(call: ast.Call) -> bool:
    """Whether a call makes an array."""
    match call:
        case ast.Call(ast.Attribute(_, "copy")):
            return True
        case ast.Call(_, [_, _], []) if callee_of(call) == "np.dot":
            return True
    return callee_of(call) in _NEW
