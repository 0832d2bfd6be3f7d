"""The log of a process that knows secrets."""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Iterator

import pytest

from forkyard.base.masking import Masker
from forkyard.base.masking_log import mask_log

SECRET = "sk-test-0123456789"  # noqa: S105 - a test's own


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Give what a root logger writes, masked; everything is as before afterwards."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root = logging.getLogger()
    before = root.handlers
    root.handlers = [handler]
    mask_log(Masker({"KEY": SECRET}))
    yield stream
    root.handlers = before


def _break() -> None:
    raise ValueError(f"cannot use {SECRET!r}")


def test_nothing_of_a_secret_is_written_when_logged(written: io.StringIO) -> None:
    """Message, arguments, traceback and the cause of a cause are masked, the rest is written."""
    logger = logging.getLogger("any.where")
    logger.error("key is %s", SECRET)
    try:
        _break()
    except ValueError as error:
        logger.exception("Bug with %r", {"key": SECRET})
        sys.excepthook(type(error), error, error.__traceback__)

    text = written.getvalue()
    assert SECRET not in text
    assert text.count("[secret KEY]") == 4
    assert text.count("Traceback") == 2


def test_thread_that_dies_is_logged_when_its_error_holds_a_secret(written: io.StringIO) -> None:
    """What Python would print by itself is logged, masked."""
    thread = threading.Thread(target=_break)
    thread.start()
    thread.join()

    assert SECRET not in written.getvalue()
    assert "cannot use '[secret KEY]'" in written.getvalue()
