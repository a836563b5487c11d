"""The profiler: what it counts and times, its tables and files, and that it leaves no trace."""

import contextlib
import dis
import gc
import inspect
import json
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

import tapegrad as tg
from tapegrad import probes
from tapegrad.autograd.profiler import FunctionEvent, profile, record_function
from tapegrad.ops.table.op import TABLE


class Wait(tg.autograd.Function):
    """Take some time forward, and twice that backward."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        time.sleep(2 * ctx.seconds)
        return g, None


@tg.njit
def total(x):
    return np.sum(x * x)


@tg.njit
def doubled(x):
    return 2.0 * x


def counts(prof, *categories):
    """Numbers of calls by name; without what was compiled."""
    return {
        row.key: row.count
        for row in prof.key_averages()
        if (row.category in categories if categories else row.category != "compile")
    }


def row_of(prof, key, **options):
    (found,) = [row for row in prof.key_averages(**options) if row.key == key]
    return found


@pytest.fixture
def x():
    return tg.tensor([0.5, 1.5, 2.5], requires_grad=True)


class TestWhatIsSeen:
    def test_ops_forward_and_backward(self, x):
        with profile() as prof:
            y = tg.sum(tg.exp(x) * 2.0 - x)
            y.backward()
        assert counts(prof, "op") == {"exp": 1, "multiply": 1, "subtract": 1, "sum": 1}
        assert counts(prof, "pass") == {"backward": 1}
        assert counts(prof, "sweep") == {
            "SumBackward": 1,
            "SubtractBackward": 1,
            "MultiplyBackward": 1,
            "ExpBackward": 1,
        }

    def test_methods_operators_and_numpy_are_ops(self, x):
        with profile() as prof:
            np.exp(-x.sin().reshape(3, 1) / 2.0) @ np.ones((1, 2))
            3.0 - x
            x[1:].sum()
        assert counts(prof) == {
            "sin": 1,
            "reshape": 1,
            "divide": 1,
            "negative": 1,
            "exp": 1,
            "matmul": 1,
            "subtract": 1,
            "getitem": 1,
            "sum": 1,
        }

    def test_work_in_place(self, x):
        with profile() as prof:
            y = x * 1.0
            y += 1.0
            y.exp_()
            y[0] = 3.0
            y.zero_()
        found = counts(prof)
        assert {"add_", "exp_", "setitem_", "zero_"} <= found.keys()
        paths = {event.path() for event in prof.function_events}
        assert ("add_", "add") in paths  # what it is part of

    def test_ops_inside_of_others(self, x):
        with profile() as prof:
            tg.mean(x)
        (mean,) = [event for event in prof.function_events if event.name == "mean"]
        assert mean.parent is None
        assert [child.name for child in mean.cpu_children] == ["sum", "divide"]
        inner = sum(child.cpu_time_total for child in mean.cpu_children)
        assert mean.self_cpu_time_total == pytest.approx(mean.cpu_time_total - inner)

    def test_functions(self, x):
        with profile() as prof:
            y = Wait.apply(Wait.apply(x, 0.0), 0.0)
            y.sum().backward()
        assert counts(prof, "function") == {"Wait": 2}
        assert counts(prof, "sweep")["WaitBackward"] == 2

    def test_compiled_functions(self, x):
        array = np.ones(3)
        gradient = tg.grad(total)
        total(array), gradient(array), doubled(x)
        with profile() as prof:
            total(array)
            gradient(array)
            tg.sum(doubled(x)).backward()
        found = counts(prof, "function")
        assert found["total"] == found["total_gradient"] == 1
        assert found["doubled"] == 2  # with the tensor, and of its array
        (pass_,) = [event for event in prof.function_events if event.category == "pass"]
        assert pass_.cpu_children[0].name == "SumBackward"

    def test_compiled_functions_of_numbers_in_the_sweep(self, x):
        total(x)
        with profile() as prof:
            (total(x) + total(2.0 * x)).backward()
        assert counts(prof, "sweep")["TotalBackward"] == 2

    def test_what_is_compiled(self):
        @tg.njit
        def cubed(x):
            return x * x * x

        with profile() as prof:
            tg.grad(cubed)(2.0)
            tg.grad(cubed)(3.0)
        rows = [row for row in prof.key_averages() if row.key.startswith("compile cubed")]
        assert rows
        assert all(row.category == "compile" for row in rows)
        assert counts(prof, "function") == {"cubed_gradient": 2}

    def test_passes_on_tensors(self, x):
        with profile() as prof:
            (g,) = tg.autograd.grad(tg.sum(x * x * x), x, create_graph=True)
            tg.sum(g).backward()
        assert counts(prof, "pass") == {"grad": 1, "backward": 1}
        paths = {event.path() for event in prof.function_events}
        assert ("grad", "MultiplyBackward", "multiply") in paths  # recorded ops of the first pass
        assert ("backward", "MultiplyBackward") in paths

    def test_forward_mode(self, x):
        with profile() as prof, tg.autograd.forward_ad.dual_level():
            dual = tg.autograd.forward_ad.make_dual(x.detach(), tg.ones(3))
            tg.cumsum(dual)
        events = [event for event in prof.function_events if event.category == "tangent"]
        assert [event.path() for event in events] == [("cumsum", "cumsum (tangent)")]
        with profile() as prof:
            tg.jvp(tg.cumsum)(np.ones(3), np.ones(3))
        assert counts(prof, "tangent") == {"cumsum (tangent)": 1}

    def test_every_op_of_the_table_is_probed(self):
        named = {probe.name for probe in probes.PROBES if probe.category == "op"}
        assert set(TABLE) <= named

    def test_draws_of_random_numbers(self):
        with profile() as prof:
            tg.random.default_rng(0).normal(2.0, size=3)
        assert counts(prof)["draw of normal"] == 1

    def test_several_threads(self, x):
        def work():
            y = tg.tensor([1.0], requires_grad=True)
            tg.cos(y * 2.0).backward()

        with profile() as prof:
            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            tg.cos(x)
        assert counts(prof)["cos"] == 4
        assert counts(prof)["CosBackward"] == 3
        for event in prof.function_events:
            assert event.parent is None or event.parent.thread == event.thread

    def test_calls_that_raise(self, x):
        with profile() as prof:
            with pytest.raises(ValueError):
                tg.matmul(x, tg.ones((2, 2)))
            with pytest.raises(RuntimeError):
                tg.autograd.backward(x * 2.0)
        assert counts(prof) == {"matmul": 1, "multiply": 1, "backward": 1}


class TestNumbersOfCalls:
    @pytest.mark.parametrize("number", [1, 31, 32, 33, 50, 300, 1234])
    def test_they_are_exact(self, number):
        x = tg.tensor(1.0, requires_grad=True)
        with profile() as prof:
            y = x
            for _ in range(number):
                y = tg.sin(y)
            y.backward()
        assert counts(prof) == {"sin": number, "backward": 1, "SinBackward": number}
        with profile(every_call=True) as prof:
            for _ in range(number):
                y = tg.sin(y)
        assert len(prof.function_events) == number

    def test_of_short_ops_few_are_timed(self):
        x = tg.tensor(1.0)
        with profile() as prof:
            for _ in range(10_000):
                tg.negative(x)
        assert len(prof.function_events) < probes.TRIAL + 2 * 10_000 / probes.PERIOD
        assert counts(prof) == {"negative": 10_000}

    def test_of_long_ones_all_are(self, x):
        with profile() as prof:
            for _ in range(600):
                Wait.apply(x, 2e-5)
        assert sum(event.name == "Wait" for event in prof.function_events) == 600

    def test_more_records_than_the_list_of_times_holds(self):
        y = x = tg.tensor(1.0, requires_grad=True)
        for _ in range(10_000):
            y = y + 1.0
        with profile() as prof:
            y.backward()
        assert counts(prof, "sweep") == {"AddBackward": 10_000}
        assert x.grad == 1.0

    def test_more_functions_in_a_row_than_that(self):
        class Same(tg.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, g):
                return g

        y = x = tg.tensor(1.0, requires_grad=True)
        for _ in range(50):
            y = Same.apply(y)
        with profile() as prof:
            (y * 2.0).backward()
        assert counts(prof, "sweep") == {"MultiplyBackward": 1, "SameBackward": 50}
        assert x.grad == 2.0

    def test_in_several_threads(self):
        x = tg.tensor(1.0)

        def work():
            for _ in range(5000):
                tg.negative(x)

        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            with profile() as prof:
                threads = [threading.Thread(target=work) for _ in range(4)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
        finally:
            sys.setswitchinterval(before)
        assert counts(prof) == {"negative": 20_000}

    def test_of_functions_with_one_probe(self, x):
        class Often(tg.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

        class Seldom(Often):
            pass

        array = np.ones(3)
        total(array)
        with profile() as prof:
            for k in range(1000):
                Often.apply(x)
                total(array)
                if k % 300 == 0:
                    Seldom.apply(x)
        assert counts(prof, "function") == {"Often": 1000, "total": 1000, "Seldom": 4}

    def test_after_long_calls_all_are_timed_again(self):
        small, large = tg.ones(2), tg.ones(2_000_000)
        with profile() as prof:
            for _ in range(1000):
                tg.exp(small)
            for _ in range(4 * probes.PERIOD):
                tg.exp(large)
        assert counts(prof) == {"exp": 1000 + 4 * probes.PERIOD}
        timed = sum(event.cpu_time_total > 500 for event in prof.function_events)
        assert timed > 2 * probes.PERIOD


class TestTimes:
    def test_selfs_of_functions_whose_parts_are_not_all_timed(self):
        x = tg.tensor(np.ones(10))
        for every_call in (True, False):
            shares = []  # other work may interrupt a call that is timed for many
            for _ in range(5):
                with profile(every_call=every_call) as prof:
                    start = time.perf_counter()
                    for _ in range(3000):
                        tg.mean(x)
                    whole = 1e6 * (time.perf_counter() - start)
                assert counts(prof) == {"mean": 3000, "sum": 3000, "divide": 3000}
                shares.append(prof.self_cpu_time_total / whole)
            assert min(shares) <= 1.05

    def test_forward_and_backward(self, x):
        with profile() as prof:
            tg.sum(Wait.apply(x, 0.01)).backward()
        assert 10e3 <= row_of(prof, "Wait").cpu_time_total < 1e6
        assert 20e3 <= row_of(prof, "WaitBackward").cpu_time_total < 1e6
        assert row_of(prof, "backward").cpu_time_total >= 20e3

    def test_the_sweep_within_its_pass(self, x):
        with profile() as prof:
            tg.sum(tg.exp(x)).backward()
        (pass_,) = [event for event in prof.function_events if event.category == "pass"]
        records = [event for event in prof.function_events if event.category == "sweep"]
        assert [event.name for event in records] == ["SumBackward", "ExpBackward"]
        for event in records:
            assert event.parent is pass_
            assert pass_.start < event.start < event.end < pass_.end

    def test_sums_agree_with_the_clock(self):
        x = tg.tensor(np.ones(200_000), requires_grad=True)
        tg.sum(tg.exp(x)).backward()
        start = time.perf_counter()
        with profile() as prof:
            begun = time.perf_counter()
            for _ in range(5):
                tg.sum(tg.exp(x)).backward()
            inside = time.perf_counter() - begun
        everything = time.perf_counter() - start
        assert 0.3 * inside <= prof.self_cpu_time_total / 1e6 <= everything
        total = prof.total_average()
        assert total.self_cpu_time_total == pytest.approx(prof.self_cpu_time_total)

    def test_self_times_and_totals(self):
        outer = FunctionEvent("outer", "op", 1, 0, 100_000)
        inner = FunctionEvent("inner", "op", 1, 10_000, 12_000, count=16, parent=outer)
        outer.cpu_children.append(inner)
        assert inner.cpu_time_total == 2.0
        assert outer.self_cpu_time_total == 100.0 - 16 * 2.0
        assert inner.path() == ("outer", "inner")

    def test_names_of_records_with_hooks(self, x):
        y = tg.sin(x)
        y.register_hook(lambda g: g * 2.0)
        z = y * y
        z.retain_grad()
        w = tg.exp(z)
        w.grad_fn.register_hook(lambda a, b: None)
        out = w.sum()
        with profile() as prof:
            out.backward()
        assert [e.name for e in prof.function_events if e.category == "sweep"] == [
            "SumBackward",
            "ExpBackward",
            "MultiplyBackward",
            "SinBackward",
        ]

    @pytest.mark.parametrize("create_graph", [False, True])
    def test_ops_with_several_outputs(self, create_graph):
        a = tg.tensor(np.array([[2.0, 1.0], [1.0, 3.0]]), requires_grad=True)
        with profile(record_shapes=True) as prof:
            values, vectors = tg.linalg.eigh(a)
            tg.autograd.grad(values.sum() + vectors.sum(), a, create_graph=create_graph)
        found = counts(prof, "sweep")
        assert found == {"AddBackward": 1, "SumBackward": 2, "EighBackward": 1}
        rows = prof.key_averages(group_by_input_shape=True)
        (row,) = [row for row in rows if row.key == "EighBackward"]
        assert row.input_shapes == ((2, 2),)


class TestErrors:
    def test_local_variables_of_frames(self):
        """Debuggers and pytest show them; the code in place of a function's has its cells."""
        a = tg.tensor(np.ones((2, 3)), requires_grad=True)
        names = set()
        for _ in range(100):  # more calls than are all timed
            try:
                with profile():
                    tg.linalg.eigh(a)
            except np.linalg.LinAlgError as error:
                traceback = error.__traceback__
                while traceback is not None:
                    names |= traceback.tb_frame.f_locals.keys()
                    traceback = traceback.tb_next
        assert "op" in names

    def test_all_code_has_the_cells_of_functions(self):
        found = 0
        with profile():
            for each in probes.PROBES:
                free = each.function.__code__.co_freevars
                assert len(free) == len(each.function.__closure__ or ())
                if free:
                    found += 1
                    operations = [i.opname for i in dis.get_instructions(each.function)]
                    assert operations[0] == "COPY_FREE_VARS"
        assert found > 100


class TestRanges:
    @pytest.mark.parametrize("name", [3, None, ["a"], b"x"])
    def test_names_are_texts(self, name):
        with pytest.raises(TypeError, match=r"record_function: name is a .*, not a str"):
            record_function(name)

    def test_generators_are_refused(self):
        def steps():
            yield 1

        with pytest.raises(TypeError, match="steps is a generator or a coroutine"):
            record_function("steps")(steps)

    def test_nested_deeply(self, tmp_path):
        with profile() as prof:
            names = [record_function("a") for _ in range(2000)]
            for name in names:
                name.__enter__()
            for name in reversed(names):
                name.__exit__()
        assert counts(prof) == {"a": 2000}
        assert prof.function_events[0].cpu_memory_usage == 0
        assert len(prof.function_events[-1].path()) == 2000
        prof.table()
        prof.export_stacks(tmp_path / "stacks.txt")

    def test_odd_names(self, tmp_path):
        with profile() as prof:
            for name in ("two\nlines", "$x$", "", "ü\ud800"):
                with record_function(name):
                    pass
        assert "two lines" in prof.key_averages().table()
        prof.export_stacks(tmp_path / "stacks.txt")
        prof.export_chrome_trace(tmp_path / "trace.json")
        assert len((tmp_path / "stacks.txt").read_text().splitlines()) == 4

    def test_nested(self, x):
        with profile() as prof, record_function("step"), record_function("loss", "L2"):
            tg.sum(x)
        assert [event.path() for event in prof.function_events] == [
            ("step",),
            ("step", "loss(L2)"),
            ("step", "loss(L2)", "sum"),
        ]

    def test_as_decorator(self, x):
        @record_function("step")
        def step(n):
            """Count down."""
            return tg.sum(x) if n == 0 else step(n - 1)

        assert step.__doc__ == "Count down."
        with profile() as prof:
            step(2)
        assert counts(prof) == {"step": 3, "sum": 1}

    def test_in_a_loop_with_one_object(self, x):
        named = record_function("step")
        with profile() as prof:
            for _ in range(3):
                with named:
                    tg.sum(x)
        assert counts(prof) == {"step": 3, "sum": 3}

    def test_without_a_profile(self):
        with record_function("alone"):
            pass

    def test_left_by_an_error(self):
        with profile() as prof, pytest.raises(KeyError), record_function("fails"):
            raise KeyError
        assert counts(prof) == {"fails": 1}


class TestDetails:
    def test_shapes(self):
        a, b = tg.ones((2, 3)), tg.tensor(np.ones((3, 4)), requires_grad=True)
        with profile(record_shapes=True) as prof:
            tg.sum(a @ b).backward()
            a @ tg.ones((3, 1))
            tg.stack([a, a])
            a * 2.0
        rows = prof.key_averages(group_by_input_shape=True)
        found = {(row.key, row.input_shapes): row.count for row in rows}
        assert found["matmul", ((2, 3), (3, 4))] == found["matmul", ((2, 3), (3, 1))] == 1
        assert found["MatmulBackward", ((2, 3), (3, 4))] == 1
        assert found["stack", ((2, 3), (2, 3))] == 1
        assert found["multiply", ((2, 3), ())] == 1
        assert counts(prof)["matmul"] == 2
        assert "[[2, 3], [3, 4]]" in rows.table()

    def test_shapes_of_keyword_arguments_and_lists(self):
        a = tg.ones((3, 4))
        with profile(record_shapes=True) as prof:
            tg.clip(a, min=0.0, max=tg.tensor(2.0))
            tg.concatenate(arrays=[a, a])
        found = {event.name: event.input_shapes for event in prof.function_events}
        assert (
            found.items()
            >= {
                "clip": ((3, 4), (), ()),
                "concatenate": ((3, 4), (3, 4)),
            }.items()
        )

    def test_shapes_of_recorded_passes(self, x):
        with profile(record_shapes=True, with_stack=True) as prof:
            y = x
            for _ in range(60):  # a walk over all paths of the graph would not end
                y = y * y * 0.1
            tg.autograd.grad(y.sum(), x, create_graph=True)
        event = next(e for e in prof.function_events if e.name == "MultiplyBackward")
        assert event.input_shapes[0] == (3,)
        assert "test_profiler.py" in event.stack[0]

    def test_shapes_of_batches(self):
        with profile(record_shapes=True, profile_memory=True, with_stack=True):
            found = tg.vmap(lambda row: tg.sum(row * 2.0))(np.ones((2, 3)))
        np.testing.assert_array_equal(found, [6.0, 6.0])

    def test_a_list_that_contains_itself(self, x):
        class Given(tg.autograd.Function):
            @staticmethod
            def forward(ctx, x, values):
                return x.clone()

        values = []
        values.append(values)
        with profile(record_shapes=True) as prof:
            Given.apply(x, values)
        assert counts(prof)["Given"] == 1

    def test_memory_of_several_results_and_of_work_in_place(self):
        a = tg.ones((4, 4))
        with profile(profile_memory=True) as prof:
            tg.linalg.svd(a)
            a += 1.0
        assert row_of(prof, "add_").self_cpu_memory_usage == 0
        assert row_of(prof, "add").self_cpu_memory_usage == 128
        assert prof.total_average().self_cpu_memory_usage == 128 + (16 + 4 + 16) * 8

    def test_what_is_returned_as_given_was_made_before(self, x):
        with profile(with_stack=True) as prof:
            y = tg.exp(x)
            tg.sum(tg.atleast_1d(y)).backward()
        rows = {event.name: event.stack[0] for event in prof.function_events if event.stack}
        assert rows["ExpBackward"] == rows["exp"] != rows["sum"]

    def test_memory(self):
        with profile(profile_memory=True) as prof:
            x = tg.tensor(np.ones(1000), requires_grad=True)
            y = tg.exp(x)
            y.reshape(10, 100)
            tg.mean(y).backward()
            z = tg.ones((10, 100)).T
        memory = {row.key: row.self_cpu_memory_usage for row in prof.key_averages()}
        assert memory["exp"] == 8000
        assert memory["reshape"] == memory["mean"] == 0  # a view; made by its parts
        assert memory["sum"] == memory["divide"] == 8
        assert memory["ExpBackward"] >= 8000  # the gradient of x
        assert row_of(prof, "backward").cpu_memory_usage >= 8000
        assert "Self CPU Mem" in prof.key_averages().table()
        assert z.shape == (100, 10)

    def test_memory_is_estimated_for_all_calls(self):
        x = tg.ones(10)
        with profile(profile_memory=True) as prof:
            for _ in range(5000):
                tg.negative(x)
        assert row_of(prof, "negative").cpu_memory_usage == 5000 * 80

    def test_lines(self, x):
        def loss():
            return tg.exp(x)

        line = loss.__code__.co_firstlineno + 1
        with profile(with_stack=True) as prof:
            tg.sum(loss()).backward()
            loss()
        here = f"{Path(__file__)}({line}): loss"
        rows = prof.key_averages(group_by_stack_n=1)
        found = {(row.key, row.stack): row.count for row in rows}
        assert found["exp", (here,)] == 2
        assert found["ExpBackward", (here,)] == 1  # the line of its op
        apart = [row.key for row in prof.key_averages(group_by_stack_n=2) if row.key == "exp"]
        assert len(apart) == 2
        assert "test_profiler.py" in rows.table(max_src_column_width=300)

    def test_what_was_not_kept(self, x):
        with profile() as prof:
            tg.sum(x)
        with pytest.raises(ValueError, match="use record_shapes=True"):
            prof.key_averages(group_by_input_shape=True)
        with pytest.raises(ValueError, match="use with_stack=True"):
            prof.key_averages(group_by_stack_n=3)


class TestTables:
    @pytest.fixture
    def prof(self, x):
        with profile() as found:
            for _ in range(3):
                tg.exp(x)
            Wait.apply(x, 0.05)
        return found

    def test_sorted(self, prof):
        lines = prof.key_averages().table(sort_by="cpu_time_total").splitlines()
        assert lines[1].split()[:2] == ["Name", "Category"]
        assert lines[3].startswith("Wait")
        assert prof.key_averages().table(sort_by="count").splitlines()[3].startswith("exp")
        assert lines[-1].startswith("Self CPU time total: ")

    def test_row_limit_and_header(self, prof):
        text = prof.key_averages().table("count", row_limit=1, header="What took how long")
        assert text.startswith("What took how long\n")
        assert "exp" in text
        assert "Wait" not in text
        assert "2 more rows" in text
        assert "more rows" not in prof.key_averages().table(row_limit=-1)

    def test_of_events(self, prof):
        assert str(prof).count("exp ") == 3
        top = prof.table(top_level_events_only=True)
        assert "Wait" in top
        assert "positive" not in top  # part of Wait
        with pytest.raises(ValueError, match="sums have no level"):
            prof.key_averages().table(top_level_events_only=True)

    def test_names_are_cut(self, prof):
        with profile() as named, record_function("a" * 100):
            pass
        assert "a" * 17 + "..." in named.key_averages().table(max_name_column_width=20)

    def test_events_by_their_time(self, prof):
        lines = prof.table(sort_by="cpu_time").splitlines()
        assert lines[3].startswith("Wait")

    def test_unknown_key(self, prof):
        with pytest.raises(ValueError, match=r"sort_by: expected one of .*, got 'time'"):
            prof.key_averages().table(sort_by="time")

    def test_empty(self):
        with profile() as prof:
            pass
        assert prof.key_averages().table() == ""
        assert prof.self_cpu_time_total == 0

    def test_texts_of_rows(self, prof):
        assert repr(row_of(prof, "exp")).startswith("<FunctionEventAvg exp: 3 calls, ")
        assert repr(prof.function_events[0]).startswith("<FunctionEvent exp: ")


class TestFiles:
    def test_chrome_trace(self, x, tmp_path):
        with profile(record_shapes=True) as prof, record_function("step"):
            tg.sum(tg.exp(x)).backward()
        prof.export_chrome_trace(tmp_path / "trace.json")
        trace = json.loads((tmp_path / "trace.json").read_text())
        complete = {e["name"]: e for e in trace["traceEvents"] if e["ph"] == "X"}
        assert complete.keys() >= {"step", "exp", "sum", "backward", "ExpBackward"}
        step, exp, sweep = complete["step"], complete["exp"], complete["ExpBackward"]
        assert step["ts"] == 0
        for inner in (exp, sweep):
            assert step["ts"] <= inner["ts"]
            assert inner["ts"] + inner["dur"] <= step["ts"] + step["dur"]
        assert exp["args"] == {"input shapes": [[3]]}
        assert exp["tid"] == sweep["tid"]
        assert exp["cat"] == "op"

    def test_stacks(self, x, tmp_path):
        with profile() as prof, record_function("a;b"):
            tg.mean(x)
            tg.mean(x)
        prof.export_stacks(tmp_path / "stacks.txt")
        lines = dict(
            line.rsplit(" ", 1) for line in (tmp_path / "stacks.txt").read_text().splitlines()
        )
        assert lines.keys() == {"a,b", "a,b;mean", "a,b;mean;sum", "a,b;mean;divide"}
        assert sum(map(int, lines.values())) == pytest.approx(1e3 * prof.self_cpu_time_total, abs=9)
        with pytest.raises(ValueError, match="metric"):
            prof.export_stacks(tmp_path / "stacks.txt", "self_cuda_time_total")

    def test_pictures(self, x, tmp_path):
        pytest.importorskip("matplotlib")
        with profile(profile_memory=True) as prof, record_function("step"):
            tg.sum(tg.exp(Wait.apply(x, 0.001))).backward()
        chart = prof.bar_chart(tmp_path / "bars.png", row_limit=3)
        assert (tmp_path / "bars.png").stat().st_size > 1000
        (axes,) = chart.axes
        names = [label.get_text() for label in axes.get_yticklabels()]
        assert {*names[-2:]} == {"Wait", "WaitBackward"}  # the largest ones are at the top
        widths = [bar.get_width() for bar in axes.patches]
        assert widths == sorted(widths)
        for key in ("count", "cpu_memory_usage", "cpu_time"):
            prof.bar_chart(sort_by=key)
        graph = prof.flame_graph(tmp_path / "flame.svg")
        assert (tmp_path / "flame.svg").stat().st_size > 1000
        texts = " ".join(text.get_text() for text in graph.axes[0].texts)
        assert "step" in texts
        assert "WaitBackward" in texts
        boxes = [box for box in graph.axes[0].patches if box.get_y() > -1.5]
        assert sum(box.get_width() for box in boxes) == pytest.approx(1.0)

    def test_pictures_without_matplotlib(self, x, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        with profile() as prof:
            tg.sum(x)
        for draw in (prof.bar_chart, prof.flame_graph):
            with pytest.raises(ImportError, match=r"pip install 'tapegrad\[plot\]'"):
                draw()

    def test_pictures_of_nothing(self):
        pytest.importorskip("matplotlib")
        with profile() as prof:
            pass
        prof.bar_chart()
        prof.flame_graph()


class TestLeavesNoTrace:
    def codes(self):
        functions = [p.function for p in probes.PROBES if type(p) is probes.Probe]
        return [function.__code__ for function in functions]

    def test_after_interrupts(self, monkeypatch):
        before, stop, left = self.codes(), probes.Probe.stop, [3]

        def interrupted(probe):
            if left[0]:
                left[0] -= 1
                raise KeyboardInterrupt
            return stop(probe)

        monkeypatch.setattr(probes.Probe, "stop", interrupted)
        with pytest.raises(KeyboardInterrupt), profile() as prof:
            tg.sin(1.0)
        assert self.codes() == before
        assert counts(prof) == {"sin": 1}
        with profile() as prof:
            tg.sin(1.0)
        assert counts(prof) == {"sin": 1}

    def test_at_the_limit_of_recursion(self):
        x = tg.tensor(1.0)

        def deep():
            try:
                deep()
            except RecursionError:
                tg.sin(x)

        with profile():
            with contextlib.suppress(RecursionError):
                deep()
            for _ in range(1000):
                assert tg.sin(x).item() == np.sin(1.0)

    def test_another_profile_that_is_left(self):
        with profile() as prof:
            profile().__exit__(None, None, None)
            tg.sin(1.0)
        assert counts(prof) == {"sin": 1}

    def test_a_call_that_is_under_way_when_it_ends(self, x):
        prof = profile()
        prof.__enter__()

        class Ending(tg.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                prof.__exit__()
                return tg.exp(x) * 1.0

        assert Ending.apply(x).shape == (3,)
        assert counts(prof).get("exp") is None

    def test_the_log_is_freed(self):
        class Kept:
            pass

        kept = Kept()
        seen = weakref.ref(kept)
        with profile() as prof:
            tg.sin(1.0)
        prof._log.append(kept)
        del prof, kept
        gc.collect()
        assert seen() is None

    def test_warnings_name_the_line_of_the_user(self, x):
        with profile(), pytest.warns(UserWarning, match="create_graph=True") as caught:
            tg.autograd.backward(tg.sum(x), create_graph=True)
        assert caught[0].filename == __file__
        with pytest.warns(UserWarning, match="create_graph=True") as caught:
            tg.sum(x).backward(create_graph=True)
        assert caught[0].filename == __file__

    def test_functions_are_as_before(self, x):
        before = self.codes()
        with profile(record_shapes=True, profile_memory=True, with_stack=True):
            assert tg.sin.__code__ not in before
            tg.sin(x)
        assert self.codes() == before
        assert "__call__" not in vars(type(total).__mro__[1])

    def test_after_an_error(self, x):
        before = self.codes()

        def fail():
            with profile() as prof:
                found.append(prof)
                tg.sin(x)
                raise KeyError

        found = []
        with pytest.raises(KeyError):
            fail()
        (prof,) = found
        assert self.codes() == before
        assert counts(prof) == {"sin": 1}

    def test_results_are_the_same(self, x):
        def program():
            y = tg.sum(tg.exp(x)[1:] * 3.0) + total(x)
            y += tg.mean(Wait.apply(x, 0.0))
            (g,) = tg.autograd.grad(y, x, create_graph=True)
            return y.detach(), g.detach(), tg.autograd.grad(tg.sum(g), x)[0]

        plain = program()
        with profile(record_shapes=True, profile_memory=True, with_stack=True):
            profiled = program()
        for a, b in zip(plain, profiled, strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))

    def test_results_are_not_kept(self, x):
        with profile(record_shapes=True, profile_memory=True, with_stack=True):
            y = tg.exp(x)
            seen = weakref.ref(y.detach().numpy())
            del y
            assert seen() is None

    def test_signatures_and_errors(self, x):
        before = inspect.signature(tg.sum)
        with profile():
            assert inspect.signature(tg.sum).parameters["axis"].default is None
            tg.sum(x, axis=0, keepdims=True)
            with pytest.raises(TypeError):
                tg.sum(x, 0, True)
        assert inspect.signature(tg.sum) == before

    def test_two_at_once_are_refused(self):
        with profile():
            with pytest.raises(RuntimeError, match="Another profiler is running"), profile():
                pass
            tg.sin(1.0)
        with profile() as prof:
            tg.sin(1.0)
        assert counts(prof) == {"sin": 1}

    def test_twice_is_refused(self):
        prof = profile()
        with prof:
            pass
        with pytest.raises(RuntimeError, match="Profiler context manager is not reentrant"), prof:
            pass

    def test_results_while_it_runs_are_refused(self):
        with profile() as prof:
            with pytest.raises(RuntimeError, match="Profiler didn't finish running"):
                prof.key_averages()
            assert str(prof) == "<unfinished profile>"

    def test_switched_off(self, x):
        with profile(enabled=False) as prof:
            tg.sin(x)
        assert prof.function_events == []
        with profile(enabled=False), profile() as prof:
            tg.sin(x)
        assert counts(prof) == {"sin": 1}

    def test_functions_defined_meanwhile(self):
        with profile() as prof:
            named = probes.probe("late")(lambda a, /, *rest, b=2, **more: (a, rest, b, more))
            assert named(1, 5, b=3, c=4) == (1, (5,), 3, {"c": 4})
        try:
            assert counts(prof) == {"late": 1}
            assert named(1) == (1, (), 2, {})
        finally:
            probes.PROBES.pop()


def test_probed_functions_keep_closures_and_defaults():
    def make(offset):
        def inner(x, y=10, *, z=100):
            return offset + x + y + z

        return inner

    function = make(1000)
    probe = probes.Probe(function, "inner", "op", False)
    log = []
    probe.start(log, lambda args, result: (args, result), True)
    assert function(1) == 1111
    assert function(1, 2, z=3) == 1006
    assert probe.stop() == 0  # after the last event
    assert function(2) == 1112
    assert [entry[-1] for entry in log] == [((1, 10, 100), 1111), ((1, 2, 3), 1006)]
