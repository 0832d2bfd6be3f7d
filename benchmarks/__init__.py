"""What a fork, an exec and a collection cost, beside docker and podman on the same machine."""
