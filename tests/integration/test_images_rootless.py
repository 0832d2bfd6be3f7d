"""Images as an ordinary user has them: the same tests, over sub-ids."""

from __future__ import annotations

from ordinary import OrdinaryUser

TESTS = (
    "test_images.py::test_root_of_the_workspace_installs_a_file_when_its_user_cannot",
    "test_images.py::test_deletions_of_an_upper_layer_are_seen_when_layers_are_stacked",
    "test_images.py::test_the_second_build_fetches_no_layer_when_the_image_is_here",
    "test_image_builds.py::test_an_image_is_built_when_a_context_holds_a_containerfile",
)


def test_images_are_pulled_built_and_run_when_the_user_is_an_ordinary_one(
    ordinary: OrdinaryUser,
) -> None:
    """A registry, whiteouts, a Containerfile and root of the workspace, without any right."""
    outcomes = ordinary.tests(*(f"tests/integration/{one}" for one in TESTS))
    assert len(outcomes) == len(TESTS) + 1
    assert set(outcomes.values()) == {"passed"}, outcomes
