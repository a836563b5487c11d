"""Machine code of the package: where it is loaded, and by whom."""

import ctypes
import functools
import threading
import time

from tapegrad.kernels import cache, native


def test_threads_share_one_engine(monkeypatch):
    """One that is made beside it is deleted, together with code that another thread runs."""

    @functools.cache
    def engine():
        time.sleep(0.05)
        return object()

    monkeypatch.setattr(native, "_engine", engine)
    monkeypatch.setattr(native, "_load_object", lambda content: id(native._engine()))
    monkeypatch.setattr(cache, "read", lambda path, key: b"code")
    starts = threading.Barrier(2)

    def run(work):
        starts.wait()
        work()

    works = (native.keep_forever, lambda: native.load("key", lambda: None))
    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert engine.cache_info().misses == 1


def test_error_on_a_first_call(capsys):
    """Machine code gets 0, whatever ctypes would return, and the error is printed."""

    def resolve():
        raise ValueError("nothing to call")

    address = native.on_first_call(resolve, 2)
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(address)
    assert [call(7, 9), call(1, 1)] == [0, 0]
    assert capsys.readouterr().err.count("ValueError: nothing to call") == 2
