"""The SDK: forks, commands and runs from Python. It knows the wire format and nothing behind it."""
