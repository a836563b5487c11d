"""Derivatives check themselves in some of these tests, unless the environment says otherwise."""

import os

import pytest

CHECKED = (
    "test_array_life", "test_calls", "test_control_flow", "test_recording", "test_verifier_defects",
)  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _verified(request):
    with pytest.MonkeyPatch.context() as patch:
        if "TAPEGRAD_VERIFY" not in os.environ and request.module.__name__ in CHECKED:
            patch.setenv("TAPEGRAD_VERIFY", "1")
        yield
