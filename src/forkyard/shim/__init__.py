"""The processes that own running sandboxes and outlive the server. Standard library only.

The fork-server preloads this package once and forks a shim per sandbox in milliseconds; so
nothing here may import a heavy module or start a thread.
"""
