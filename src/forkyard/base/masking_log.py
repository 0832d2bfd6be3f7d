"""The log of a process that knows secrets: masked in messages, arguments and tracebacks alike."""

from __future__ import annotations

import logging
import sys
import threading
from types import TracebackType

from forkyard.base.masking import Masker

_LOG = logging.getLogger("forkyard")


class MaskingFormatter(logging.Formatter):
    """Another formatter, whose whole result is masked: nothing is written that did not pass it."""

    def __init__(self, inner: logging.Formatter, masker: Masker) -> None:
        """Stand before a formatter."""
        super().__init__()
        self._inner = inner
        self._masker = masker

    def format(self, record: logging.LogRecord) -> str:
        """Format, then mask."""
        return self._masker.mask_text(self._inner.format(record))


def mask_log(masker: Masker) -> None:
    """Mask whatever this process logs, and what it says when it dies of an exception.

    Call it once, after the handlers are there.
    """
    for handler in logging.getLogger().handlers:
        inner = handler.formatter or logging.Formatter()
        handler.setFormatter(MaskingFormatter(inner, masker))
    sys.excepthook = _tell
    threading.excepthook = lambda ended: _tell(
        ended.exc_type, ended.exc_value or ended.exc_type(), ended.exc_traceback
    )


def _tell(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt | SystemExit):
        _LOG.critical("Died of an exception", exc_info=(kind, error, traceback))
