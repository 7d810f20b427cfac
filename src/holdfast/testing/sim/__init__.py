"""A simulation: the real engine on a simulated kernel, with a scheduler that owns every step of every process."""
