"""What is told of an image that cannot be had."""

from __future__ import annotations

from forkyard.workspace.image_pull import reason_of


def test_the_tool_s_own_misnomer_is_left_out_when_it_cannot_read_an_image() -> None:
    """The name was parsed well; what is wrong comes after."""
    said = (
        b'time="now" level=fatal msg="Error parsing image name \\"docker://h/x:1\\":'
        b' reading manifest 1 in h/x: unauthorized: authentication required"\n'
    )

    told = reason_of(said)

    assert told == "reading manifest 1 in h/x: unauthorized: authentication required"
