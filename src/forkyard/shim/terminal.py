"""A terminal inside a container's own devpts: opened by the command's process, kept by the shim.

The master end is made where the command will run, as the user that it will run as, so that no
terminal of the host is named inside; it is handed to the shim before anything of the sandbox's
executes, by a process that nobody inside may look into.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

PTMX = "/dev/pts/ptmx"
"""Not /dev/ptmx: that is a link, and lies in a file system that root of the workspace may write."""
_PTMX_DEVICE = os.makedev(5, 2)
_TIOCSCTTY, _TIOCSWINSZ = 0x540E, 0x5414
_TIOCSPTLCK, _TIOCGPTPEER = 0x4004_5431, 0x5441
_TCGETS, _TCSETS = 0x5401, 0x5402
_TERMIOS = struct.Struct("=4I20s")
_IUTF8 = 0x4000
_SIZE = struct.Struct("=4H")
MOST_CELLS = 4096
END_OF_FILE = b"\x04"
"""What a terminal's user types for it."""


def open_terminal(rows: int, columns: int) -> int:
    """Make a terminal the calling session's own, on descriptors 0, 1 and 2.

    Returns:
        The master end, for the shim.

    Raises:
        OSError: There is no devpts here, or something else lies in its place.
    """
    master = os.open(PTMX, os.O_RDWR | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if os.fstat(master).st_rdev != _PTMX_DEVICE:
        raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
    fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("=i", 0))
    set_size(master, rows, columns)
    # The peer of this very master, whatever lies in /dev/pts.
    line = fcntl.ioctl(master, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    flags, *rest = _TERMIOS.unpack(fcntl.ioctl(line, _TCGETS, bytes(_TERMIOS.size)))
    fcntl.ioctl(line, _TCSETS, _TERMIOS.pack(flags | _IUTF8, *rest))
    fcntl.ioctl(line, _TIOCSCTTY, 0)
    for number in (0, 1, 2):
        os.dup2(line, number)
    return master


def set_size(master: int, rows: int, columns: int) -> None:
    """Tell a terminal its size; whoever is in its foreground gets SIGWINCH."""
    cells = [max(1, min(MOST_CELLS, number)) for number in (rows, columns)]
    fcntl.ioctl(master, _TIOCSWINSZ, _SIZE.pack(*cells, 0, 0))
