"""Masking: no secret's value leaves in a byte stream, however it is cut and in whatever coding.

What is masked becomes ``[secret NAME]``. The result does not depend on how a stream was cut into
pieces; what is no secret passes unchanged, and at once unless it could be the beginning of one.
Not found: what was compressed, encrypted, reversed, or printed a piece at a time with other text
between. Nothing below LEAST_BYTES is masked; such a secret cannot be set.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from forkyard.base.masking_forms import PREFIX_BYTES, Form, forms_of
from forkyard.model.secret import LEAST_BYTES


class Masker:
    """The values to mask, which may change while streams are under way.

    One is shared by everything that shows or keeps output. A value that was replaced or deleted
    is masked on until the process ends: what an agent printed before is still being read.
    Reading is safe from any thread, replacing from one at a time.
    """

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        """Mask these values by name."""
        self._known: dict[str, str] = {}
        self._patterns = _Patterns({})
        if values:
            self.replace(values)

    def replace(self, values: Mapping[str, str]) -> None:
        """Mask these values too, from the next stream on."""
        known = dict(self._known)
        for name, value in sorted(values.items()):
            if len(value.strip().encode()) >= LEAST_BYTES:
                known[value.strip()] = name
        if known != self._known:
            self._known, self._patterns = known, _Patterns(known)

    @property
    def is_idle(self) -> bool:
        """Say whether nothing is masked at all."""
        return not self._known

    def stream(self) -> MaskedStream:
        """Begin a stream."""
        return MaskedStream(self._patterns)

    def mask(self, content: bytes) -> bytes:
        """Mask what is there whole."""
        if self.is_idle:
            return content
        stream = self.stream()
        return stream.feed(content) + stream.finish()

    def mask_text(self, text: str) -> str:
        """Mask text, undecodable bytes in it included."""
        if self.is_idle:
            return text
        # Surrogates pass both ways, so that whatever is not masked comes back as it was.
        return self.mask(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def names_in(self, chunks: Iterable[bytes]) -> tuple[str, ...]:
        """Say which secrets occur in a stream."""
        stream = self.stream()
        for chunk in chunks:
            stream.feed(chunk)
        stream.finish()
        return tuple(sorted(stream.found))


class MaskedStream:
    """One stream being masked. Holds back no more than the longest form of a secret."""

    def __init__(self, patterns: _Patterns) -> None:
        """Begin with nothing read."""
        self._patterns = patterns
        self._buffer = b""
        self._covered = 0
        self.found: set[str] = set()
        """Names of the secrets that were masked so far."""

    def feed(self, chunk: bytes) -> bytes:
        """Take more of the stream; give what is certain by now."""
        return self._advance(chunk, is_last=False)

    def finish(self) -> bytes:
        """End the stream; give what was held back."""
        return self._advance(b"", is_last=True)

    def _advance(self, chunk: bytes, *, is_last: bool) -> bytes:
        buffer = self._buffer + chunk if self._buffer else chunk
        given: list[bytes] = []
        # Bytes before `covered` belong to a secret whose mask is given already.
        covered = self._covered
        position = 0
        while True:
            place = self._patterns.next_place(buffer, position, is_last=is_last)
            verdict = None
            if place < len(buffer):
                verdict = self._patterns.look(buffer, place, is_last=is_last)
            if verdict is None:
                given.append(buffer[covered:place])
                break
            end, name = verdict
            if end is not None:
                if place >= covered:
                    given += (buffer[covered:place], b"[secret %s]" % name.encode())
                self.found.add(name)
                covered = max(covered, end)
            position = place + 1
        self._buffer = buffer[place:]
        self._covered = max(0, covered - place)
        return b"".join(given)


class _Patterns:
    """Every form of every value, found by its first bytes."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self._forms: dict[bytes, list[Form]] = defaultdict(list)
        for value, name in known.items():
            for form in forms_of(name, value):
                for prefix in form.prefixes():
                    self._forms[prefix].append(form)
        # A tree of choices rather than a list of them: a byte is compared with few others.
        self._finder = re.compile(_tree(self._forms), re.DOTALL) if self._forms else None
        self._beginnings = {one[:size] for one in self._forms for size in range(1, PREFIX_BYTES)}

    def next_place(self, buffer: bytes, position: int, *, is_last: bool) -> int:
        """Find the next place where a form may begin; the buffer's end: there is none."""
        if self._finder is None:
            return len(buffer)
        found = self._finder.search(buffer, position)
        if found is not None:
            return found.start()
        if not is_last:
            for place in range(max(position, len(buffer) - PREFIX_BYTES + 1), len(buffer)):
                if buffer[place:] in self._beginnings:
                    return place
        return len(buffer)

    def look(self, buffer: bytes, place: int, *, is_last: bool) -> tuple[int | None, str] | None:
        """Look what stands at a place: where the longest form of which secret ends, if any.

        Returns:
            None where only more bytes can tell.
        """
        size = len(buffer)
        if size - place < PREFIX_BYTES:
            return None
        best: tuple[int | None, str] = (None, "")
        for form in self._forms[buffer[place : place + PREFIX_BYTES]]:
            if (is_last or place + form.longest <= size) and not form.is_at(buffer, place):
                continue
            end, is_open = form.match(buffer, place)
            if is_open and not is_last:
                return None
            if end is not None and (best[0] is None or end > best[0]):
                best = (end, form.name)
        return best


def _tree(words: Iterable[bytes]) -> bytes:
    branches: dict[int, set[bytes]] = defaultdict(set)
    for word in words:
        if word:
            branches[word[0]].add(word[1:])
    if not branches:
        return b""
    choices = [re.escape(bytes((first,))) + _tree(rest) for first, rest in sorted(branches.items())]
    return b"(?:" + b"|".join(choices) + b")"
