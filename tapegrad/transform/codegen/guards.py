"""Where an infinite partial passes nothing on, and which values follow from such places.

A cotangent of 0 times an infinite partial is 0 if nothing uses the value. So where it may not be
used, the product is guarded (`runtime.product`), and a cotangent of 0 has to mean just that: if a
value follows from the guarded one, its partials of 0 are marked (`runtime.nonzero`). Values go
through calls, so this is found for all functions of a module together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tapegrad.ops.op import Fact
from tapegrad.transform.codegen.analysis import Activity, unused_at_times
from tapegrad.transform.codegen.instance import Instance
from tapegrad.transform.ir import Let, defined, walk
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
        leaves = self.instance.leaves()
        written = [leaves[position] for position in self.instance.writes]
        return self.follows([*self.instance.results(), *written], kind)


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
    changed = True
    while changed:
        changes = [guards.find(known) for guards in known.values()]
        changed = any(changes)


def _lets(instance: Instance) -> Iterator[Let]:
    return (s for s in walk(instance.function.body) if isinstance(s, Let))
