"""Adapters to agents' command lines: they build a command and name its end, nothing else."""
