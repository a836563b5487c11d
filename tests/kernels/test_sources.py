"""The sources that code on disk depends on, in folders and in zip files."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import tapegrad
from tapegrad.kernels.sources import sources

PACKAGE = Path(tapegrad.__file__).parent


def test_all_modules_of_a_folder():
    found = sources("transform", "ops")
    files = [file for name in ("transform", "ops") for file in (PACKAGE / name).rglob("*.py")]
    assert sorted(found) == sorted(file.read_bytes() for file in files)
    assert sources("kernels/intrinsics.py") == [(PACKAGE / "kernels/intrinsics.py").read_bytes()]


PROGRAM = """
import tapegrad as tg
from functions import square

assert ".zip" in tg.__file__
x = tg.tensor([1.0, 2.0], requires_grad=True)
tg.sum(tg.exp(x) * x).backward()
print(x.grad, tg.grad(square)(3.0), tg.grad(tg.jit(lambda x: tg.sum(x * x)))(x.detach()))
"""
FUNCTIONS = """
import tapegrad as tg

@tg.njit
def square(x):
    return x * x
"""


def test_package_and_functions_in_a_zip_file(tmp_path):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as made:
        for file in PACKAGE.rglob("*.py"):
            made.write(file, file.relative_to(PACKAGE.parent))
        made.writestr("functions.py", FUNCTIONS)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "all.zip")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "tensor([ 5.43656366, 22.1671683 ]) 6.0 tensor([2., 4.])\n", done.stderr
