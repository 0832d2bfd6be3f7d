"""What several of these tests stand on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from applying import Bench


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    """Give a bench, its journal closed in the end."""
    bench = Bench(tmp_path)
    yield bench
    bench.journal.close()
