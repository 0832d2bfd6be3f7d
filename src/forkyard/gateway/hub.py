"""The gateway's state: settings, keys, grants, listening sockets, and what is under way.

Control connections change it, listening sockets draw on it. A socket whose grant or provider is
not known yet is kept and not accepted: who connects waits in the kernel's queue.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

from aiohttp import web

from forkyard.errors import ConfigError
from forkyard.gateway.admission import Admission
from forkyard.gateway.app import Listener
from forkyard.gateway.governor import Governor
from forkyard.gateway.intake import Intake
from forkyard.gateway.interface import (
    Api,
    Copied,
    GatewaySettings,
    LedgerEntry,
    Provider,
    RunStatus,
)
from forkyard.gateway.keys import KeyRing
from forkyard.gateway.ledger import Ledger
from forkyard.gateway.passing import Stalls
from forkyard.gateway.prices import ModelPrice, PriceTable
from forkyard.gateway.relay import Exchange, Parts
from forkyard.gateway.upstream import Upstream
from forkyard.model.budget import Grant
from forkyard.model.ids import WorkspaceId

LEDGER_FILE = "ledger.db"
CUT_SECONDS = 3.0
"""How long an answer is read on for once its workspace is revoked."""
_SETTLE_SECONDS = 20.0
_KNOWN_SECONDS = 60.0
"""Prices may change with the time of day."""
_MOST_KNOWN = 256
_log = logging.getLogger("forkyard.gateway")


@dataclass(slots=True, kw_only=True)
class _Workspace:
    """What the gateway holds of one workspace."""

    listeners: dict[str, Listener] = field(default_factory=dict)
    exchanges: set[Exchange] = field(default_factory=set)
    tasks: set[asyncio.Task[web.StreamResponse]] = field(default_factory=set)
    stalls: dict[str, Stalls] = field(default_factory=dict)
    places: asyncio.Semaphore | None = None


class Hub:
    """Everything of one gateway process; see the module."""

    def __init__(self, keys: KeyRing, ledger: Ledger, upstream: Upstream) -> None:
        """Take an open ledger and an open client; both stay the caller's to close."""
        self.keys = keys
        self.ledger = ledger
        self._upstream = upstream
        self._admission = Admission(ledger)
        self._providers: dict[str, Provider] = {}
        self._governors: dict[str, Governor] = {}
        self._prices = PriceTable()
        self._workspaces: dict[WorkspaceId, _Workspace] = {}
        self._grants: dict[WorkspaceId, Grant] = {}
        self._turns: WeakValueDictionary[WorkspaceId, asyncio.Lock] = WeakValueDictionary()
        self._known: dict[tuple[str, Api], ModelPrice | None] = {}
        self._known_until = 0.0

    @property
    def is_needed(self) -> bool:
        """Say whether any sandbox depends on this process."""
        return any(one.listeners or one.tasks for one in self._workspaces.values())

    async def configure(self, settings: GatewaySettings, keys: Mapping[str, str]) -> None:
        """Use these providers, prices and keys from now on; what is under way goes on as it was.

        Raises:
            ConfigError: A key cannot be sent.
        """
        self.keys.replace(keys)
        self._providers = {one.name: one for one in settings.providers}
        for name, provider in self._providers.items():
            if name in self._governors:
                self._governors[name].change(provider)
            else:
                self._governors[name] = Governor(provider)
        self._prices = PriceTable(settings.prices)
        self._known.clear()
        for workspace in tuple(self._grants):
            async with self._turn(workspace):
                await self._open(workspace)

    async def grant(self, grant: Grant) -> None:
        """Let a workspace in; its sockets are accepted from now on. Idempotent.

        Raises:
            ConfigError: With a money budget, one of its models has no known price.
        """
        self._refuse_unpriced(grant)
        async with self._turn(grant.workspace):
            await self._admission.grant(grant)
            held = self._held(grant.workspace)
            most, before = grant.most_concurrent, self._grants.get(grant.workspace)
            if held.places is None or before is None or before.most_concurrent != most:
                held.places = asyncio.Semaphore(max(1, most))
            self._grants[grant.workspace] = grant
            await self._open(grant.workspace)

    def _refuse_unpriced(self, grant: Grant) -> None:
        if grant.attempt_budget.micro_usd is None and grant.run_budget.micro_usd is None:
            return
        apis = {one.api for one in self._providers.values()}
        unknown = [
            model
            for model in grant.models
            if not any(self._prices.price_of(model, api) for api in apis)
        ]
        if unknown:
            raise ConfigError(
                f"cannot hold a budget in money for {', '.join(sorted(unknown))}: no price is"
                " known",
                hint="Give its price under `prices:` in gateway.yaml, or a budget in tokens.",
            )

    async def revoke(self, workspace: WorkspaceId) -> tuple[LedgerEntry, ...]:
        """Close a workspace's sockets, cut its streams, settle what was open. Idempotent."""
        # A grant that waits for the disk comes first: it is this one that it may not outlive.
        async with self._turn(workspace):
            self._admission.revoke(workspace)
            self._grants.pop(workspace, None)
            held = self._workspaces.get(workspace)
            if held is not None:
                for listener in tuple(held.listeners.values()):
                    await listener.close()
                await self._cut(held)
                self._forget_if_empty(workspace)
            await self._upstream.forget(workspace)
            return await self.ledger.entries_of(workspace)

    async def _cut(self, *workspaces: _Workspace) -> None:
        """Cut what is under way, and wait for all of it at once."""
        for held in workspaces:
            for exchange in tuple(held.exchanges):
                exchange.leave(CUT_SECONDS)
        if tasks := [task for held in workspaces for task in held.tasks]:
            await asyncio.wait(tasks, timeout=_SETTLE_SECONDS)

    async def hand_over(
        self, workspace: WorkspaceId, sockets: Mapping[str, socket.socket]
    ) -> tuple[Listener, ...]:
        """Take a workspace's listening sockets; those it had before are let go."""
        made = {name: Listener(one, workspace, name) for name, one in sockets.items()}
        async with self._turn(workspace):
            held = self._held(workspace)
            before, held.listeners = held.listeners, made
            for listener in before.values():
                await listener.discard()
            await self._open(workspace)
        return tuple(made.values())

    async def let_go(self, listeners: Iterable[Listener]) -> None:
        """Close what a shim handed over: it is gone, and so is its sandbox."""
        for listener in listeners:
            held = self._workspaces.get(listener.workspace)
            if held is not None and held.listeners.get(listener.provider) is listener:
                del held.listeners[listener.provider]
            await listener.discard()
            self._forget_if_empty(listener.workspace)

    async def entries_after(self, sequence: int, limit: int) -> tuple[LedgerEntry, ...]:
        """Read the settled ledger in its order."""
        return await self.ledger.entries_after(sequence, limit=limit)

    async def prune(self, copied: Copied) -> int:
        """Forget settled entries that the journal has."""
        return await self.ledger.prune(copied)

    async def changes(self) -> AsyncIterator[RunStatus]:
        """Follow what runs spend, wait for and are refused."""
        async for status in self._admission.changes():
            yield self._with_rates(status)

    def _with_rates(self, status: RunStatus) -> RunStatus:
        """Count those in too who wait for a provider's rate and not for a budget."""
        grants = []
        for one in status.grants:
            waiting = [governor.waiting(one.attempt) for governor in self._governors.values()]
            places = [governor.position(one.attempt) for governor in self._governors.values()]
            known = [place for place in (one.queue_position, *places) if place is not None]
            grants.append(
                replace(
                    one,
                    waiting=one.waiting + sum(waiting),
                    queue_position=max(known) if known else None,
                )
            )
        return replace(status, grants=tuple(grants))

    async def close(self) -> None:
        """Close every socket, cut every stream, settle everything."""
        all_held = tuple(self._workspaces.values())
        listeners = [one for held in all_held for one in held.listeners.values()]
        await asyncio.gather(*(one.discard() for one in listeners))
        await self._cut(*all_held)
        if tasks := [task for held in all_held for task in held.tasks]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_SETTLE_SECONDS)

    def _turn(self, workspace: WorkspaceId) -> asyncio.Lock:
        """Give the lock of whoever changes a workspace; it is gone when nobody uses it."""
        return self._turns.setdefault(workspace, asyncio.Lock())

    def _held(self, workspace: WorkspaceId) -> _Workspace:
        return self._workspaces.setdefault(workspace, _Workspace())

    def _forget_if_empty(self, workspace: WorkspaceId) -> None:
        held = self._workspaces.get(workspace)
        if held and not held.listeners and not held.tasks and workspace not in self._grants:
            del self._workspaces[workspace]

    async def _open(self, workspace: WorkspaceId) -> None:
        held = self._workspaces.get(workspace)
        if held is None or workspace not in self._grants:
            return
        for listener in tuple(held.listeners.values()):
            if listener.provider in self._providers:
                await listener.open(partial(self._answer, listener))

    async def _answer(self, listener: Listener, request: web.BaseRequest) -> web.StreamResponse:
        grant = self._grants.get(listener.workspace)
        provider = self._providers.get(listener.provider)
        held = self._workspaces.get(listener.workspace)
        if grant is None or provider is None or held is None or held.places is None:
            # Revoked, or its provider was taken out of the settings, a moment ago.
            raise web.HTTPForbidden(text="not granted any more")
        places = held.places
        await places.acquire()
        try:
            intake = Intake(grant, provider, self._admission)
            found = await intake.read(request)
            key = None if provider.secret is None else self.keys.get(provider.secret)
            if not isinstance(found, web.StreamResponse) and key is None and provider.secret:
                found = await intake.refuse_without_key(found.protocol)
        except BaseException:
            places.release()
            raise
        if isinstance(found, web.StreamResponse):
            places.release()
            return found
        exchange = Exchange(
            Parts(
                provider=provider,
                key=key,
                keys=self.keys,
                upstream=self._upstream,
                governor=self._governors[provider.name],
                admission=self._admission,
            ),
            grant,
            request,
            found.protocol,
            found.rebuilt,
            price=self._price(found.rebuilt.model, provider.api),
            stalls=held.stalls.setdefault(provider.name, Stalls()),
        )
        return await self._follow(held, exchange, places)

    def _price(self, model: str, api: Api) -> ModelPrice | None:
        """Look a price up, but not for each request: a table's search takes half a millisecond."""
        now = asyncio.get_running_loop().time()
        if len(self._known) > _MOST_KNOWN or now > self._known_until:
            self._known.clear()
            self._known_until = now + _KNOWN_SECONDS
        if (model, api) not in self._known:
            self._known[model, api] = self._prices.price_of(model, api)
        return self._known[model, api]

    async def _follow(
        self, held: _Workspace, exchange: Exchange, places: asyncio.Semaphore
    ) -> web.StreamResponse:
        task = exchange.start()
        held.exchanges.add(exchange)
        held.tasks.add(task)

        def ended(done: asyncio.Task[web.StreamResponse]) -> None:
            # Not when the agent goes away: what is read on takes a place as well.
            places.release()
            held.exchanges.discard(exchange)
            held.tasks.discard(done)
            if not done.cancelled() and (error := done.exception()) is not None:
                _log.error("An exchange broke", exc_info=error)

        task.add_done_callback(ended)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            exchange.leave()
            raise


async def open_ledger() -> Ledger:
    """Open the ledger in the process's own directory."""
    return await Ledger.open(Path.cwd() / LEDGER_FILE)
