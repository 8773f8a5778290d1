"""Judges a finished run by what it left: journals, the workers' own records, the list of bad nodes."""
