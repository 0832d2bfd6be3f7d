"""The server killed with SIGKILL while an image is made into layers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from forkyard.base.durable import FAILPOINT_VARIABLE
from forkyard.model.workspace import ImageKind, ImageSource, TemplateSpec, TemplateState
from oci_images import tiny_root, write_layout
from station import station

pytestmark = pytest.mark.anyio

CHILD = """
import asyncio, sys
from pathlib import Path
from forkyard.model.workspace import ImageKind, ImageSource, TemplateSpec
from station import station

async def main(home, image):
    async with station(Path(home)) as here:
        source = ImageSource(kind=ImageKind.LAYOUT, location=image)
        await here.templates.apply("t", TemplateSpec(image="x", image_source=source))
        await here.templates.build("t")

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("failpoint", ["I01", "I02"])
async def test_nothing_is_left_and_the_next_build_works_when_the_server_died_unpacking(
    home: Path, tmp_path: Path, failpoint: str
) -> None:
    """Named and not begun, or unpacked and not named: the next server forgets both."""
    write_layout(tmp_path / "l", [tiny_root()])
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(home), str(tmp_path / "l")],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{root}/src:{root}/tests",
            FAILPOINT_VARIABLE: failpoint,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    async with station(home) as here:
        assert here.journal.state.images == {}
        assert here.left()["layers"] == []
        assert here.templates.get("t").state is TemplateState.FAILED
        source = ImageSource(kind=ImageKind.LAYOUT, location=str(tmp_path / "l"))
        await here.templates.apply("t", TemplateSpec(image="x", image_source=source))
        built = await here.templates.build("t")
        assert built.snapshot is not None
        assert len(here.left()["layers"]) == 2
