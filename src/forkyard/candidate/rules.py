"""Which paths need a second look: patterns, scope, and files that run code by being there."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

CONTROL_FILES: tuple[str, ...] = (
    # Python
    "conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml",
    "setup.py", "noxfile.py", "sitecustomize.py", "usercustomize.py", "*.pth", "manage.py",
    ".coveragerc", ".pre-commit-config.yaml",
    # JavaScript
    "package.json", ".npmrc", ".yarnrc", ".yarnrc.yml", ".pnpmfile.cjs", "jest.config.*",
    "vitest.config.*", "vitest.workspace.*", "karma.conf.*", ".mocharc*", "playwright.config.*",
    "babel.config.*", ".babelrc*", "webpack.config.*", "vite.config.*", "eslint.config.*",
    ".eslintrc*", ".husky/", "lefthook.yml",
    # Make, C and C++
    "Makefile", "makefile", "GNUmakefile", "*.mk", "CMakeLists.txt", "*.cmake", "configure",
    "meson.build", "justfile", "Justfile", "Taskfile.yml",
    # Go, Rust, JVM, .NET, Ruby, PHP, Elixir, Bazel
    "build.rs", ".cargo/", "build.gradle", "build.gradle.kts", "settings.gradle*", "gradlew",
    "gradle/wrapper/", "pom.xml", "mvnw", ".mvn/", "Directory.Build.*", "*.csproj",
    "Rakefile", "Gemfile", ".rspec", "phpunit.xml*", "composer.json", "mix.exs", "BUILD",
    "BUILD.bazel", "WORKSPACE", "MODULE.bazel", ".bazelrc",
    # editors, shells, git, agents
    ".vscode/", ".idea/", "*.code-workspace", ".devcontainer/", ".envrc", ".direnv/",
    ".gitattributes", ".gitmodules", ".githooks/", ".mcp.json", ".claude/", ".codex/",
    ".gemini/", ".cursor/", ".opencode/", "opencode.json", "AGENTS.md", "CLAUDE.md", "GEMINI.md",
    ".exrc", ".vimrc", ".nvim.lua", ".dir-locals.el",
    # continuous integration, containers
    ".github/workflows/", ".github/actions/", ".gitlab-ci.yml", ".circleci/", "Jenkinsfile",
    "azure-pipelines.yml", ".travis.yml", ".buildkite/", "Dockerfile", "Containerfile",
    "docker-compose*.y*ml", "compose.y*ml",
)  # fmt: skip
"""Changed files that run code, or steer what does, when the tree is opened, built or merged."""

RUNNER_FILES: tuple[str, ...] = (
    "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini",
    "setup.cfg", "sitecustomize.py",
    "usercustomize.py", "*.pth", "/pytest.py", "/_pytest/", "/unittest/", "noxfile.py",
    ".coveragerc", "jest.config.*", "vitest.config.*", "vitest.workspace.*", "karma.conf.*",
    ".mocharc*", "playwright.config.*", "phpunit.xml*", ".rspec",
)  # fmt: skip
"""Test runners' own settings: the evaluation puts them back whatever the task protects.

Of pyproject.toml and package.json, which honest fixes change, only the runners' settings are put
back (`settings`); Makefile and its like are what `STEERING_FILES` tells of."""

STEERING_FILES: tuple[str, ...] = (
    "Makefile", "makefile", "GNUmakefile", "*.mk", "justfile", "Justfile", "Taskfile.y*ml",
    "CMakeLists.txt", "*.cmake", "meson.build", "configure", "setup.py", "build.rs", ".cargo/",
    "Cargo.toml", "go.mod", "go.work", "vendor/modules.txt", "build.gradle", "build.gradle.kts",
    "settings.gradle*", "gradlew", "gradle/wrapper/", "pom.xml", "mvnw", ".mvn/",
    "Directory.Build.*", "*.csproj", "Rakefile", "Gemfile", "composer.json", "mix.exs", "BUILD",
    "BUILD.bazel", "WORKSPACE", "MODULE.bazel", ".bazelrc", ".npmrc", "babel.config.*",
    ".babelrc*", "vite.config.*", "webpack.config.*",
)  # fmt: skip
"""Files that may decide what a check's command runs, and that honest fixes change: not put back,
but a verdict says that they were changed."""


@functools.lru_cache(maxsize=512)
def _compiled(pattern: str) -> re.Pattern[str]:
    is_anchored = "/" in pattern.rstrip("/")
    body = pattern.strip("/")
    body = body.removesuffix("/**")
    parts = [] if is_anchored else [r"(?:.*/)?"]
    position = 0
    while position < len(body):
        if body.startswith("**/", position):
            parts.append(r"(?:.*/)?")
            position += 3
        elif body.startswith("**", position):
            parts.append(r".*")
            position += 2
        elif body[position] == "*":
            parts.append(r"[^/]*")
            position += 1
        elif body[position] == "?":
            parts.append(r"[^/]")
            position += 1
        else:
            parts.append(re.escape(body[position]))
            position += 1
    return re.compile("".join(parts) + r"(?:/.*)?", re.DOTALL)


def matches(path: str, patterns: Iterable[str]) -> bool:
    """Say whether a path, or a directory above it, is named by one of the patterns.

    ``*`` and ``?`` stay within a name, ``**`` does not. A pattern with a slash (other than at its
    end) starts at the repository's root; one without names a file or folder anywhere.
    """
    return any(_compiled(pattern).fullmatch(path) is not None for pattern in patterns)


def could_hold(link: str, patterns: Iterable[str]) -> bool:
    """Say whether a link stands where a pattern starts out from, so that it leads around it.

    A link named ``tests`` matters to ``tests/unit/**`` although it does not match it.
    """
    parts = link.split("/")
    for pattern in patterns:
        folders = pattern.strip("/").split("/")[:-1]
        if "**" in folders[:1] or len(folders) < len(parts):
            continue
        if all(
            folder == "**" or _compiled(f"/{folder}").fullmatch(part)
            for folder, part in zip(folders, parts, strict=False)
        ):
            return True
    return False
