"""Derivatives check themselves in some of these tests, unless the environment says otherwise."""

import os
import shutil

import pytest
from processes import run, written

CHECKED = (
    "test_array_life", "test_calls", "test_control_flow", "test_recording", "test_verifier_defects",
)  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _verified(request):
    with pytest.MonkeyPatch.context() as patch:
        if "TAPEGRAD_VERIFY" not in os.environ and request.module.__name__ in CHECKED:
            patch.setenv("TAPEGRAD_VERIFY", "1")
        yield


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A function that runs a program once, and gives every test a copy of all that it left.

    It returns the path of the program, its cache, and what it printed.
    """
    known = {}

    def give(text, folder):
        if text not in known:
            made = tmp_path_factory.mktemp("ran")
            known[text] = made, run(written(made, text), made / "cache")
        made, printed = known[text]
        shutil.copytree(made, folder, dirs_exist_ok=True)
        return folder / "program.py", folder / "cache", printed

    return give
