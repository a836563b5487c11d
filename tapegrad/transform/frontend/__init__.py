"""From the source of a function to its typed normal form."""
