"""The code of derivatives, and the modules that it stands in."""
