"""Workspaces to live in: terminals, input and output as they come, whatever dies meanwhile."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkyard import BlockingClient
from living import PATIENCE_SECONDS, forkyard, prepare
from terminals import Person, seated

PROMPT = "export PS1='ready> '\r"
# Its own word, not the echo of what was typed, tells that a job is in front: an earlier key
# would reach the shell.
IN_FRONT = b"sh -c 'echo in \"front\"; exec sleep 1000'\r"


@pytest.fixture(scope="module")
def prepared(module_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepare a snapshot named `base` of a small repository."""
    prepare(module_home, tmp_path_factory.mktemp("live"))
    return module_home


@pytest.fixture
def mine(prepared: Path) -> Iterator[str]:
    """Give a workspace; afterwards it is gone."""
    with BlockingClient(prepared) as client:
        workspace = client.workspaces.create(template="t")
    yield str(workspace.id)
    with BlockingClient(prepared) as client:
        client.workspaces.get(workspace.id).delete()


@pytest.fixture
def person(prepared: Path, mine: str) -> Iterator[Person]:
    """Give a person in a shell of the workspace, at its prompt."""
    with seated("workspace", "shell", mine, variables={"FORKYARD_HOME": str(prepared)}) as one:
        one.reads(b"$ ")
        one.type(PROMPT.encode())
        one.reads(b"ready> ")
        one.reads(b"ready> ")
        yield one


def test_a_shell_has_a_terminal_of_the_workspace_s_own(person: Person) -> None:
    """Its name, TERM and size are those of a terminal, and nothing of the host's is there."""
    person.type(b"tty; echo $TERM; stty size; ls /dev/pts | tr '\\n' ,\r")

    person.reads(b"/dev/pts/0\r\nxterm-test\r\n24 80\r\n0,ptmx,")


def test_a_shell_follows_the_window_s_size(person: Person) -> None:
    """What runs in the foreground gets SIGWINCH, and sees the new size."""
    person.type(
        b"bash -c 'trap \"stty size; exit 0\" WINCH; echo go; while :; do sleep 0.05; done'\r"
    )
    person.reads(b"go\r\n")

    person.resize(33, 101)

    person.reads(b"33 101\r\n")


def test_control_c_ends_what_runs_in_front_and_not_the_shell(person: Person) -> None:
    """The interrupt is a key of the terminal inside, and its status is the shell's to tell."""
    person.type(IN_FRONT)
    person.reads(b"in front\r\n")
    person.type(b"\x03")
    person.reads(b"ready> ")
    person.type(b"echo status $?\r")

    person.reads(b"status 130\r\n")


def test_control_z_stops_a_job_that_goes_on_in_the_background(person: Person) -> None:
    """Job control: stopped, listed, continued."""
    person.type(IN_FRONT)
    person.reads(b"in front\r\n")
    person.type(b"\x1a")
    person.reads(b"Stopped")
    person.type(b"bg; jobs; kill %1\r")

    person.reads(b"Running")


def test_a_shell_s_exit_status_is_the_command_s_and_the_terminal_is_as_it_was(
    prepared: Path, mine: str
) -> None:
    """Raw meanwhile, and afterwards exactly what it was."""
    with seated("workspace", "shell", mine, variables={"FORKYARD_HOME": str(prepared)}) as one:
        before = one.modes()
        one.reads(b"$ ")
        assert one.modes() != before
        one.type(b"exit 7\r")

        assert one.leaves() == 7
        assert one.modes() == before


def test_the_terminal_is_restored_when_the_client_is_killed(person: Person) -> None:
    """Even kill -9 leaves no raw terminal behind."""
    raw = person.modes()

    person.program.kill()
    person.leaves()

    while person.modes() == raw:
        os.sched_yield()


def test_a_shell_that_was_left_goes_on_and_is_come_back_to(
    prepared: Path, mine: str, person: Person
) -> None:
    """Enter ~ . leaves; attaching again finds the same shell."""
    person.type(b"here=still\r")
    person.reads(b"ready> ")
    person.type(b"\r~.")
    person.reads(b"--attach exec_")
    assert person.leaves() == 0
    execs = json.loads(forkyard(prepared, "logs", mine, "--json").stdout)

    with seated(
        "workspace", "shell", mine, "--attach", execs[-1]["id"],
        variables={"FORKYARD_HOME": str(prepared)},
    ) as again:  # fmt: skip
        again.type(b"echo $here there\r")
        again.reads(b"still there\r\n")


def test_a_closed_window_hangs_the_shell_up(prepared: Path, mine: str, person: Person) -> None:
    """SIGHUP reaches what runs inside, as over ssh."""
    person.program.send_signal(signal.SIGHUP)
    person.leaves()

    with BlockingClient(prepared) as client:
        (shell,) = client.workspaces.get(mine).execs()
        outcome = client.workspaces.get(mine).exec("true", exec_id=shell.id)
    assert outcome.exit_code == 128 + signal.SIGHUP


def test_a_killed_server_ends_the_attached_client_and_not_the_shell(
    prepared: Path, mine: str, person: Person
) -> None:
    """The client says in one sentence what happened; the next one finds the shell as it was."""
    person.type(b"here=still\r")
    person.reads(b"ready> ")
    with BlockingClient(prepared) as client:
        os.kill(client.version().pid, signal.SIGKILL)

    person.reads(b"the server went away")
    person.reads(b"goes on")
    person.reads(b"--attach exec_")
    assert person.leaves() == 15
    with BlockingClient(prepared) as client:
        (shell,) = client.workspaces.get(mine).execs()
    assert shell.state == "running"
    with seated(
        "workspace", "shell", mine, "--attach", shell.id,
        variables={"FORKYARD_HOME": str(prepared)},
    ) as again:  # fmt: skip
        again.type(b"echo $here there; exit 4\r")
        again.reads(b"still there\r\n")
        assert again.leaves() == 4


def test_typing_into_the_terminal_from_inside_is_refused(person: Person) -> None:
    """TIOCSTI and TIOCLINUX stay refused on the workspace's own terminal, too."""
    person.type(
        b"cat > /tmp/t.py <<'E'\r"  # typed a line at a time, as a person does
    )
    person.reads(b"> ")
    for line in (
        "import fcntl",
        "for number in (0x5412, 0x541C):",
        "    try: fcntl.ioctl(0, number, b'x')",
        "    except OSError as error: print('refused', error.errno)",
    ):
        person.type(line.encode() + b"\r")
        person.reads(b"> ")
    person.type(b"E\rpython3 /tmp/t.py\r")

    for _ in range(2):
        person.reads(b"refused 1\r\n")


def test_input_reaches_a_command_whole_and_so_does_its_end(prepared: Path, mine: str) -> None:
    """Every byte value, then the end of the file; both outputs and the status come back."""
    content = bytes(range(256)) * 997

    done = forkyard(
        prepared, "exec", mine, "-i", "-c", "sha256sum; echo over >&2; exit 3",
        stdin=content, code=3,
    )  # fmt: skip

    assert done.stdout.split()[0].decode() == hashlib.sha256(content).hexdigest()
    assert done.stderr == b"over\n"


def test_a_command_without_input_reads_an_end_at_once(prepared: Path, mine: str) -> None:
    """Nobody's terminal or pipe is shown inside unless asked for."""
    done = forkyard(prepared, "exec", mine, "--", "cat", stdin=b"not for it")

    assert done.stdout == b""


def test_output_comes_while_the_command_runs(prepared: Path, mine: str) -> None:
    """What is printed is there before the command goes on."""
    program = subprocess.Popen(
        [sys.executable, "-m", "forkyard", "workspace", "exec", mine, "-i", "-c",
         "echo asks; read answer; echo got $answer"],
        env={**os.environ, "FORKYARD_HOME": str(prepared)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert program.stdin is not None
    assert program.stdout is not None
    assert program.stdout.readline() == b"asks\n"

    program.stdin.write(b"this\n")
    program.stdin.flush()

    assert program.stdout.readline() == b"got this\n"
    assert program.stdout.read() == b""
    program.stdin.close()
    program.stdout.close()
    assert program.wait(PATIENCE_SECONDS) == 0


def both_ways(home: Path, mine: str, mebibytes: int) -> None:
    """Send that much through `cat` inside and compare."""
    block = os.urandom(1 << 20)
    program = subprocess.Popen(
        [sys.executable, "-m", "forkyard", "workspace", "exec", mine, "-i", "--", "cat"],
        env={**os.environ, "FORKYARD_HOME": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert program.stdin is not None
    assert program.stdout is not None
    child = os.fork()
    if child == 0:
        program.stdout.close()
        for _ in range(mebibytes):
            program.stdin.write(block)
        program.stdin.close()
        os._exit(0)
    program.stdin.close()
    for _ in range(mebibytes):
        assert program.stdout.read(1 << 20) == block
    assert program.stdout.read() == b""
    program.stdout.close()
    os.waitpid(child, 0)
    assert program.wait(PATIENCE_SECONDS) == 0


def test_a_large_pipe_goes_both_ways_whole(prepared: Path, mine: str) -> None:
    """Neither side waits for ever for the other, and every byte arrives."""
    both_ways(prepared, mine, 48)


@pytest.mark.deep
def test_a_gibibyte_goes_both_ways_whole(prepared: Path, mine: str) -> None:
    """Also past what an exec's own files keep."""
    both_ways(prepared, mine, 1024)


def test_the_sdk_gives_input_and_collects_output(prepared: Path, mine: str) -> None:
    """Bytes in, outcome out; a command that reads none of it is fine."""
    with BlockingClient(prepared) as client:
        workspace = client.workspaces.get(mine)
        outcome = workspace.exec(["tr", "a-z", "A-Z"], input=b"shout\n")
        deaf = workspace.exec("exit 2", input=b"x" * 10_000_000)

    assert (outcome.stdout, outcome.exit_code) == (b"SHOUT\n", 0)
    assert deaf.exit_code == 2


def test_an_interrupt_ends_the_command_inside(prepared: Path, mine: str) -> None:
    """Ctrl-C at the client is the command's end, not only the client's."""
    program = subprocess.Popen(
        [sys.executable, "-m", "forkyard", "workspace", "exec", mine, "-c", "echo on; sleep 1000"],
        env={**os.environ, "FORKYARD_HOME": str(prepared)},
        stdout=subprocess.PIPE,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == b"on\n"

    program.send_signal(signal.SIGINT)

    program.stdout.close()
    assert program.wait(PATIENCE_SECONDS) == 130
    with BlockingClient(prepared) as client:
        (row,) = client.workspaces.get(mine).execs()
    assert (row.state, row.stop_reason) == ("ended", "killed")


def test_nothing_inside_holds_the_master_of_a_terminal(person: Person) -> None:
    """Neither the shell nor what it starts has a descriptor of it, nor a terminal of the host."""
    person.type(b"ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c ptmx; echo looked\r")

    person.reads(b"\r\n0\r\nlooked")


def test_logs_tell_each_command_and_what_it_printed(prepared: Path, mine: str) -> None:
    """Command, status and output, of one or of all."""
    forkyard(prepared, "exec", mine, "-c", "echo first; echo e1 >&2")
    forkyard(prepared, "exec", mine, "-c", "echo second; exit 3", code=3)

    newest = forkyard(prepared, "logs", mine)
    everything = forkyard(prepared, "logs", mine, "--all")

    assert newest.stdout == b"second\n"
    assert everything.stdout == b"first\nsecond\n"
    assert b"exited 3 after" in everything.stderr
    assert b"echo second; exit 3" in everything.stderr
    assert b"e1\n" in everything.stderr


def test_completion_gives_workspaces_by_name_and_id(prepared: Path, mine: str) -> None:
    """What a shell asks for when a person presses the key."""
    done = subprocess.run(
        [sys.executable, "-m", "forkyard"],
        env={
            **os.environ,
            "FORKYARD_HOME": str(prepared),
            "_FORKYARD_COMPLETE": "bash_complete",
            "COMP_WORDS": "forkyard workspace shell ws_",
            "COMP_CWORD": "3",
        },
        capture_output=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )

    assert f"plain,{mine}".encode() in done.stdout
