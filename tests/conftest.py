"""Settings of the whole test suite."""

import os

from hypothesis import settings

# On a build machine the generated cases are the same every time; elsewhere they are new ones.
settings.register_profile("build", derandomize=True, deadline=None)
settings.register_profile("default", deadline=None)
settings.load_profile("build" if os.environ.get("CI") else "default")
