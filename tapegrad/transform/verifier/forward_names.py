"""Tangents and arrays among the names of a function of forward mode, found from its text."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from tapegrad.transform.ir import Role
from tapegrad.transform.syntax import leaves
from tapegrad.transform.verifier.code import (
    POPS,
    PUSHES,
    TANGENT_PUSHES,
    Code,
    call_in,
    called,
    calls,
    is_in,
    method_of,
    module_call,
    name_of,
    names_among,
    names_in,
    nodes_of,
    results_of,
)
from tapegrad.transform.verifier.cotangents import Cotangents
from tapegrad.transform.verifier.memory import LIKE_ONE, MAKERS, SHAPE, VIEWS, Memory
from tapegrad.transform.verifier.static import Static
from tapegrad.transform.verifier.summary import Summary

_LIKE = ("copy", "where", "clip", "roll", "conj", "concatenate")
_COPIES = ("copy", "astype", "flatten", "conj", "conjugate")


class TangentNames(Cotangents):
    """The names that hold tangents or values computed from them: all but the primal names."""

    def __init__(self, code: Code) -> None:
        self.codes = [code]
        self.names = code.locals - code.primal
        self.parts = self._given(Role.SLOPE, Role.REST)
        self._set_values(Role.TANGENT)

    def is_forward(self, function: str) -> bool:
        return False

    def is_reverse(self, function: str) -> bool:
        return False

    def _is_cotangent(self, node: ast.stmt) -> bool:
        return any(is_in(n, self.names) for n in nodes_of(node))


class _Arrays(Memory):
    """What is known of the arrays of a function of forward mode.

    Names are classified as arrays more cautiously than elsewhere: if a number were classified as an
    array, its tangent could pass for a shared array.
    """

    def _evidence(self, node: ast.AST) -> None:
        match node:
            case ast.Attribute(ast.Name(), name) if name not in _SHAPED:
                return  # class instances have attributes as well
        # most functions of `arrays` change nothing, and `find_arrays` follows calls
        if module_call(node)[0] != "arrays" and called(node) not in self.summaries:
            super()._evidence(node)

    def _call(self, targets: list[ast.expr], call: ast.Call, summary: Summary) -> None:
        known = set(self.arrays)
        super()._call(targets, call, summary)
        self.arrays = known  # `find_arrays` follows calls

    def _is_array(self, node: ast.expr) -> bool:
        match node:
            case ast.Attribute(base, name) if name not in SHAPE:
                return self._is_array(base)
            case ast.Call() if found := method_of(node):
                base, name = found
                return (name in VIEWS or name in _COPIES) and self._is_array(base)
            case ast.Call(_, given):
                module, name = module_call(node)
                if module != "np":
                    return False
                if name in LIKE_ONE:
                    return super()._is_array(node)
                if name in MAKERS and name not in _LIKE:
                    return True
                ufunc = getattr(np, name, None)
                is_like = name in _LIKE or name in VIEWS
                is_like = is_like or (isinstance(ufunc, np.ufunc) and ufunc.signature is None)
                return is_like and any(map(self._is_array, given))
        return super()._is_array(node)

    def propagate(self, code: Code) -> None:
        """Find further arrays after some were found elsewhere."""
        before = -1
        while before != len(self.arrays):
            before = len(self.arrays)
            for dot, name in self.cotangents.values.items():
                if dot in self.arrays or name in self.arrays:
                    self.add_arrays([dot, name])
            for target, value in code.pairs:
                if target not in self.arrays:
                    if self._is_array(value):
                        self.add_arrays([target])
                elif source := name_of(value):
                    self.add_arrays([source])


_SHAPED = frozenset(["shape", "ndim", "size", "strides", "T", "flat"])


class TangentCode:
    """A function of forward mode, prepared for walks through it.

    Attributes
    ----------
    given
        The parts of parameters that have tangents, in the order of the parameters for tangents:
        the position of the parameter, and the indices of the items that lead to the part.
    parts
        The names of these parts.
    reads
        The names that it reads, and the tangents of arguments, which a caller reads.
    """

    def __init__(self, code: Code, summaries: dict[str, Summary]) -> None:
        self.code, self.codes, self.summaries = code, [code], summaries
        self.cotangents = TangentNames(code)
        self.bars = self.cotangents.names
        self.memory = _Arrays(self.codes, summaries, self.cotangents)
        self.reads = {n.id for s in code.statements for n in names_in(s)}.union(code.parameters)
        self.turnings: dict[int, object] = {}
        self.passed: set[tuple[int, bool]] = set()
        self.static: Static
        own = [p for p in code.parameters if p not in self.bars]
        self.own = own
        self.items = dict(filter(None, map(_item, code.statements)))
        self.parts = [self.cotangents.value_of(p) for p in code.parameters if p in self.bars]
        self.given: list[tuple[int, ...]] = []
        for part in self.parts:
            path: list[int] = []
            while part not in own:
                part, place = self.items[part]
                path.insert(0, place)
            self.given.append((own.index(part), *path))

    def is_part(self, name: str) -> bool:
        """Whether a name is a part of a parameter that is only unpacked, and only once."""
        if name not in self.items:
            return False
        base, _ = self.items[name]
        places = [place for of, place in self.items.values() if of == base]
        reads = {id(n) for s in self.code.statements for n in names_in(s) if n.id == base}
        if len(set(places)) < len(reads):
            return False
        return base in self.own or self.is_part(base)

    def is_kept(self, place: int) -> bool:
        """Whether a tangent of the result may also be kept on a tape."""
        _, dots = self.results()
        dot = name_of(dots[place])
        given = [
            n.id
            for s in self.code.statements
            if isinstance(s, ast.Assign)
            if called(s.value) or module_call(s.value) in TANGENT_PUSHES
            for n in names_in(s.value)
        ]
        return bool(dot) and any(self.memory.of(n) == self.memory.of(dot) for n in given)

    def results(self) -> tuple[ast.expr, list[ast.expr]]:
        """Return the returned value, and the tangents of its real parts."""
        end = self.code.body[-1]
        match end:
            case ast.Return(ast.Tuple([value, ast.Tuple(dots)])):
                return value, dots
            case ast.Return(ast.Tuple([value, dot])):
                return value, [dot]
        raise self.code.wrong("it does not return a value with its tangent", end)


def _item(statement: ast.stmt) -> tuple[str, tuple[str, Any]] | None:
    """Return the name that gets an item, and the name and the place that it is taken from."""
    match statement:
        case ast.Assign(
            [ast.Name(id=name), *_], ast.Subscript(ast.Name(id=base), ast.Constant(place))
        ):
            return name, (base, place)
    return None


def find_arrays(checked: dict[str, TangentCode]) -> None:
    """Find the arrays of all functions, following calls."""
    before = -1
    count = 0
    for one in checked.values():
        for statement in one.code.statements:
            one.memory.add_arrays(_changed(statement, one.bars))
    while before != count:
        before = count
        for one in checked.values():
            one.memory.propagate(one.code)
            for statement in one.code.statements:
                match statement:
                    case ast.Assign([target, *_], ast.Call() as call) if called(call) in checked:
                        _link(one, target, call, checked[called(call)])
        count = sum(len(one.memory.arrays) for one in checked.values())


def _changed(statement: ast.stmt, bars: set[str]) -> list[str]:
    """Return the names that a statement uses in a way that only arrays allow."""
    found: list[ast.expr] = []
    match statement:
        case ast.AugAssign(target):
            found = [target]
        case _ if calls(call := call_in(statement), PUSHES | TANGENT_PUSHES | POPS):
            assert isinstance(statement, ast.Assign)
            found = [call.args[0], leaves(statement.targets[0])[0]]
        case ast.Expr(ast.Call(_, [first, *_])) if is_in(first, bars):
            found = [first]
    return names_among(found)


def _link(one: TangentCode, target: ast.expr, call: ast.Call, other: TangentCode) -> None:
    given: list[ast.expr] = [ast.Name(p, ast.Load()) for p in other.code.parameters]
    pairs = list(zip(call.args, given, strict=False))
    pairs += zip(results_of(target), other.code.returned, strict=False)
    for ours, theirs in (map(name_of, pair) for pair in pairs):
        if ours and theirs:
            if ours in one.memory.arrays:
                other.memory.add_arrays([theirs])
            elif theirs in other.memory.arrays:
                one.memory.add_arrays([ours])


class Facts(Static):
    """Facts about the names of a function with tangents."""

    def __init__(self, checked: TangentCode, differentiated: set[str]) -> None:
        super().__init__(checked, differentiated)
        self.zeros = set(checked.parts).difference(checked.own)
        for name, value in checked.code.pairs:
            module = module_call(value)
            stem = checked.cotangents.value_of(name)
            is_copy = module[1].partition("_jvp_")[0] in _COPIED
            if is_copy or (module == ("np", "zeros_like") and checked.is_part(stem)):
                self.zeros.add(stem)


_COPIED = ("broadcast", "flatten", "nan_to_num")  # look like views, but may be copies
