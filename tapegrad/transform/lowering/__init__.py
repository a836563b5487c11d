"""From the normal form to what is differentiated: every operation with its rule."""
