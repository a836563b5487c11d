"""From the source of a function to its normal form with types."""
