"""Programs that run in processes of their own, and leave their derivatives on disk."""

import os
import subprocess
import sys
import textwrap

# what makes a process refuse to find a derivative itself
FORBIDDEN = """
import sys
sys.modules["tapegrad.transform.generation"] = None
"""


def start(path, cache, prelude="", warnings="error"):
    """A process that runs a program."""
    code = f"{prelude}\nimport runpy; runpy.run_path({str(path)!r})"
    return subprocess.Popen(
        [sys.executable, "-W", warnings, "-c", code],
        env={**os.environ, "TAPEGRAD_CACHE_DIR": str(cache), "TAPEGRAD_VERIFY": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    """What a process prints, and what it warns of."""
    printed, errors = process.communicate()
    assert process.returncode == 0, errors
    return printed, errors


def run(path, cache, prelude=""):
    """What a program prints in a process of its own, without a warning."""
    return finish(start(path, cache, prelude))[0]


def written(tmp_path, text):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(text))
    return path


def check_stored(path, cache, first):
    """A second process prints the same, finds every derivative and leaves no other file."""
    files = sorted(p.name for p in (cache / "njit").glob("*.py"))
    assert files
    assert run(path, cache, FORBIDDEN) == first
    assert sorted(p.name for p in (cache / "njit").glob("*.py")) == files
