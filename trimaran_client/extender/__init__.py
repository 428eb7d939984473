"""
A kube-scheduler extender: an unmodified scheduler asks it over HTTP and places pods by measured load.

It answers from memory, at once: whatever hangs or fails behind it, the scheduler gets an answer, and a neutral one rather than a wrong one.
"""
