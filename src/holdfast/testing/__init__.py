"""Tools for other implementers to check their implementations. Nothing in production imports it."""
