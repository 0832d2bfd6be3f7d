"""Where names lead, asked of this machine's resolver by the proxy; a sandbox asks nobody."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor

from forkyard.gateway.egress.addresses import leads_elsewhere, why_refused

SECONDS = 15.0
MOST_AT_ONCE = 8
"""Of one workspace: a resolver that does not answer must not be everybody's trouble."""
MOST_ADDRESSES = 4
"""Tried one after another."""
_THREADS = 64


class LeadError(Exception):
    """A name leads nowhere that may be reached; the message is a clause."""

    def __init__(self, words: str, *, is_refusal: bool, address: str | None = None) -> None:
        """Say whether it is we who refuse."""
        super().__init__(words)
        self.is_refusal = is_refusal
        self.address = address


class Names:
    """Resolves for all workspaces."""

    def __init__(self) -> None:
        """Start no thread yet."""
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="resolving")

    async def addresses(self, host: str, turn: asyncio.Semaphore) -> tuple[str, ...]:
        """Give the public addresses of a name.

        Args:
            host: In its plain form.
            turn: Of the workspace that asks; held until the resolver has answered, however long
                the caller waits.

        Raises:
            LeadError: There are none.
        """
        loop = asyncio.get_running_loop()
        await turn.acquire()
        asking = loop.run_in_executor(self._threads, _resolve, host)

        def over(done: asyncio.Future[list[str]]) -> None:
            turn.release()
            if not done.cancelled():
                done.exception()  # told where it is awaited, if it still is

        asking.add_done_callback(over)
        try:
            async with asyncio.timeout(SECONDS):
                found = await asyncio.shield(asking)
        except TimeoutError:
            words = f"its name was not resolved within {SECONDS:g} s"
            raise LeadError(words, is_refusal=False) from None
        except OSError as error:
            words = f"its name cannot be resolved: {error.strerror or error}"
            raise LeadError(words, is_refusal=False) from None
        return _public(found)


def _resolve(host: str) -> list[str]:
    # With the last dot no search domain of this machine is tried.
    found = socket.getaddrinfo(f"{host}.", None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _public(found: list[str]) -> tuple[str, ...]:
    good, refused = [], []
    for address in found:
        what = why_refused(address) or _why_not_out(address)
        if what is None:
            good.append(address)
        else:
            refused.append((address, what))
    if not good:
        if not refused:
            raise LeadError("its name has no address", is_refusal=False)
        address, what = refused[0]
        words = f"its name leads to {address}, which is {what}"
        raise LeadError(words, is_refusal=True, address=address)
    return tuple(good[:MOST_ADDRESSES])


def _why_not_out(address: str) -> str | None:
    with contextlib.suppress(OSError):
        if leads_elsewhere(address):
            return None
    return "this machine's own, or leads nowhere"
