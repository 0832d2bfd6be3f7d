"""The commands of installed agents: where they go, what they may not be told, what an end means."""

from __future__ import annotations

import json
import tomllib

import pytest

from forkyard.agents.connection import DUMMY_KEY
from forkyard.agents.interface import AGENT_FOLDER, AGENTS_ROOT, AgentCommand
from forkyard.agents.limitations import REQUEST
from forkyard.agents.registry import driver_named, driver_names
from forkyard.agents.trajectory import Message, Trajectory
from forkyard.model.execution import ExecResult, StopReason
from forkyard.model.ids import new_exec_id, new_snapshot_id
from forkyard.model.run import AgentSpec, Task

DRIVERS = ("claude-code", "codex", "opencode", "gemini", "mini-swe-agent")
PROVIDERS = {
    "claude-code": ("anthropic", "anthropic-eu"),
    "codex": ("openai", "local"),
    "opencode": ("anthropic", "local"),
    "gemini": ("gemini", "gemini-eu"),
    "mini-swe-agent": ("openai", "anthropic-eu"),
}


def agent_of(driver: str, *, model: str = "", provider: str = "", **variables: str) -> AgentSpec:
    """Give an agent of a driver."""
    return AgentSpec(
        name="a", driver=driver, command="", model=model, provider=provider, variables=variables
    )


def command_of(agent: AgentSpec, prompt: str = "Fix it") -> AgentCommand:
    """Build its command."""
    task = Task(
        name="t", prompt=prompt, snapshot=new_snapshot_id(), agents=(agent,), repository="/w/r"
    )
    return driver_named(agent.driver).command(agent, task)


def ended(code: int | None, reason: StopReason = StopReason.EXITED) -> ExecResult:
    """Give the end of a command."""
    return ExecResult(
        id=new_exec_id(),
        stop_reason=reason,
        exit_code=code,
        elapsed_seconds=1.0,
        stdout_bytes=0,
        stderr_bytes=0,
    )


def test_every_driver_that_is_promised_is_there() -> None:
    """The task file may name them."""
    assert set(driver_names()) == {"command", *DRIVERS}


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_driver_says_what_it_is_when_it_is_asked(driver: str) -> None:
    """Each has an API, a default model and pins with hashes."""
    found = driver_named(driver)

    assert found.api is not None
    assert found.default_model
    assert found.recipe is not None
    assert all(len(one.sha512) == 128 for one in found.recipe.packages)
    assert all(len(one.sha256) == 64 for one in found.recipe.packages if one.registry == "pypi")


@pytest.mark.parametrize("driver", DRIVERS)
def test_the_command_is_the_installed_agent_when_a_task_is_given(driver: str) -> None:
    """Nothing of the host's is run, the prompt is one argument, and the request is at its end."""
    command = command_of(agent_of(driver), "--help; $(reboot)\nplease")

    assert any(word.startswith(f"{AGENTS_ROOT}/{driver}/") for word in command.argv)
    assert command.working_directory == "/w/r"
    assert command.argv[-1].endswith(f"--help; $(reboot)\nplease\n\n{REQUEST}\n")
    assert command.argv[-2] == "--" or command.argv[-1].startswith(("--prompt=", "--task="))


@pytest.mark.parametrize("driver", DRIVERS)
def test_the_configuration_is_the_drivers_own_when_it_is_written(driver: str) -> None:
    """All of it lies in the driver's folder, none in the home or the repository."""
    command = command_of(agent_of(driver))

    assert command.files
    assert all(path.startswith(f"{AGENT_FOLDER}/{driver}/") for path in command.files)
    assert "HOME" not in command.variables


@pytest.mark.parametrize(
    ("driver", "provider"),
    [(driver, provider) for driver, both in PROVIDERS.items() for provider in both],
)
def test_requests_go_to_the_provider_when_one_is_named(driver: str, provider: str) -> None:
    """Its host name is in what the command is given; the only key is the one that is none."""
    agent = agent_of(driver, model="some-model", provider=provider)
    command = command_of(agent)
    told = json.dumps([command.variables, command.files])

    assert driver_named(driver).check(agent) is None
    assert f"http://{provider}" in told
    assert DUMMY_KEY in told
    assert "https://api." not in told
    assert "some-model" in json.dumps([command.argv, command.files])


def test_the_default_model_is_named_when_the_agent_names_none() -> None:
    """So that its price is known before it starts."""
    for driver in DRIVERS:
        command = command_of(agent_of(driver))
        assert str(driver_named(driver).default_model) in json.dumps([command.argv, command.files])


@pytest.mark.parametrize(
    ("driver", "variable"),
    [
        ("claude-code", "ANTHROPIC_API_KEY"),
        ("claude-code", "ANTHROPIC_BASE_URL"),
        ("codex", "OPENAI_API_KEY"),
        ("opencode", "OPENCODE_CONFIG_CONTENT"),
        ("gemini", "GEMINI_API_KEY"),
        ("mini-swe-agent", "OPENAI_API_BASE"),
    ],
)
def test_an_agent_is_refused_when_it_brings_a_key_or_an_address(driver: str, variable: str) -> None:
    """Keys belong to the gateway."""
    problem = driver_named(driver).check(agent_of(driver, **{variable: "sk-secret-value"}))

    assert problem is not None
    assert variable in problem.message
    assert "sk-secret-value" not in problem.message


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_agent_is_refused_when_it_has_a_command_of_its_own(driver: str) -> None:
    """What would be ignored is refused."""
    agent = AgentSpec(name="a", driver=driver, command="rm -rf /")

    assert driver_named(driver).check(agent) is not None


@pytest.mark.parametrize("model", ['x"\napproval_policy = "', "a b", "\0", "é"])
def test_an_agent_is_refused_when_its_model_is_no_name(model: str) -> None:
    """A model's name is written into configuration files."""
    assert driver_named("codex").check(agent_of("codex", model=model)) is not None


@pytest.mark.parametrize(
    ("driver", "provider"), [("claude-code", "openai"), ("codex", "gemini"), ("gemini", "openai")]
)
def test_an_agent_is_refused_when_its_provider_speaks_another_api(
    driver: str, provider: str
) -> None:
    """It would find out one request at a time otherwise."""
    assert driver_named(driver).check(agent_of(driver, provider=provider)) is not None


def test_a_model_must_be_named_when_the_provider_is_of_another_api() -> None:
    """The default model of an agent with many APIs is one of its default provider's."""
    assert driver_named("opencode").check(agent_of("opencode", provider="local")) is not None
    assert driver_named("opencode").check(agent_of("opencode", provider="anthropic")) is None


def test_variables_of_the_agent_win_when_they_are_no_matter_of_safety() -> None:
    """Retries and time limits may be set otherwise."""
    command = command_of(agent_of("claude-code", CLAUDE_CODE_MAX_RETRIES="7", LEVEL="high"))

    assert command.variables["CLAUDE_CODE_MAX_RETRIES"] == "7"
    assert command.variables["LEVEL"] == "high"


def test_the_files_can_be_read_when_they_are_written() -> None:
    """TOML and JSON are well-formed, the launcher is a program."""
    codex = next(iter(command_of(agent_of("codex")).files.values()))
    opencode = next(iter(command_of(agent_of("opencode")).files.values()))
    launcher = next(iter(command_of(agent_of("mini-swe-agent")).files.values()))

    assert tomllib.loads(codex)["model_provider"] == "gateway"
    assert json.loads(opencode)["enabled_providers"] == ["gateway"]
    compile(launcher, "launch.py", "exec")


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_agent_did_not_start_when_its_program_is_missing(driver: str) -> None:
    """That is told apart from one that failed."""
    found = driver_named(driver)

    assert not found.ending(agent_of(driver), ended(None, StopReason.COULD_NOT_START)).has_started
    assert not found.ending(agent_of(driver), ended(127)).has_started
    assert found.ending(agent_of(driver), ended(1)).has_started


@pytest.mark.parametrize("driver", DRIVERS)
def test_success_is_a_claim_when_an_error_stands_beside_it(driver: str) -> None:
    """An exit status that says otherwise outweighs it."""
    transcript = Trajectory(
        steps=(Message(role="assistant", text="Done"),),
        claimed_success=True,
        api_error="402 no money",
    )

    ending = driver_named(driver).ending(agent_of(driver), ended(1), transcript)

    assert ending.claims_success is False
    assert ending.api_error == "402 no money"
    assert ending.detail is not None
    assert "402 no money" in ending.detail
