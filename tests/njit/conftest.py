"""Derivatives check themselves in these tests, unless the environment says otherwise."""

import os

import pytest


@pytest.fixture(autouse=True, scope="module")
def _verified():
    with pytest.MonkeyPatch.context() as patch:
        if "TAPEGRAD_VERIFY" not in os.environ:
            patch.setenv("TAPEGRAD_VERIFY", "1")
        yield
