"""End-to-end tests: our programs against a real Kubernetes control plane run as plain processes."""
