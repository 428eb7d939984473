"""The HTTP face of the watcher."""
