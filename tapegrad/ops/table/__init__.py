"""How ops are declared: the table, and what the kinds of ops supply."""
