"""What other implementers can use to check theirs. Nothing in production imports it."""
