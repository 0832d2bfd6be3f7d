"""`./dev bench [--json]`: measure against docker and podman, with every protection on."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import forkyard
from benchmarks import engines, gateway, ours, rootless, storage, trees
from benchmarks.measure import Timed, in_pairs, tell

LEAST_PAIRS = 10
SMALL, MEDIUM, LARGE = 2_000, 20_000, 100_000
WORK = "/var/tmp"
FIRST_COMMAND = ("ls", "/workspace/repo")
ROWS = ("fork-vs-docker", "fork-vs-podman", "exec-vs-docker", "exec-vs-podman",
        "64-forks-by-8", "fork-100k-by-2k-files", "collect-100k-by-2k-files",
        *storage.ROWS, *gateway.ROWS)  # fmt: skip


class Bench:
    """One run of the benchmark: what is chosen, and where it lies."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        """Keep both."""
        self.pairs: int = options.pairs
        self.as_json: bool = options.json
        self.is_rootless: bool = options.mode == "rootless"
        self.rows: frozenset[str] = frozenset(options.only or ROWS)
        if self.is_rootless:
            # Docker and podman are run by root; the gateway is the same one.
            self.rows -= {*ROWS[:4], *gateway.ROWS}
        self.missed = 0
        self._folder = folder
        self._made: dict[int, tuple[str, Path]] = {}

    def wants(self, *rows: str) -> bool:
        """Say whether any of these rows was asked for."""
        return not self.rows.isdisjoint(rows)

    def repository(self, files: int) -> Path:
        """Make the repository of so many files."""
        engines.say(f"making a tree of {files} files")
        folder = self._folder / f"tree-{files}"
        trees.make_repository(folder, files)
        return folder

    async def snapshot(self, client: forkyard.Client, files: int) -> tuple[str, Path]:
        """Make the repository of so many files, and a snapshot of it."""
        if files not in self._made:
            repository = self.repository(files)
            name = f"tree-{files}"
            await ours.prepare(client, name, repository)
            self._made[files] = name, repository
        return self._made[files]

    async def row(
        self,
        name: str,
        a: Timed,
        b: Timed,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        is_rested: bool = False,
    ) -> None:
        """Measure and print one row, where it was asked for."""
        if name in self.rows:
            figure = await in_pairs(
                name,
                a,
                b,
                pairs=self.pairs,
                at_least=at_least,
                at_most=at_most,
                is_rested=is_rested,
            )
            self.missed += not figure.met
            tell(figure, as_json=self.as_json)


async def measure(bench: Bench, folder: Path) -> None:
    """Measure all rows that were asked for."""
    if bench.wants(*gateway.ROWS):
        for figure in await gateway.measure(folder, pairs=bench.pairs):
            bench.missed += not figure.met
            tell(figure, as_json=bench.as_json)
    if not bench.wants(*ROWS[: -len(gateway.ROWS)]):
        return
    async with ours.serving(folder / "home") as client:
        report = await client.doctor()
        ours.refuse_unprotected(report, is_rootless=bench.is_rootless)
        told = {"sandbox": report.digest, "runtime": report.runtime, **report.protections}
        if bench.as_json:
            print(json.dumps({"configuration": told}), flush=True)
        else:
            print(f"sandbox configuration {report.digest}, {report.runtime}", flush=True)
        if bench.wants(*ROWS[:5]):
            await _against_engines(bench, client, folder)
        if bench.wants(*ROWS[5:7]):
            await _growth(bench, client)
        if bench.wants(*storage.ROWS):
            await storage.measure(bench, client, folder / "home")


async def _against_engines(bench: Bench, client: forkyard.Client, folder: Path) -> None:
    name, repository = await bench.snapshot(client, MEDIUM)

    if bench.wants(*ROWS[:4]):
        engines.install()
        image = folder / "image.tar"
        engines.write_image(image, repository)
        with ExitStack() as stack:
            runner = engines.Runner()
            stack.callback(runner.close)
            for start in (engines.docker, engines.podman):
                if not bench.wants(f"fork-vs-{start.__name__}", f"exec-vs-{start.__name__}"):
                    continue
                engines.say(f"starting {start.__name__} and importing the same tree")
                engine = stack.enter_context(start(folder, runner))
                engine.load(image)
                await _against(bench, client, name, engine)
    await bench.row(
        "64-forks-by-8",
        lambda: ours.forks_at_once(client, name, 8),
        lambda: ours.forks_at_once(client, name, 64),
        at_most=10,
    )


async def _against(
    bench: Bench, client: forkyard.Client, name: str, engine: engines.Engine
) -> None:
    await bench.row(
        f"fork-vs-{engine.name}",
        lambda: ours.fork_and_run(client, name, FIRST_COMMAND),
        _timed(lambda: engine.run_first_command(*FIRST_COMMAND)),
        at_least=8,
        is_rested=True,
    )
    async with client.workspaces.run(template=name) as workspace:
        with engine.container() as container:
            await bench.row(
                f"exec-vs-{engine.name}",
                lambda: ours.exec_in(workspace),
                _timed(lambda: engine.seconds("exec", container, "true")),
                at_least=10,
            )


async def _growth(bench: Bench, client: forkyard.Client) -> None:
    small, _ = await bench.snapshot(client, SMALL)
    large, _ = await bench.snapshot(client, LARGE)
    await bench.row(
        "fork-100k-by-2k-files",
        lambda: ours.fork_and_run(client, small, FIRST_COMMAND),
        lambda: ours.fork_and_run(client, large, FIRST_COMMAND),
        at_most=1.2,
        is_rested=True,
    )
    await bench.row(
        "collect-100k-by-2k-files",
        lambda: ours.collect(client, small),
        lambda: ours.collect(client, large),
        at_most=2,
    )


def _timed(call: Callable[[], float]) -> Timed:
    async def timed() -> float:
        return await asyncio.to_thread(call)

    return timed


def main() -> int:
    """Read the command line, measure, clean up."""
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--pairs", type=int, default=LEAST_PAIRS, help="pairs per row")
    parser.add_argument("--only", action="append", choices=ROWS, help="this row; may be repeated")
    parser.add_argument(
        "--mode",
        choices=("root", "rootless"),
        default="root",
        help="as whom our side runs; rootless leaves out what root's engines do",
    )
    parser.add_argument("--folder", default=WORK, help="where to work; on a real disk")
    options = parser.parse_args()
    if options.pairs < 1:
        parser.error("--pairs must be at least 1")
    if options.pairs < LEAST_PAIRS:
        engines.say(f"{options.pairs} pairs are for trying only; {LEAST_PAIRS} make a figure")
    if os.geteuid() != 0:
        parser.error("needs root, to make an ordinary user or to run engines")
    if options.mode == "rootless" and not rootless.is_entered():
        return rootless.run_as_ordinary_user(sys.argv[1:], Path(options.folder))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that it cleans up then too
    folder = Path(tempfile.mkdtemp(prefix="forkyard-bench-", dir=options.folder))
    folder.chmod(0o755)
    try:
        bench = Bench(options, folder)
        asyncio.run(measure(bench, folder))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        engines.say("cleaning up")
        subprocess.run(["rm", "-rf", "--one-file-system", str(folder)], check=True)
    if bench.missed:
        engines.say(f"{bench.missed} of the figures missed the target")
    return 1 if bench.missed else 0


if __name__ == "__main__":
    sys.exit(main())
