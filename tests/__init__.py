"""Tests of both packages; a package, as some installed distributions bring a top-level `tests` of their own."""
