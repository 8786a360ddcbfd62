"""What the numbers say: each verdict with its number, threshold and next step."""
