"""What generated and machine code is found again by."""
