"""The allowlist's proxy: a process of its own, without keys, that lets named hosts in."""
