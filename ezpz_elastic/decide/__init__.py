"""What a failure means and what is done about it. Pure: no I/O, no torch, no clock, no environment."""
