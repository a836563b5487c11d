"""Generation of derivative code, and of the modules that contain it."""
