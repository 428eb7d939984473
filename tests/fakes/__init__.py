"""Stand-ins for the programs that ours talk to; each listens on 127.0.0.1 and says what it is told to."""
