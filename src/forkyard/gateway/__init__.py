"""The gateway: holds the providers' keys, counts every token, and keeps every budget."""
