"""Looks at the world and returns evidence; never says what it means."""
