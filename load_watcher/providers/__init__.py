"""Sources of node metrics, one file each; found by name through the registry and imported only when chosen."""
