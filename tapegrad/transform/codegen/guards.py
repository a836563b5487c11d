"""Where an infinite partial passes nothing on, and which values follow from such places.

A cotangent of 0 times an infinite partial is 0 if nothing uses the value. So where it may not be
used, the product is guarded (`runtime.product`), and a cotangent of 0 has to mean just that: if a
value follows from the guarded one, its partials of 0 are marked (`runtime.nonzero`). Values go
through calls, so this is found for all functions of a module together.

Marks are smaller than all numbers of float32. Where one could be lost in an array of these, the
product is not guarded: it is nan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tapegrad.ops.table.op import Fact
from tapegrad.transform.codegen.analysis import Activity, unused_at_times
from tapegrad.transform.codegen.instance import Instance
from tapegrad.transform.ir import Let, defined, walk
from tapegrad.transform.kinds import is_single_array
from tapegrad.transform.rules.base import Elementary
from tapegrad.transform.rules.calls import Call


class _Guards:
    """The guarded values of one function; its results are `used` or may not be."""

    def __init__(self, instance: Instance, used: bool) -> None:
        self.instance = instance
        self.flow = Activity(instance.function, instance.arrays, (), ())
        self.sources: tuple[set[str], set[str]] = set(), set()
        for let in _lets(instance):
            rule = let.rule
            if isinstance(rule, Elementary) and rule.may_be_singular():
                self.sources[Fact.POLE in rule.op.facts].add(let.target)
        skipped = unused_at_times(instance.function, () if used else instance.results())
        stored = instance.arrays.is_stored
        for kind in self.sources:
            kind.intersection_update({n for n in kind if n in skipped or stored(n)})
        self.calls = [let for let in _lets(instance) if isinstance(let.rule, Call)]
        self.received = [False, False]  # whether arguments follow from guarded values, by kind
        written = [instance.leaves()[position] for position in instance.writes]
        self.outputs = {self.flow.node(n) for n in (*instance.results(), *written)}

    def find(self, known: dict[Instance, _Guards]) -> bool:
        """Find what follows from guarded values; return whether anything changed."""
        instance, changed = self.instance, False
        for kind, sources in enumerate(self.sources):
            found = set(sources)
            if self.received[kind]:
                found.update(instance.leaves())
            for let in self.calls:
                callee = known.get(let.rule.instance)
                if callee is not None and callee.returns(kind):
                    found.update((*defined(let), *let.rule.written()))
            following = self.flow.following(found) if found else set()
            changed |= following != instance.marked[kind]
            instance.marked[kind] = following
            for let in self.calls:
                callee = known.get(let.rule.instance)
                if callee is not None and not callee.received[kind]:
                    callee.received[kind] = self.follows(let.rule.inputs(), kind)
                    changed |= callee.received[kind]
        return changed

    def follows(self, names: Sequence[str], kind: int) -> bool:
        """Whether any of some values follows from a guarded one."""
        return any(self.flow.node(n) in self.instance.marked[kind] for n in names)

    def returns(self, kind: int) -> bool:
        """Whether a result, or what is written to an argument, follows from a guarded value."""
        return not self.outputs.isdisjoint(self.instance.marked[kind])


class _Losses:
    """Where marks would be lost: in an array of float32, of a partial that may be 0.

    What becomes of a value is known in parts: in its function, in what this calls, and, if results
    follow from it, in what calls this.
    """

    def __init__(self, guards: _Guards) -> None:
        self.guards = guards
        instance, node = guards.instance, guards.flow.node
        types = instance.function.types
        self.places = {
            "array": {node(n) for n in types if is_single_array(types[n])},
            "partial": {node(n) for let in _lets(instance) for n in let.rule.vanishing(let)},
        }
        self.inside: set[str] = set()  # what becomes of arguments ...
        self.after: set[str] = set()  # ... and of results

    def of(self, names: Iterable[str], known: dict[Instance, _Losses]) -> set[str]:
        """Return what becomes of some values, and of everything that follows from them."""
        following = self.guards.flow.following(names)
        found = {kind for kind, places in self.places.items() if places & following}
        for let in self.guards.calls:
            if not following.isdisjoint(map(self.guards.flow.node, let.rule.inputs())):
                callee = known.get(let.rule.instance)
                found |= self.places.keys() if callee is None else callee.inside
        return found if following.isdisjoint(self.guards.outputs) else found | self.after

    def find(self, known: dict[Instance, _Losses]) -> bool:
        """Find what becomes of arguments, and of the results of callees; whether it is new."""
        found = self.of(self.guards.instance.leaves(), known)
        changed = not found <= self.inside
        self.inside |= found
        for let in self.guards.calls:
            callee = known.get(let.rule.instance)
            if callee is not None:
                found = self.of([*defined(let), *let.rule.written()], known)
                changed |= not found <= callee.after
                callee.after |= found
        return changed

    def drop(self, known: dict[Instance, _Losses]) -> None:
        """Guard no value whose mark would be lost."""
        for kind in self.guards.sources:
            lost = {n for n in kind if self.of({n}, known) >= self.places.keys()}
            kind -= lost
            self.guards.instance.unmarkable |= lost


def find_guards(instances: Sequence[Instance], entry: Instance | None) -> None:
    """Find what follows from guarded values in functions that call each other.

    Parameters
    ----------
    instances
        The functions.
    entry
        The one whose only result has the cotangent 1, if there is one.
    """
    if any(entry is not None and instance.calls(entry) for instance in instances):
        entry = None
    known = {instance: _Guards(instance, instance is entry) for instance in instances}
    losses = {instance: _Losses(guards) for instance, guards in known.items()}
    if any(found.places["array"] for found in losses.values()):
        changed = True
        while changed:
            changes = [found.find(losses) for found in losses.values()]
            changed = any(changes)
        for found in losses.values():
            found.drop(losses)
    changed = True
    while changed:
        changes = [guards.find(known) for guards in known.values()]
        changed = any(changes)


def _lets(instance: Instance) -> Iterator[Let]:
    return (s for s in walk(instance.function.body) if isinstance(s, Let))
