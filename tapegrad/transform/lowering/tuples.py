"""Tuples that hold reals, which are taken apart: their items are values of their own."""

from __future__ import annotations

import ast
from typing import Any

from numba.core import types

from tapegrad.transform.ir import (
    Atom,
    If,
    Let,
    Phi,
    Structure,
    class_text,
    constant,
    leaf_names,
    leaves_of,
    name,
)
from tapegrad.transform.kinds import holds_real
from tapegrad.transform.rules import base as rules
from tapegrad.transform.rules.generators import Lowerer


def named(lowering: Lowerer, kind: Any, stem: str) -> Any:
    """Return a new name of a type, or a structure of new names for a tuple."""
    if isinstance(kind, types.BaseTuple) and holds_real(kind):
        return Structure(
            kind, [named(lowering, item, f"{stem}_{k}") for k, item in enumerate(kind)]
        )
    target = lowering.fresh(stem)
    lowering.types[target] = kind
    return name(target)


def take_apart(lowering: Lowerer, base: Atom, kind: Any, stem: str) -> Structure:
    """Append statements that name the parts of a tuple."""
    items: list[Any] = []
    for position, item in enumerate(kind):
        part = ast.Subscript(base, constant(position), ast.Load())
        target = lowering.fresh(f"{stem}_{position}")
        lowering.types[target] = item
        lowering.block.append(Let(target, part, lowering.line, rules.Passive(True)))
        if isinstance(item, types.BaseTuple) and holds_real(item):
            items.append(take_apart(lowering, name(target), item, target))
        else:
            lowering.block[-1].rule = rules.Part()
            items.append(name(target))
    return Structure(kind, items)


def parts_of(lowering: Lowerer, atom: Atom) -> list[Any] | None:
    """Return the items of a tuple, None for anything else."""
    value = lowering.value(atom)
    if isinstance(value, Structure):
        return value.items
    kind = lowering.type_of(value)
    if isinstance(kind, types.BaseTuple) and isinstance(value, ast.Name):
        return take_apart(lowering, value, kind, value.id).items
    return None


def unpacked(lowering: Lowerer, arguments: list[Any]) -> list[Atom]:
    """Return the arguments of a call with starred ones replaced by their items."""
    found: list[Atom] = []
    for argument in arguments:
        if not isinstance(argument, ast.Starred):
            found.append(argument)
            continue
        items = parts_of(lowering, argument.value)
        if items is None:
            raise lowering.refuse("cannot differentiate a starred argument that is not a tuple")
        for item in items:
            if isinstance(item, Structure):
                target = lowering.fresh("item")
                lowering.types[target], lowering.parts[target] = item.type, item
                item = name(target)
            found.append(item)
    return found


def part(lowering: Lowerer, let: Let, base: Structure) -> None:
    """Lower an access to an item of a tuple."""
    match let.expr:
        case ast.Attribute(_, attribute):
            fields = getattr(base.type, "fields", ())
            if attribute not in fields:
                raise lowering.refuse(
                    f"cannot differentiate the attribute {attribute!r} of a tuple"
                )
            lowering.parts[let.target] = base.items[fields.index(attribute)]
            return
        case ast.Subscript(_, ast.Constant(int(position))):
            lowering.parts[let.target] = base.items[position]
            return
        case ast.Subscript(_, ast.Slice(lower, upper, step)):
            ends = (lower, upper, step)
            if all(end is None or isinstance(end, ast.Constant) for end in ends):
                chosen = slice(*(getattr(end, "value", None) for end in ends))
                found = Structure(lowering.types[let.target], base.items[chosen])
                lowering.parts[let.target] = whole_if_passive(lowering, found, let.target)
                return
    # a computed index becomes a chain of selections
    assert isinstance(let.expr, ast.Subscript)
    number = lowering.resolve(let.expr.slice)
    chosen_item: Any = base.items[-1]
    for position in range(len(base.items) - 2, -1, -1):
        hit = is_number(lowering, number, (position, position - len(base.items)), let.line)
        chosen_item = choose(lowering, hit, base.items[position], chosen_item, let)
    lowering.parts[let.target] = chosen_item


def whole_if_passive(lowering: Lowerer, found: Structure, target: str) -> Any:
    """Return a tuple as its parts, or the name of it as a whole if it holds no reals.

    Only tuples that hold reals are taken apart, in callers as in callees.
    """
    if holds_real(found.type):
        return found
    lowering.types[target] = found.type
    whole = found.build(lambda leaf: leaf)
    lowering.block.append(Let(target, whole, lowering.line, rules.Passive(True)))
    return name(target)


def is_number(lowering: Lowerer, number: Atom, wanted: tuple[int, int], line: int) -> ast.Name:
    """Append the comparison of an integer with two others; return whether either is equal."""
    found: list[ast.expr] = []
    for value in wanted:
        test = lowering.fresh("cond")
        lowering.types[test] = types.boolean
        equal = ast.Compare(number, [ast.Eq()], [constant(value)])
        lowering.block.append(Let(test, equal, line, rules.Passive(True)))
        found.append(name(test))
    both = lowering.fresh("cond")
    lowering.types[both] = types.boolean
    union = ast.BinOp(found[0], ast.BitOr(), found[1])
    lowering.block.append(Let(both, union, line, rules.Passive(True)))
    return name(both)


def choose(lowering: Lowerer, cond: Atom, one: Any, two: Any, let: Let) -> Any:
    """Append a selection between two values of a type; return the result."""
    if isinstance(one, Structure):
        target: Any = named(lowering, one.type, let.target)
    else:
        kind = lowering.types[let.target]
        if isinstance(kind, types.BaseTuple):
            kind = lowering.type_of(one)
        target = name(lowering.fresh(let.target))
        lowering.types[target.id] = kind
    triples = zip(leaf_names(target), leaves_of(one), leaves_of(two), strict=True)
    phis = [Phi(leaf, first, second) for leaf, first, second in triples]
    lowering.block.append(If(cond, [], [], phis, let.line))
    return target


def note_classes(lowering: Lowerer, kind: Any) -> None:
    """Make the classes of named tuples known to the generated code."""
    if hasattr(kind, "instance_class"):
        made = kind.instance_class
        statics = lowering.function.statics
        text = next((text for text, value in statics.items() if value is made), None)
        origin = None if text is None else ("name", lowering.function.source.function, text)
        if lowering.program.static(class_text(made), made, origin) != class_text(made):
            raise lowering.refuse(f"two named tuples are called {made.__name__}; rename one")
    for item in kind:
        if isinstance(item, types.BaseTuple):
            note_classes(lowering, item)


def pattern(structure: Structure) -> ast.expr:
    """Return the pattern that unpacks a structure."""
    return ast.Tuple(
        [pattern(item) if isinstance(item, Structure) else item for item in structure.items],
        ast.Load(),
    )
