"""Formats that cross a boundary: files people write, and JSON between server and client."""
