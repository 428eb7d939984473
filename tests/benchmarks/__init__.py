"""Measurements to run by hand: each prints a table; none decides a test."""
