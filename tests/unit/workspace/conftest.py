"""Storage over a fake fleet, for all tests of workspace services."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.storage import Storage


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    """Give services over an empty state directory."""
    home = tmp_path / "s"
    home.mkdir()
    opened = Storage(home)
    yield opened
    opened.journal.close()
