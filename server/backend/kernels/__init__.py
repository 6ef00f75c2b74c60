"""Operators of our own for CPUs, which ``native/`` has, put in when a graph is loaded."""
