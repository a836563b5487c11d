"""What the compiler generates for many programs, to see what a change of the compiler changes.

From the root of the repository, before and after the change, and what differs between them::

    python -m tests.generated /tmp/before
    python -m tests.generated /tmp/after
    diff -ru /tmp/before /tmp/after

Each file of a folder holds the modules of a program: its gradient with the value, its tangent, and
the tangent of its gradient. The programs are those of the benchmarks, for `tg.njit` and `tg.jit`,
random programs, and published functions if ``--packages`` names the folder of the corpus (see
``benchmarks/studies/njit_corpus.py``). A program that is refused has the text of the refusal.

Only types are inferred, so that a thousand programs take minutes. Names in the text depend on
nothing outside the program, so that equal compilers make equal files.
"""

import argparse
import functools
import itertools
import os
import pathlib
import re
import sys
import tempfile
import zlib

SETTINGS = {"NUMBA_OPT": "0", "NUMBA_DISABLE_CUDA": "1", "OMP_NUM_THREADS": "1"}


def parsed():
    parser = argparse.ArgumentParser(prog="python -m tests.generated", description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, help="where to write the modules")
    parser.add_argument("--random", type=int, default=300, help="number of random programs")
    parser.add_argument("--packages", help="folder of the published packages of the corpus")
    parser.add_argument("--only", default="", help="programs with this in their names")
    parser.add_argument("--part", default="1/1", help="such as 2/8: every eighth program")
    return parser.parse_args()


def modules_of(function, argnums, kinds):
    """Yield the names and texts of the modules of a compiled function's derivatives."""
    import tapegrad as tg

    dots = tuple(kinds[k] for k in argnums)
    yield "value and gradient", lambda: tg.value_and_grad(function, argnums).source(kinds)
    yield "tangent", lambda: tg.jvp(function, argnums).source((*kinds, *dots))
    k = argnums[0]
    second = tg.jvp(tg.grad(function, k), k)
    yield "tangent of the gradient", lambda: second.source((*kinds, dots[0]))


def of_benchmarks():
    """Yield the functions of numba of the benchmarks."""
    import numba

    import tapegrad as tg
    from benchmarks.programs.cases import Case
    from benchmarks.programs.njit import NJIT_PROGRAMS

    for workload in NJIT_PROGRAMS:
        case, loops = Case(workload, workload.quick), workload.loops
        function = tg.njit(**loops.options)(loops.nested() if loops.nested else loops.primal)
        kinds = tuple(map(numba.typeof, case.arguments))
        yield workload.name, functools.partial(modules_of, function, case.wrt, kinds)


def of_recordings():
    """Yield the recorded functions of the benchmarks."""
    import numpy as np

    import tapegrad as tg
    from benchmarks.programs.array_programs import PROGRAMS
    from benchmarks.programs.cases import Case
    from benchmarks.programs.peers import TapegradJit
    from benchmarks.programs.workloads import WORKLOADS

    for workload in WORKLOADS.values():
        if workload.recorded:
            case = Case(workload, workload.quick)
            loss = case.loss(TapegradJit().namespace())
            yield f"jit of {workload.name}", functools.partial(regions_of, loss, case.inputs)
    for name, (function, shapes) in PROGRAMS.items():
        rng = np.random.default_rng(0)
        arrays = [rng.standard_normal(shape) for shape in shapes]
        program = functools.partial(function, tg)
        yield f"jit of {name}", functools.partial(regions_of, program, arrays)


def regions_of(function, arrays):
    """Yield the texts of the compiled parts of a recording, and the modules of their gradients."""
    import numba

    import tapegrad as tg

    jitted = tg.jit(function)
    found = jitted._recorded(jitted._arguments(tuple(arrays), {}))
    if found.plan is None:
        yield "recording", lambda: found.reason
        return
    steps = [found] if found.region else found.plan.steps
    for region in (step.region for step in steps if hasattr(step, "region")):
        yield "recording", lambda text=region.text: text
        inputs = region.program.inputs
        kinds = (*map(kind_of, inputs), *map(numba.typeof, region.constants))
        places = tuple(k for k, node in enumerate(inputs) if node.dtype.kind == "f")
        gradient = region.gradient(places)
        if gradient is not None:
            yield "its gradient", lambda g=gradient, k=kinds: g.source(k)


def kind_of(node):
    """Return the type of a value of a recording, as a region is given it."""
    import numba

    kind = numba.from_dtype(node.dtype)
    return numba.types.Array(kind, len(node.shape), "C") if node.shape else kind


def of_random_programs(count):
    """Yield random programs."""
    import numba

    from tests.transform.random_programs.comparison import load
    from tests.transform.random_programs.writer import program_of

    def modules(program):
        kinds = tuple(map(numba.typeof, program.arguments(0)))
        return modules_of(load(program.source).f, tuple(program.argnums), kinds)

    for seed in range(count):
        yield f"random {seed}", functools.partial(lambda s: modules(program_of(s)), seed)


def of_corpus(packages):
    """Yield published functions."""
    from benchmarks.programs.corpus.packages import compile_lazily, open_packages
    from benchmarks.studies.njit_corpus import entries

    open_packages(packages)
    compile_lazily()
    folder = tempfile.mkdtemp(dir=os.environ["GENERATED"])
    for entry in entries(""):
        name = f"{entry['package']} {entry['function']}"
        yield name, functools.partial(losses_of, entry, folder)


def losses_of(entry, folder):
    """Yield the names and texts of the modules of a loss that calls a published function."""
    import numba

    from benchmarks.programs.corpus.judge import Judge, loss_text, module_of

    judge = Judge(entry, pathlib.Path(folder, "report"), folder)
    kinds = tuple(map(numba.typeof, judge.given(entry["points"][0], entry["size"])))
    loss = module_of(loss_text(entry, "tapegrad"), "loss", folder).loss
    yield from modules_of(loss, tuple(judge.active), kinds)


def text_of(make):
    """Return a text, or the error that came instead of it."""
    from tapegrad.transform.errors import TransformError
    from tests.transform.random_programs.interpret import types_only

    try:
        with types_only(small_blocks=False):
            return without_keys(make())
    except (TransformError, TypeError, ValueError, AttributeError) as error:
        where = re.sub(r'File "[^"]*"', 'File "..."', str(error))  # in a new folder each time
        return f"{type(error).__name__}: {where}\n"


def without_keys(text):
    """Return a text without the digests in the names of modules, which depend on the package."""
    return re.sub(r"[0-9a-f]{32}", "0" * 32, text)


def main():
    options = parsed()
    if os.environ.get("GENERATED") is None:  # start again with settings of the whole process
        folder = tempfile.mkdtemp(prefix="generated")
        os.environ.update(SETTINGS, GENERATED=folder, TAPEGRAD_CACHE_DIR=folder)
        os.execv(sys.executable, [sys.executable, "-m", "tests.generated", *sys.argv[1:]])

    number, parts = map(int, options.part.split("/"))
    options.folder.mkdir(parents=True, exist_ok=True)
    programs = itertools.chain(of_benchmarks(), of_recordings(), of_random_programs(options.random))
    if options.packages:
        programs = itertools.chain(programs, of_corpus(options.packages))
    for name, make in programs:
        if options.only in name and zlib.crc32(name.encode()) % parts == number - 1:
            write(options.folder / f"{name.replace(' ', '_')}.txt", make)


def write(file, make):
    """Write the modules of a program into a file."""
    texts = []
    try:
        for title, module in make():
            texts.append(f"# {title}\n\n{text_of(module)}")
    except Exception as error:  # what programs raise is part of the result
        texts.append(f"# {type(error).__name__}: {error}\n")
    file.write_text("\n\n".join(texts), encoding="utf-8")
    print(file.stem, sum(text.count("\n") for text in texts), flush=True)


if __name__ == "__main__":
    main()
