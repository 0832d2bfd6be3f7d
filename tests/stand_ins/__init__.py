"""Hosts that a test must not reach, stood in for under their real names on this machine.

`hosts.py` lists them; nothing of the product, and nothing of what a user writes, knows of them.
"""
