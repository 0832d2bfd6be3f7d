"""A whole machine of Debian's in QEMU: its kernel, its programs, and this project."""
