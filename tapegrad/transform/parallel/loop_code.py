"""The text of the functions that run a loop in parallel.

A *worker* runs its share of the iterations. The range is cut into stretches, which are dealt out
in turn: so loops whose iterations take longer and longer are balanced, and the same iterations are
always done by the same worker. Stretches of even numbers come first, then those of odd numbers.
The *guarded* worker reports an error instead of raising it. The function for all workers runs
them, adds up what they found in a fixed order, and raises the error of the first that failed.

Where a loop writes to the tape, each worker has a tape of its own, which belongs to that of the
caller. How many workers there were, and what they wrote, is on the tape of the caller, where the
reverse loop finds it.
"""

from __future__ import annotations

import ast
from contextlib import nullcontext

from tapegrad.transform.independence.plan import Plan
from tapegrad.transform.nodes import integer
from tapegrad.transform.printer import PARALLEL, Writer
from tapegrad.transform.syntax import subtree, text_of

_RESULTS = {"pushes": ["tape", "top"], "pops": ["top"]}  # of a function for all workers

_FAILED = (
    "an iteration of a prange loop raised an error, which is lost in its thread; with range in "
    "place of prange the derivative raises it"
)


# of a call in a try block: CPython builds a tuple of more, in a way that numba does not know there
_MOST_ARGUMENTS = 30


class LoopCode:
    """Writes the functions for one loop.

    Parameters
    ----------
    plan
        What is known of the loop.
    names
        The names of the worker, of the guarded worker, and of the function for all workers.
    tape
        What the loop does with the tape: ``pushes``, ``pops``, nothing, or it leaves it as it was
        and uses an ``own`` one.
    """

    def __init__(self, plan: Plan, names: list[str], tape: str) -> None:
        self.plan = plan
        self.tape = tape
        self.worker_name, self.guarded_name, self.driver_name = names
        self.taken = {n.id for n in subtree(plan.loop) if isinstance(n, ast.Name)}
        self.taken |= {*plan.given, *plan.sums}
        # the parameters of a worker that do not come from the loop
        roles = ("worker", "workers", "phase", "phases", "first", "step", "count")
        self.own = [self._unlike(role) for role in roles]
        self.has_tapes = tape in _RESULTS
        self.tapes = self._unlike("tapes")

    def _unlike(self, name: str) -> str:
        """Return a variant of a name that the loop does not use."""
        while name in self.taken:
            name += "_"
        return name

    def _parameters(self) -> list[str]:
        """Return the parameters of a worker."""
        return [*self.own, *self.plan.given, *([self.tapes] if self.has_tapes else [])]

    def _zeros(self, writer: Writer) -> None:
        for name, kind in self.plan.sums.items():
            writer(f"{name} = np.{kind}(0)")

    def worker(self) -> str:
        """Return the text of the worker."""
        worker, workers, phase, phases, first, step, count = self.own
        names = ("number", "block", "blocks", "half", "low", "high")
        number, block, blocks, half, low, high = map(self._unlike, names)
        is_backwards = self.tape == "pops"  # the same iterations as in the forward loop
        writer = Writer()
        writer.open(f"def {self.worker_name}({', '.join(self._parameters())}):")
        self._zeros(writer)
        if self.tape == "own":
            writer("tape = runtime.take_tape()")
            writer("top = 0")
        elif self.has_tapes:
            writer(f"tape = runtime.tape_of({self.tapes}, {worker})")
            writer("top = runtime.used(tape)")
        writer(f"{blocks} = runtime.blocks_of({count}, {workers})")
        halves, numbers = f"{phase}, {phase} + {phases}", f"{blocks} // {workers}"
        if is_backwards:
            halves, numbers = f"{phase} + {phases} - 1, {phase} - 1, -1", f"{numbers} - 1, -1, -1"
        inner = writer.block(f"for {number} in range({numbers}):")
        with writer.block(f"for {half} in range({halves}):"), inner:
            writer(f"{block} = runtime.share_of({number}, {worker}, {workers})")
            part = f"runtime.stretch(2 * {block} + {half}, 2 * {blocks}, {count})"
            writer(f"{low}, {high} = {part}")
            if is_backwards:
                writer(f"{low}, {high} = {count} - {high}, {count} - {low}")
            if integer(self.plan.bounds[2]) in (1, -1):  # known to whoever reads the loop again
                step = text_of(self.plan.bounds[2])
            place = f"{first} + {low} * {step}, {first} + {high} * {step}, {step}"
            with writer.block(f"for {self.plan.target} in range({place}):"):
                for node in self.plan.loop.body:
                    for line in text_of(node).splitlines():
                        writer(line)
        if self.tape == "own":
            writer("runtime.give_tape(tape)")
        elif self.has_tapes:
            writer("runtime.set_used(tape, top)")
        writer(f"return {', '.join(self.plan.sums) or None}")
        return writer.text()

    def guarded(self) -> str:
        """Return the text of the worker that reports errors."""
        writer = Writer()
        failed = self._unlike("failed")
        parameters = ", ".join(self._parameters())
        writer.open(f"def {self.guarded_name}({parameters}):")
        self._zeros(writer)
        writer(f"{failed} = True")
        call = f"{self.worker_name}({parameters})"
        if len(self._parameters()) > _MOST_ARGUMENTS:
            given = self._unlike("given")
            writer(f"{given} = ({parameters})")
            call = f"{self.worker_name}(*{given})"
        with writer.block("try:"):
            writer(f"{', '.join(self.plan.sums)} = {call}" if self.plan.sums else call)
            writer(f"{failed} = False")
        with writer.block("except Exception:"):
            writer("pass")
        writer(f"return {', '.join([failed, *self.plan.sums])}{'' if self.plan.sums else ','}")
        return writer.text()

    def driver(self) -> str:
        """Return the text of the function for all workers."""
        plan = self.plan
        worker, workers, phase, _, first, step, count = self.own
        names = ("last", "failed", "together", "number", "low", "high", "has_failed")
        last, failed, together, number, low, high, has_failed = map(self._unlike, names)
        parts = {name: self._unlike(f"{name}_parts") for name in plan.sums}
        copies = {name: self._unlike(f"{name}_copies") for name in plan.private}
        writer = Writer()
        parameters = [first, last, step, *plan.given, *plan.sums]
        parameters += ["tape", "top"] if self.has_tapes else []
        writer.open(f"def {self.driver_name}({', '.join(parameters)}):")
        writer(f"{count} = len(range({first}, {last}, {step}))")
        self._start(writer, together)
        for name, kind in plan.sums.items():
            writer(f"{parts[name]} = np.zeros({workers}, np.{kind})")
        for name in plan.private:
            writer(f"{copies[name]} = runtime.copies_of({name}, {workers})")
        writer(f"{failed} = np.zeros({workers}, np.int64)  # the phase, counted from 1")
        phases = 2 if plan.reach else 1
        phases_in_order = (
            f"range({phases - 1}, -1, -1)" if self.tape == "pops" else f"range({phases})"
        )

        def call(phase: str, copies: dict[str, str]) -> str:
            given = [f"{copies[n]}[{worker} - 1]" if n in copies else n for n in plan.given]
            given += [self.tapes] if self.has_tapes else []
            own = [worker, workers, phase, str(2 // phases), first, step, count]
            return ", ".join([*own, *given])

        results = [self._unlike(f"{name}_part") for name in plan.sums]
        targets = ", ".join([has_failed, *results]) + ("" if results else ",")
        turns = writer.block(f"for {number} in range(1 if {together} else {workers}):")
        with writer.block(f"for {phase} in {phases_in_order}:"), turns:
            one = f"({number}, {number} + 1)"
            writer(f"{low}, {high} = (0, {workers}) if {together} else {one}")
            with writer.block(f"for {worker} in {PARALLEL}({low}, {high}):"):
                for has_copies in (False, True) if copies else (False,):
                    head = "else:" if has_copies else f"if {worker} == 0:"
                    with writer.block(head) if copies else nullcontext():
                        text = call(phase, copies if has_copies else {})
                        writer(f"{targets} = {self.guarded_name}({text})")
                with writer.block(f"if {has_failed}:"):
                    writer(f"{failed}[{worker}] = {phase} + 1")
                for name, result in zip(plan.sums, results, strict=True):
                    writer(f"{parts[name]}[{worker}] += {result}")
        with writer.block(f"for {worker} in range({workers}):"):
            with writer.block(f"if {failed}[{worker}]:"):
                # for the error of the first iteration that fails: all of them in order, or those
                # of the worker if they need its tape
                again = call(f"{failed}[{worker}] - 1", {})
                if self.tape != "pops":
                    again = ", ".join(["0", "1", "0", "2", first, step, count, *plan.given])
                    again += f", {self.tapes}" if self.has_tapes else ""
                if plan.is_repeatable:
                    writer(f"{self.worker_name}({again})")
                writer(f"raise RuntimeError({_FAILED!r})")
            for name in plan.sums:
                writer(f"{name} += {parts[name]}[{worker}]")
        if copies:
            with writer.block(f"for {worker} in range(1, {workers}):"):
                for name, ndim in plan.private.items():
                    function = f"add_{ndim}_to_{ndim}" if ndim <= 3 else "add_to"
                    writer(f"arrays.{function}({name}, {copies[name]}[{worker} - 1])")
        if self.tape == "pushes":
            writer(f"tape, top = runtime.push_workers(tape, top, {workers})")
        writer(f"return {', '.join(self._results()) or None}")
        return writer.text()

    def _results(self) -> list[str]:
        """Return what the function for all workers returns."""
        return [*self.plan.sums, *_RESULTS.get(self.tape, [])]

    def _start(self, writer: Writer, together: str) -> None:
        """Write how many workers there are, and whether they may run at the same time."""
        plan = self.plan
        _, workers, _, _, first, step, count = self.own
        tests = [f"runtime.overlap({one}, {other})" for one, other in plan.overlaps]
        if plan.lowest is not None:
            tests.append(f"min({first}, {first} + ({count} - 1) * {step}) < {-plan.lowest}")
        if self.tape == "pops":
            writer(f"{workers}, top = runtime.pop_workers(tape, top)")
        else:
            writer(f"{workers} = runtime.workers_for({count})")
        if plan.reach:
            blocks = f"runtime.blocks_of({count}, {workers})"
            tests.append(f"{count} < {2 * plan.reach} * {blocks}")
        writer(f"{together} = True")
        if tests:
            with writer.block(f"if {' or '.join(tests)}:"):
                writer(f"{together} = False" if self.tape == "pops" else f"{workers} = 1")
        if self.has_tapes:
            writer(f"{self.tapes} = runtime.address_of(tape)")
        if self.tape == "pushes":
            writer(f"runtime.tape_of({self.tapes}, {workers} - 1)  # makes them all")

    def call(self) -> str:
        """Return the statement that stands for the loop."""
        plan = self.plan
        given = [*map(text_of, plan.bounds), *plan.given, *plan.sums]
        given += ["tape", "top"] if self.has_tapes else []
        call = f"{self.driver_name}({', '.join(given)})"
        results = self._results()
        return f"{', '.join(results)} = {call}" if results else call
