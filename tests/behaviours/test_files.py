"""Files of workspaces, forks and snapshots."""

from __future__ import annotations

import pytest

from behaviours.yard import Box, Yard


def test_files_are_kept_when_a_workspace_stops_and_starts(fresh: Box) -> None:
    """Content, mode and links."""
    fresh.read("echo x > a; chmod 750 a; ln -s a link; mkdir -p d/e; echo y > d/e/f")
    fresh.stop()
    assert fresh.state() == "stopped"
    assert fresh.read("stat -c %a a; readlink link; cat d/e/f") == "750\na\ny"


def test_forks_do_not_see_each_others_writes(box: Box, fresh: Box) -> None:
    """Nor do later forks."""
    fresh.read("echo changed > state; echo new > only-here; rm docs/guide")
    assert box.read("cat state docs/guide; ls") == "broken\nread me\ndocs\nstate\ntests"


def test_deletions_hold_when_a_workspace_starts_again(fresh: Box) -> None:
    """Of files and whole folders; a folder made anew is empty."""
    fresh.read("rm state; rm -r docs; mkdir docs")
    fresh.stop()
    assert fresh.read("ls; ls docs | wc -l") == "docs\ntests\n0"


def test_folders_of_the_snapshot_can_be_moved(fresh: Box) -> None:
    """`mv` copies where the kernel's rename refuses; files are moved by git as ever."""
    fresh.read("mv docs papers && git mv state status")
    listing = fresh.read("cat papers/guide; ls; git status --porcelain")
    assert (
        listing == "read me\npapers\nstatus\ntests\n D docs/guide\nR  state -> status\n?? papers/"
    )


def test_git_works_without_being_told_to_trust_the_folder(fresh: Box) -> None:
    """Status is clean from the start; a commit can be made."""
    assert fresh.read("git status --porcelain") == ""
    fresh.read("echo x > new; git add new; git -c user.name=a -c user.email=a@a commit -qm second")
    assert fresh.read("git log --format=%s") == "second\nfirst"


def test_uncommitted_work_is_there_when_it_was_asked_for(yard: Yard) -> None:
    """And is not, when only the commit was."""
    path = yard.repository()
    yard.program("sh", "-c", f"cd {path}; echo edited > state; echo u > untracked; echo l > a.log")
    kept = yard.template(f"spec:\n  repository: {{path: {path}, include_uncommitted: true}}")
    bare = yard.template(f"spec:\n  repository: {{path: {path}}}")

    with_work, without = yard.workspace(template=kept), yard.workspace(template=bare)
    assert with_work.read("cat state untracked a.log") == "edited\nu\nl"
    assert without.read("cat state; ls") == "broken\ndocs\nstate\ntests"


def test_the_repository_appears_at_its_own_path_as_well(yard: Yard) -> None:
    """So that caches and virtual environments stay valid."""
    path = yard.repository()
    name = yard.template(f"spec:\n  repository: {{path: {path}, include_uncommitted: true}}")
    found = yard.workspace(template=name)
    assert found.read(f"echo here > {path}/mark; cat /workspace/repo/mark") == "here"


def test_the_users_own_files_never_change(yard: Yard) -> None:
    """Whatever a fork does to its copy."""
    path = yard.repository()
    name = yard.template(f"spec:\n  repository: {{path: {path}, include_uncommitted: true}}")
    yard.workspace(template=name).read("echo x > state; rm -rf docs .git")
    assert (
        yard.program("sh", "-c", f"cat {path}/state {path}/docs/guide").stdout
        == "broken\nread me\n"
    )


def test_a_snapshot_is_forked_when_its_workspace_was_stopped(yard: Yard, fresh: Box) -> None:
    """The fork stands where the workspace stood, and the workspace goes on."""
    fresh.read("echo prepared > state; echo ours > /home/workspace/own")
    fresh.stop()
    snapshot = yard.name("snap")
    yard.forkyard("snapshot", "create", snapshot, "--workspace", fresh.id)
    fresh.read("echo later > state")

    fork = yard.workspace(snapshot=snapshot)
    assert fork.read("cat state /home/workspace/own") == "prepared\nours"
    fork.delete()


def test_forks_of_forks_see_all_that_came_before(yard: Yard, template: str) -> None:
    """Five deep, deletions included."""
    here = yard.workspace(template=template)
    for depth in range(5):
        here.read(f"echo {depth} >> state; echo {depth} > f{depth}; rm -f f{depth - 1}")
        here.stop()
        snapshot = yard.name("deep")
        yard.forkyard("snapshot", "create", snapshot, "--workspace", here.id)
        here.delete()
        here = yard.workspace(snapshot=snapshot)
    assert here.read("tail -n 5 state | tr '\\n' ' '; ls") == "0 1 2 3 4 docs\nf4\nstate\ntests"
    here.delete()


def test_a_snapshot_is_not_deleted_while_a_workspace_stands_on_it(
    yard: Yard, template: str
) -> None:
    """And is, afterwards."""
    origin = yard.workspace(template=template)
    origin.read("echo x > new")
    origin.stop()
    snapshot = yard.name("needed")
    yard.forkyard("snapshot", "create", snapshot, "--workspace", origin.id)
    fork = yard.workspace(snapshot=snapshot)
    origin.delete()
    refused = yard.forkyard("snapshot", "delete", snapshot, code=4)
    assert fork.id in refused.stderr
    fork.delete()
    yard.forkyard("snapshot", "delete", snapshot)
    yard.forkyard("snapshot", "show", snapshot, code=3)


def test_nothing_is_left_on_disk_when_a_workspace_is_deleted(yard: Yard, template: str) -> None:
    """Also folders that nobody may enter."""
    gone = yard.workspace(template=template)
    gone.read("mkdir -p a/b; echo x > a/b/c; chmod 000 a/b; mkfifo p; ln -s / root")
    gone.delete()
    assert not (yard.home / "workspaces" / gone.id).exists()
    yard.forkyard("workspace", "show", gone.id, code=3)


def test_what_a_template_prepared_is_in_every_fork(yard: Yard) -> None:
    """Its ON_CREATE tasks ran once."""
    name = yard.template(
        "spec:\n  network: {build: none}\n  runtime:\n    tasks:\n"
        "      - {name: one, run: 'date +%s%N > /workspace/made; echo x > $HOME/own'}"
    )
    first, second = yard.workspace(template=name), yard.workspace(template=name)
    assert first.read("cat /workspace/made") == second.read("cat /workspace/made")
    assert second.read("cat ~/own") == "x"


def test_a_build_fails_in_words_when_a_task_fails(yard: Yard) -> None:
    """Nothing of it is left but its log."""
    name = yard.template(
        "spec:\n  network: {build: none}\n  runtime:\n    tasks:\n"
        "      - {name: broken, run: 'echo because >&2; exit 7'}",
        code=10,
    )
    assert "task broken ended with status 7" in yard.forkyard("template", "show", name).stdout
    assert "because" in yard.forkyard("template", "show", name, "--log").stdout


@pytest.mark.parametrize("spelling", ["a b", "ünïcödé", "-dash", "quote'\"", "new\nline"])
def test_names_are_kept_byte_for_byte_when_they_are_odd(fresh: Box, spelling: str) -> None:
    """Through a stop and a fork."""
    fresh.read('printf %s "$CONTENT" > "./$NAME"', "-e", f"NAME={spelling}", "-e", "CONTENT=kept")
    fresh.stop()
    assert fresh.read('cat "./$NAME"', "-e", f"NAME={spelling}") == "kept"
