"""Ways to isolate: today an OCI runtime's container, configured by us."""
