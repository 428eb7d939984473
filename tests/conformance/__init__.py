"""Runs conformance vectors: what the Go originals answered, against what this project answers."""
