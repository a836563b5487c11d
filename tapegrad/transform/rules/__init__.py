"""How every operation is differentiated."""
