"""A generated module: the functions that one derivative needs, and how they are assembled."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from numba.core import types

from tapegrad.transform.builder import function_of, print_function
from tapegrad.transform.codegen.checkpointed import write_checkpointed
from tapegrad.transform.codegen.dead_arrays import without_values
from tapegrad.transform.codegen.directions import in_directions
from tapegrad.transform.codegen.instance import Instance, check_overlaps
from tapegrad.transform.codegen.mode import Mode
from tapegrad.transform.codegen.pullback import write_pullback
from tapegrad.transform.codegen.pushforward import write_pushforward, write_tangent
from tapegrad.transform.codegen.segments import cut
from tapegrad.transform.codegen.split import Variant, write_split
from tapegrad.transform.declared import Declared
from tapegrad.transform.errors import TransformError
from tapegrad.transform.frontend import optionals
from tapegrad.transform.frontend.body import RESERVED
from tapegrad.transform.frontend.inference import infer
from tapegrad.transform.frontend.normalize import normalize
from tapegrad.transform.frontend.pruning import prune
from tapegrad.transform.frontend.source import Source
from tapegrad.transform.generated import Generated
from tapegrad.transform.ir import FunctionIR, Let, Loop, Value, name, take, walk
from tapegrad.transform.kinds import holds_instance, is_array, is_real
from tapegrad.transform.lowering.assumptions import assumptions
from tapegrad.transform.lowering.fusion import fuse
from tapegrad.transform.lowering.inlining import inline
from tapegrad.transform.lowering.lower import Lowering
from tapegrad.transform.names import known_as
from tapegrad.transform.protocols import Returns
from tapegrad.transform.rules.base import Held, Unknown
from tapegrad.transform.rules.calls import Call
from tapegrad.transform.syntax import identifier
from tapegrad.transform.verifier.code import Primal
from tapegrad.transform.verifier.directions import verify_directions
from tapegrad.transform.verifier.purpose import Half, Purpose


class Program:
    """The functions of a generated module."""

    def __init__(self) -> None:
        self.instances: dict[Any, Instance] = {}
        self.variants: dict[Any, Variant] = {}
        self.tangents: dict[Any, str] = {}
        self.functions: list[Generated] = []
        # for the verifier: forward functions that are not called, and the primal of each function
        self.unwritten: list[str] = []
        self.primals: dict[str, Primal] = {}
        self.modes: dict[str, tuple[Mode, Any]] = {}  # see `note_mode`
        self.purposes: dict[str, Purpose] = {}  # what functions and their names are for
        # the function, and its pullback, of the reverse functions of segments
        self.segments: dict[str, tuple[str, str]] = {}
        self.rounded: list[str] = []  # what is to be said of values that are rounded
        self.statics: dict[str, Any] = {}
        self.origins: dict[str, Any] = {}  # how to find each of them in another process
        self.taken: set[str] = set(RESERVED)
        self._todo: list[Instance] = []
        # normal forms of callees, to be inlined; None while they are made, or if that failed
        self._forms: dict[Any, FunctionIR | None] = {}

    def note_primal(self, identifier: str, function: FunctionIR) -> None:
        """Keep what the verifier has to know of the function that generated code is made from."""
        kinds = function.types.items()
        arrays = {name for name, kind in kinds if is_array(kind)}
        numbers = {name for name, kind in kinds if isinstance(kind, (types.Number, types.Boolean))}
        text = print_function(function, identifier)
        flat = {name for name in arrays | numbers if not is_real(function.types[name])}
        self.primals[identifier] = Primal(text, arrays, numbers, flat)

    def note_halves(self, variant: Variant, names: Mapping[str, Value]) -> None:
        """Keep that two functions are halves of one, and what their names stand for."""
        forward, reverse = variant.forward_name, variant.reverse_name
        self.purposes[forward] = Purpose(Half.FORWARD, variant.stem, reverse, names)
        self.purposes[reverse] = Purpose(Half.REVERSE, variant.stem, forward, names)

    def note_mode(self, identifier: str, mode: Mode, unit: Any) -> None:
        """Keep what is known of a generated function; a unit is forward and reverse code."""
        self.modes[identifier] = mode, unit

    def fresh(self, stem: str) -> str:
        """Return an unused name of the module."""
        return take(stem, self.taken)

    def add_segment(self, segment: Instance) -> None:
        """Add the function that does some iterations of a checkpointed loop."""
        self.instances[segment.function.name, segment.kinds] = segment

    def add(self, function: ast.FunctionDef, dispatcher: Any) -> None:
        """Add a function that was made from a compiled one and inherits its options."""
        self.functions.append(Generated(function, dispatcher))

    def instance(self, dispatcher: Any, kinds: tuple[Any, ...]) -> Instance:
        """Return the instance for some argument types; it is analysed later."""
        key = (dispatcher, kinds)
        if key not in self.instances:
            self.instances[key] = Instance(dispatcher, kinds)
            self._todo.append(self.instances[key])
        return self.instances[key]

    @property
    def root(self) -> Instance | None:
        """The instance of the function that is differentiated."""
        return next(iter(self.instances.values()), None)

    def assume(self) -> Instance | None:
        """Assume what is probable of the extents of arguments; return the instance of the root.

        What is generated next is made from this instance. None if there is nothing to assume.
        """
        root = self.root
        if root is None or not root.probable or any(i.calls(root) for i in self.known()):
            return None
        made = Instance(root.dispatcher, root.kinds)
        made.equal = root.probable
        self.instances[root.dispatcher, root.kinds] = made
        self._todo.append(made)
        return made

    def analyse(self, *, is_reverse: bool = False) -> None:
        """Lower all instances and find their effects; for reverse mode, cut checkpointed loops."""
        while self._todo:
            instance = self._todo.pop()
            try:
                self._lower(instance)
            except TransformError as error:
                if instance is self.root:
                    raise
                instance.error = error
        known = self._find_effects()
        segments: list[Instance] = []
        while is_reverse and (made := [s for i in known for s in cut(self, i)]):
            segments += made
            known = self._find_effects()
        for segment in segments:
            self.add(function_of(segment.function, segment.function.name), segment.dispatcher)
        for instance in known:
            check_overlaps(instance)
        while any(map(self._find_disturbed, reversed(known))):  # callees first
            pass

    def _find_effects(self) -> list[Instance]:
        """Find the effects of all functions that can be differentiated, and return these."""
        known = self.known()
        while any(instance.find_effects() for instance in known):
            pass
        return known

    def known(self) -> list[Instance]:
        """Return the instances that can be differentiated."""
        return [instance for instance in self.instances.values() if instance.error is None]

    def _find_disturbed(self, instance: Instance) -> bool:
        """Refuse a function that changes what a class instance holds; return whether it does.

        Values read from instances are assumed not to change.
        """
        if instance.error is not None:
            return False
        function = instance.function
        for statement in walk(function.body):
            if not isinstance(statement, Let):
                continue
            rule, error = statement.rule, None
            if isinstance(rule, Call) and any(map(holds_instance, rule.kinds)):
                error = rule.error
            elif isinstance(rule, Held) and instance.arrays.is_stored(statement.target):
                error = TransformError(
                    "cannot differentiate a function that writes into an array that an instance of "
                    "a class holds; write into a copy, or pass the array as an argument",
                    function.source,
                    instance.arrays.store_line(function.body, statement.target),
                )
            if error is not None:
                if instance is self.root:
                    raise error
                instance.error = error
                return True
        return False

    def _lower(self, instance: Instance) -> None:
        """Lower one instance to the form that is differentiated."""
        for inlines in (True, False):
            function = self._form(instance.dispatcher, instance.kinds)
            inlined = inlines and inline(function, instance.dispatcher, self, self._inlined_form)
            if instance is self.root and not instance.equal:
                instance.probable = assumptions(function)
            try:
                function.equal = instance.equal
                fuse(function)
                lowering = Lowering(function, self)
                instance.function = lowering.run()
            except TransformError:
                if not inlined:
                    raise
                continue  # the error is shown where the callee has it
            if not inlined or not _has_unknown(instance.function):
                break
        instance.lowering = lowering
        instance.params = [lowering.parts.get(param, name(param)) for param in function.params]

    def _form(self, dispatcher: Any, given: tuple[Any, ...]) -> FunctionIR:
        """Return the typed normal form of a function for argument types."""
        source = Source(dispatcher.py_func)
        prune(source, given)
        function, kinds, result = normalize(source, lambda form: infer(form, given))
        function.types = dict(kinds)
        if not runs_in_parallel(dispatcher):
            for statement in walk(function.body):
                if isinstance(statement, Loop):
                    statement.parallel = False
        Declared(dispatcher).apply(function, given, result)
        for param, kind in zip(function.params, given, strict=True):
            function.types[param] = types.unliteral(kind)
        optionals.split(function)
        return function

    def _inlined_form(self, dispatcher: Any, given: tuple[Any, ...]) -> FunctionIR:
        """Return the normal form of a callee, in which calls are inlined but that of itself."""
        key = dispatcher, given
        if key not in self._forms:
            self._forms[key] = None
            function = self._form(dispatcher, given)
            inline(function, dispatcher, self, self._inlined_form)
            self._forms[key] = function
        found = self._forms[key]
        if found is None:
            raise TransformError(f"{dispatcher.__name__} calls itself")
        return found

    def variant(
        self,
        instance: Instance,
        active: tuple[bool, ...],
        same: bool,
        kept: tuple[bool, ...],
    ) -> Variant:
        """Return the forward and reverse functions of an instance, generating them at first use."""
        key = (instance, active, same, kept)
        found = self.variants.get(key)
        if found is not None:
            found.written = True  # its assumptions are now in use
            return found
        stem = instance.function.name
        found = Variant(stem, active, self.fresh(f"{stem}_forward"), self.fresh(f"{stem}_reverse"))
        self.variants[key] = found
        write = write_checkpointed if instance.is_segment else write_split
        write(self, instance, found, same, kept)
        return found

    def tangent(self, instance: Instance, active: tuple[bool, ...]) -> str:
        """Return the function that computes tangents as well, generating it at first use."""
        key = (instance, active)
        if key not in self.tangents:
            self.tangents[key] = self.fresh(f"{instance.function.name}_tangent")
            write_tangent(self, instance, active, self.tangents[key])
        return self.tangents[key]

    def pullback(
        self,
        instance: Instance,
        numbers: tuple[int, ...],
        seeds: int,
        returns: Returns,
        out: str = "",
    ) -> str:
        """Write the function that computes the gradient; return its name."""
        return write_pullback(self, instance, list(numbers), seeds, returns, out)

    def pushforward(self, instance: Instance, numbers: tuple[int, ...]) -> str:
        """Write the function that computes value and tangent; return its name."""
        return write_pushforward(self, instance, list(numbers))

    def drop_values(self) -> None:
        """Let functions compute no arrays that are only part of the value."""
        self.functions = without_values(self.functions)

    def take_directions(self, entry: str, given: int, count: int) -> None:
        """Let functions take several tangents, which is verified."""
        several, names = in_directions(self.functions, self.modes, entry, given, count)
        before, after = ([f.text for f in fs] for fs in (self.functions, several))
        verify_directions(before, after, names, entry)
        self.functions = several

    def static(self, text: str, value: Any, origin: Any) -> str:
        """Return the name in this module of an object that a function refers to as `text`."""
        if (known := known_as(text, value)) is not None:
            return known
        stem = identifier("".join(c if c.isalnum() else "_" for c in text), "outside")
        # local variables of functions have single underscores before numbers
        for found in [stem, *(f"{stem}__{k}" for k in range(1, len(self.statics) + 2))]:
            if found not in self.statics and found in self.taken:
                continue
            if self.statics.get(found, value) is value:
                break
        self.taken.add(found)
        self.statics[found] = value
        self.origins.setdefault(found, origin)
        return found

    def derived(self, base: Any, kind: str, positions: tuple[int, ...]) -> str:
        """Return the name of a derivative of a derivative."""
        made = getattr(base, kind)(positions)
        found = self.static(kind, made, (kind, self.origin_of(base), positions))
        if kind == "jvp":
            self.purposes[found] = Purpose(Half.TANGENT)
        return found

    def origin_of(self, value: Any) -> Any:
        """Return how to find an object of the module in another process, None if unknown."""
        return next((self.origins.get(t) for t, v in self.statics.items() if v is value), None)


def _has_unknown(function: FunctionIR) -> bool:
    """Whether a function has an operation without a derivative."""
    lets = [s for s in walk(function.body) if isinstance(s, Let)]
    return any(isinstance(let.rule, Unknown) for let in lets)


def runs_in_parallel(dispatcher: Any) -> bool:
    """Whether ``prange`` loops of a function may run in parallel."""
    if "_made_for" in dispatcher.py_func.__globals__:  # generated, from a function where they may
        return True
    return bool(dispatcher.targetoptions.get("parallel"))
