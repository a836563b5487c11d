"""Write the stubs: ``python -m tapegrad.stubs``."""

from tapegrad.stubs import stubs

for path, text in stubs().items():
    path.write_text(text)
