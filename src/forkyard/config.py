"""Where the state lies on disk, and what the environment says; the only reader of os.environ.

On-disk format (version 1), all below the state directory, mode 0700::

    format                        the version, one line
    mode                          `root`, or `rootless` and the id map; absent in older ones: `root`
    state.db                      journal and projections (SQLite, WAL)
    state.lock                    flock of the one server
    reserve                       room kept for the journal, given up on a full disk
    run/api.sock                  HTTP API          run/fleet.sock   fork-server
    run/gateway.sock              the gateway's control socket
    run/egress.sock               the allowlist proxy's control socket
    run/namespace                 the user namespace that a rootless server is in
    server.log                    gateway.log            egress.log
    gateway/                      the gateway's ledger; all of the state that it sees
    egress/                       the proxy's records of connections; all that it sees
    gateway.yaml                  providers, models, prices; by hand, may be absent
    secrets/                      sealed values by name, and the key that seals them
    agents/<name>-<version>-<digest>/  files/ (shown to sandboxes), contents.json
    layers/<layer id>/            one tree from / (storage-range owned), read-only once named
    workspaces/<workspace id>/    disk/{upper,work}, sandbox/ (spec, socket, log), execs/<exec id>/
    roots/<digest>/               root file systems of image `host`, from the machine's own
    objects/                      bare git store of candidate trees; no sandbox ever sees it
    blobs/<2>/<sha256>            held-out files, patches, manifests, logs
    runs/<run id>/<attempt id>/   patch, manifest, check logs and reports
    builds/<template id>/         log and task output of the last build
    trash/                        renamed here first, removed afterwards
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from forkyard.model.ids import AttemptId, ExecId, LayerId, RunId, TemplateId, WorkspaceId

FORMAT_VERSION = 1

_REGISTRY_VARIABLES = re.compile(
    r"(?:PIP_(?:INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS|NO_INDEX|TRUSTED_HOST|CERT|CLIENT_CERT|PROXY"
    r"|DEFAULT_TIMEOUT|CONFIG_FILE)"
    r"|NPM_CONFIG_(?:REGISTRY|CAFILE|USERCONFIG|PROXY|HTTPS_PROXY|STRICT_SSL)"
    r"|(?:HTTPS?|ALL|NO)_PROXY|SSL_CERT_(?:FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE"
    r"|NODE_EXTRA_CA_CERTS)",
    re.IGNORECASE,
)

_NETWORK_VARIABLES = re.compile(r"(?:HTTPS?|ALL|NO)_PROXY|SSL_CERT_(?:FILE|DIR)", re.IGNORECASE)


def state_directory() -> Path:
    """Give FORKYARD_HOME, or /var/lib/forkyard for root, or the XDG state directory."""
    named = os.environ.get("FORKYARD_HOME")
    if named:
        return Path(named).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/forkyard")
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "forkyard"


@dataclass(frozen=True, slots=True)
class Layout:
    """Every path below one state directory."""

    home: Path

    @property
    def database(self) -> Path:
        """Journal and projections."""
        return self.home / "state.db"

    @property
    def lock(self) -> Path:
        """Held by the one server."""
        return self.home / "state.lock"

    @property
    def reserve(self) -> Path:
        """Room for the journal on a full disk."""
        return self.home / "reserve"

    @property
    def run(self) -> Path:
        """Sockets of the server and the fork-server."""
        return self.home / "run"

    @property
    def api_socket(self) -> Path:
        """The HTTP API."""
        return self.run / "api.sock"

    @property
    def fleet_socket(self) -> Path:
        """The fork-server."""
        return self.run / "fleet.sock"

    @property
    def gateway_socket(self) -> Path:
        """The gateway's control socket."""
        return self.run / "gateway.sock"

    @property
    def namespace(self) -> Path:
        """Which user namespace a rootless server and its sandboxes are in."""
        return self.run / "namespace"

    @property
    def mode(self) -> Path:
        """Whether the files are of root mode or rootless, and of which ids."""
        return self.home / "mode"

    @property
    def gateway(self) -> Path:
        """The gateway's own directory: its ledger."""
        return self.home / "gateway"

    @property
    def gateway_log(self) -> Path:
        """What the gateway prints; opened by the server, so not in the gateway's own directory."""
        return self.home / "gateway.log"

    @property
    def egress_socket(self) -> Path:
        """The allowlist proxy's control socket."""
        return self.run / "egress.sock"

    @property
    def egress(self) -> Path:
        """The proxy's own directory: its records of connections."""
        return self.home / "egress"

    @property
    def egress_log(self) -> Path:
        """What the proxy prints."""
        return self.home / "egress.log"

    @property
    def gateway_settings(self) -> Path:
        """Providers, models and prices; may be absent."""
        return self.home / "gateway.yaml"

    @property
    def secrets(self) -> Path:
        """Sealed values by name, and their key."""
        return self.home / "secrets"

    @property
    def server_log(self) -> Path:
        """What the server prints."""
        return self.home / "server.log"

    @property
    def agents(self) -> Path:
        """Installed agents, one folder per pinned version."""
        return self.home / "agents"

    @property
    def layers(self) -> Path:
        """All layers."""
        return self.home / "layers"

    def layer(self, layer: LayerId) -> Path:
        """One layer's tree."""
        return self.layers / layer

    @property
    def roots(self) -> Path:
        """Root file systems of image `host`, by digest."""
        return self.home / "roots"

    @property
    def workspaces(self) -> Path:
        """All workspaces."""
        return self.home / "workspaces"

    def workspace(self, workspace: WorkspaceId) -> Path:
        """Everything of one workspace."""
        return self.workspaces / workspace

    def disk(self, workspace: WorkspaceId) -> Path:
        """Holds `upper` and `work` of the workspace's overlay."""
        return self.workspace(workspace) / "disk"

    def upper(self, workspace: WorkspaceId) -> Path:
        """What the workspace wrote."""
        return self.disk(workspace) / "upper"

    def sandbox(self, workspace: WorkspaceId) -> Path:
        """The shim's folder: spec, socket, status."""
        return self.workspace(workspace) / "sandbox"

    def exec(self, workspace: WorkspaceId, exec_id: ExecId) -> Path:
        """One exec's folder: spec, stdout, stderr, exit record."""
        return self.workspace(workspace) / "execs" / exec_id

    @property
    def objects(self) -> Path:
        """The bare git store."""
        return self.home / "objects"

    @property
    def blobs(self) -> Path:
        """Content-addressed files."""
        return self.home / "blobs"

    @property
    def runs(self) -> Path:
        """Results of all runs."""
        return self.home / "runs"

    def attempt(self, run: RunId, attempt: AttemptId) -> Path:
        """Results of one attempt."""
        return self.runs / run / attempt

    def build(self, template: TemplateId) -> Path:
        """Log and task output of a template's last build."""
        return self.home / "builds" / template

    @property
    def trash(self) -> Path:
        """What is being removed."""
        return self.home / "trash"


def is_registry_variable(name: str) -> bool:
    """Say whether a variable tells npm or pip where and how to fetch, and nothing else."""
    return _REGISTRY_VARIABLES.fullmatch(name) is not None


def registry_settings() -> dict[str, str]:
    """Give what our user's environment and home say of package registries, as variables."""
    home = Path.home()
    files = {
        "NPM_CONFIG_USERCONFIG": home / ".npmrc",
        "PIP_CONFIG_FILE": home / ".config" / "pip" / "pip.conf",
    }
    named = {name: value for name, value in os.environ.items() if is_registry_variable(name)}
    return {**{name: str(path) for name, path in files.items() if path.is_file()}, **named}


def network_settings() -> dict[str, str]:
    """Give what our own environment says of proxies and of whom to trust, as variables."""
    return {name: os.environ[name] for name in os.environ if _NETWORK_VARIABLES.fullmatch(name)}


def search_path() -> str:
    """Give the PATH that tools are looked for in."""
    return os.environ.get("PATH") or "/usr/local/bin:/usr/bin:/bin"


def server_environment(layout: Layout) -> dict[str, str]:
    """Give the whole environment of a server started on demand: no secret of its starter's."""
    # The last one: started through sudo from a user's checkout, it leaves no file of root's there.
    kept = ("PATH", "HOME", "LANG", "FORKYARD_FAILPOINT", "PYTHONDONTWRITEBYTECODE")
    named = {name: os.environ[name] for name in kept if name in os.environ}
    if "PYTHONPATH" in os.environ:
        # Run from a source tree: the server must find the same package, whatever its directory.
        named["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **named, "FORKYARD_HOME": str(layout.home)}
