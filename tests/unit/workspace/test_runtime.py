"""What doctor says of a machine's programs."""

from __future__ import annotations

from pathlib import Path

from forkyard.workspace.runtime import absent_programs


def test_what_is_not_installed_is_told_with_what_it_is_for(tmp_path: Path) -> None:
    """And nothing of what is there."""
    for name in ("skopeo", "slirp4netns"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)

    (told,) = absent_programs(str(tmp_path))

    assert told.startswith("buildah is not installed: no image is built from a Containerfile;")
