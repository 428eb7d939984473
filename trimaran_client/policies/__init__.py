"""Scoring policies: one file each, pure arithmetic over columns of nodes."""
