"""Runs: what should happen next (pure), doing it, and removing what no one owns."""
