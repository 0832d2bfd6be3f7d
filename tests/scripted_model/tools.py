"""From an abstract action to a call of whatever tool the agent declared for it."""

from __future__ import annotations

import json
import os.path
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from scripted_model.shapes import Json, Object, an_object, text


class UnplayableError(Exception):
    """The agent declared no tool that the scenario's action could use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool as the agent declared it, whatever the API."""

    name: str
    parameters: Object = field(default_factory=dict)
    is_freeform: bool = False
    """Takes text instead of an object."""
    namespace: str | None = None


def tool(declared: Object, schema: str, *, namespace: str | None = None) -> Tool:
    """Read a declaration whose JSON schema stands under a key."""
    return Tool(
        name=text(declared.get("name")),
        parameters=an_object(an_object(declared.get(schema)).get("properties")),
        is_freeform=declared.get("type") == "custom" and schema == "parameters",
        namespace=namespace,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a tool: arguments are an object, or text for a freeform tool."""

    suffix: str
    """Ends the id that each API makes of it; carries the number of the turn."""
    tool: Tool
    arguments: Object | str


class Toolbox:
    """The declared tools, and where the agent works."""

    def __init__(self, tools: Sequence[Tool], working_directory: str | None) -> None:
        self._by_name = {one.name: one for one in tools}
        self._folder = working_directory
        script = self._by_name.get("exec")
        self._script = script if script is not None and script.is_freeform else None

    def play(self, action: Object) -> tuple[Tool, Object | str]:
        """Choose tool and arguments for an action.

        Raises:
            UnplayableError: No declared tool will do.
        """
        match action:
            case {"tool": str(name)}:
                return self._by_name.get(name) or Tool(name=name), an_object(action.get("input"))
            case {"run": str(command)}:
                return self._run(command)
            case {"read": str(path)}:
                found = self._first("Read", "read", "read_file")
                if found is None:
                    return self._run(f"cat {shlex.quote(path)}")
                return found, {self._path_key(found): self._full(path)}
            case {"write": {"path": str(path), "content": str(content)}}:
                return self._write(path, content)
            case {"edit": {"path": str(path), "old": str(old), "new": str(new)}}:
                return self._edit(path, old, new)
            case _:
                raise UnplayableError(f"unknown action {sorted(action)}")

    def _first(self, *names: str) -> Tool | None:
        return next((self._by_name[name] for name in names if name in self._by_name), None)

    def _full(self, path: str) -> str:
        return os.path.join(self._folder, path) if self._folder else path  # noqa: PTH118 (inside)

    @staticmethod
    def _path_key(found: Tool) -> str:
        known = ("file_path", "filePath", "absolute_path", "path")
        return next((key for key in known if key in found.parameters), "file_path")

    def _code(self, call: str) -> tuple[Tool, str]:
        """Call through the one tool that takes JavaScript and calls the others."""
        if self._script is None:
            raise UnplayableError("no tool that takes a script")
        shown = "text(typeof r === 'string' ? r : JSON.stringify(r));"
        return self._script, f"const r = await tools.{call}; {shown}"

    def _run(self, command: str) -> tuple[Tool, Object | str]:
        if self._script is not None:
            return self._code(f"exec_command({json.dumps({'cmd': command})})")
        names = ("Bash", "bash", "exec_command", "shell_command", "shell", "run_shell_command")
        found = self._first(*names, "local_shell")
        if found is None:
            raise UnplayableError(f"no shell tool among {sorted(self._by_name)}")
        key = "cmd" if "cmd" in found.parameters else "command"
        is_list = an_object(found.parameters.get(key)).get("type") == "array"
        said: Json = ["bash", "-lc", command] if is_list else command
        arguments: Object = {key: said}
        if "description" in found.parameters:
            arguments["description"] = "Run a command"
        return found, arguments

    def _write(self, path: str, content: str) -> tuple[Tool, Object | str]:
        found = self._first("Write", "write", "write_file")
        if found is not None:
            return found, {self._path_key(found): self._full(path), "content": content}
        if self._script is not None or "apply_patch" in self._by_name:
            return self._patch(path, None, content)
        code = "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"
        return self._run(shlex.join(("python3", "-c", code, path, content)))

    def _edit(self, path: str, old: str, new: str) -> tuple[Tool, Object | str]:
        found = self._first("Edit", "edit", "replace")
        if found is not None:
            camel = "oldString" in found.parameters
            arguments: Object = {
                self._path_key(found): self._full(path),
                "oldString" if camel else "old_string": old,
                "newString" if camel else "new_string": new,
            }
            if "instruction" in found.parameters:
                arguments["instruction"] = "Fix the bug."
            return found, arguments
        if self._script is not None or "apply_patch" in self._by_name:
            return self._patch(path, old, new)
        code = (
            "import sys; p, a, b = sys.argv[1:]; s = open(p).read(); assert a in s; "
            "open(p, 'w').write(s.replace(a, b))"
        )
        return self._run(shlex.join(("python3", "-c", code, path, old, new)))

    def _patch(self, path: str, old: str | None, new: str) -> tuple[Tool, Object | str]:
        document = _patch_document(path, old, new)
        if self._script is not None:
            return self._code(f"apply_patch({json.dumps(document)})")
        found = self._by_name["apply_patch"]
        if found.is_freeform:
            return found, document
        known = ("input", "patchText", "patch")
        return found, {next((key for key in known if key in found.parameters), "input"): document}


def _patch_document(path: str, old: str | None, new: str) -> str:
    added = ["+" + line for line in new.splitlines()]
    if old is None:
        body = [f"*** Add File: {path}", *added]
    else:
        taken = ["-" + line for line in old.splitlines()]
        body = [f"*** Update File: {path}", "@@", *taken, *added]
    return "\n".join(["*** Begin Patch", *body, "*** End Patch"])
