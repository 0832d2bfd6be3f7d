"""A template that sets both agents up itself, for names that answer without a key."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkyard.agents.registry import driver_named
from forkyard.config import Layout
from forkyard.workspace.agent_install import Agents
from model_yard import CANARY, MEND, TABLE_PRICES, ModelYard, model_yard
from projects import attempts, forkyard, run_result
from real_agents import provide

TEMPLATE = """\
spec:
  image: host
  repository: {path: repo, include_uncommitted: true}
  runtime:
    envVars:
      - key: ANTHROPIC_BASE_URL
        value: http://anthropic
      - key: ANTHROPIC_API_KEY
        value: injected-by-octelium
      - key: OPENAI_API_KEY
        value: injected-by-octelium
    tasks:
      - name: install-claude-code
        type: ON_CREATE
        workingDir: /workspace
        onFailure: ON_FAILURE_ABORT
        run: |
          mkdir -p "$HOME/.local/bin"
          mv /workspace/repo/tools/* "$HOME/.local/bin"
          mkdir -p "$HOME/.codex"
          cat > "$HOME/.codex/config.toml" <<'EOF'
          model_provider = "octelium"

          [model_providers.octelium]
          name = "OpenAI via Octelium"
          base_url = "http://openai/v1"
          env_key = "OPENAI_API_KEY"
          wire_api = "responses"
          EOF
"""
TASK = """\
name: fragment
prompt: Make the check pass.
start: {template: both}
agents:
  - name: claude
    command: >-
      $HOME/.local/bin/claude -p "$PROMPT" --model claude-opus-5-5
      --dangerously-skip-permissions < /dev/null
    gateway: true
  - name: codex
    command: $HOME/.local/bin/codex exec --sandbox danger-full-access "$PROMPT" < /dev/null
    gateway: true
limits: {attempt_timeout: 2m, baseline_repeats: 1}
checks:
  - {name: check, run: python3 -B check.py}
"""


@pytest.fixture
def yard(home: Path, tmp_path: Path) -> Iterator[ModelYard]:
    """Give a yard whose repository carries both programs, for the template to take."""
    with model_yard(home, tmp_path, MEND, TABLE_PRICES) as made:
        provide(home, "claude-code", "codex")
        tools = tmp_path / "repo" / "tools"
        for driver in ("claude-code", "codex"):
            found, recipe = Agents(Layout(home)).find(driver), driver_named(driver).recipe
            assert found is not None
            assert recipe is not None
            program = found.folder / recipe.program
            # codex has a helper beside it
            shutil.copytree(program.parent, tools, dirs_exist_ok=True)
        yield made


def test_agents_work_as_their_template_set_them_up(yard: ModelYard) -> None:
    """Both reach their models under the names that they were told, and neither holds a key."""
    (yard.folder / "both.yaml").write_text(TEMPLATE)
    (yard.folder / "task.yaml").write_text(TASK)
    for words in (("apply", "both.yaml"), ("build", "both")):
        done = forkyard("template", *words, directory=yard.folder)
        assert done.returncode == 0, done.stderr
    result = run_result(forkyard("run", "task.yaml", "--json", directory=yard.folder))

    for name, one in attempts(result).items():
        assert one["evaluation"]["verdict"] == "solved", (name, one)
        assert one["usage"]["requests"] >= 4
        assert CANARY not in yard.output_of(one["id"])
