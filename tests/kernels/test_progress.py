"""The line that says that code is compiled."""

import io
import time
from types import SimpleNamespace

import pytest

from tapegrad.kernels import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0.01)
    monkeypatch.setattr(progress, "_said", [])
    monkeypatch.delenv("TAPEGRAD_QUIET", raising=False)
    made = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=made))
    return made


def take_long(what="f"):
    with progress.compiling(what):
        time.sleep(0.2)


def test_one_line_in_a_process(terminal):
    take_long()
    take_long("g")
    assert terminal.getvalue().startswith("tapegrad: compiling f;")
    assert terminal.getvalue().count("\n") == 1


def test_no_line_for_a_moment(terminal, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 5.0)
    with progress.compiling("f"):
        pass
    assert terminal.getvalue() == ""


def test_one_line_for_nested_compilations(terminal):
    with progress.compiling("f"):
        take_long("g")
    assert terminal.getvalue().startswith("tapegrad: compiling f;")


def test_quiet(terminal, monkeypatch):
    monkeypatch.setenv("TAPEGRAD_QUIET", "1")
    take_long()
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("stream", [io.StringIO(), None])
def test_no_terminal(terminal, monkeypatch, stream):
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream))
    take_long()
    assert stream is None or stream.getvalue() == ""


def test_errors_pass(terminal):
    with pytest.raises(ZeroDivisionError), progress.compiling("f"):
        raise ZeroDivisionError
    take_long()
    assert terminal.getvalue().count("\n") == 1
