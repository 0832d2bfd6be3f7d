"""What an attempt yields: collected from outside, proved by replay, laid into other workspaces.

Git never runs on an agent's .git nor with an agent's files as its work tree. Small helper
processes of ours read and write the trees by descriptor; git sees only objects they made.
"""
