"""Faults done on purpose, each with a receipt from whoever saw it land, and a trainer and a command to do them with."""
