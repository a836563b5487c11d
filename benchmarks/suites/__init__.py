"""What ``asv run`` follows from commit to commit: the files ``bench_*.py``, and what they share.

asv imports this folder alone, as the package ``suites``. So the root of the repository is added to
the path here; it comes last, so that the tapegrad which asv has installed is the one that runs.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

import benchmarks  # noqa: F401  sets the number of threads
