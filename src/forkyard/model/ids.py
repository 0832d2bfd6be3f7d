"""Identifiers: a prefix that says what a thing is, and random hexadecimal digits."""

from __future__ import annotations

import re
import uuid
from typing import NewType

TemplateId = NewType("TemplateId", str)
LayerId = NewType("LayerId", str)
SnapshotId = NewType("SnapshotId", str)
WorkspaceId = NewType("WorkspaceId", str)
ExecId = NewType("ExecId", str)
RunId = NewType("RunId", str)
AttemptId = NewType("AttemptId", str)
CandidateId = NewType("CandidateId", str)
EvaluationId = NewType("EvaluationId", str)
ApplicationId = NewType("ApplicationId", str)
ImageId = NewType("ImageId", str)

SHORT_DIGITS = 12
"""Enough that a person's installation never sees two alike (48 bits)."""

IMAGE_DIGITS = 24
"""Ids that content decides: nobody finds two alike (96 bits), and mount options stay short."""

_SHAPE = re.compile(r"(tmpl|lay|snap|ws|exec|run|att|cand|eval|app|img)_[0-9a-f]{6,32}")


def _new(prefix: str, digits: int = SHORT_DIGITS) -> str:
    return f"{prefix}_{uuid.uuid4().hex[:digits]}"


def new_template_id() -> TemplateId:
    """Make a fresh template id."""
    return TemplateId(_new("tmpl"))


def new_layer_id() -> LayerId:
    """Make a fresh layer id."""
    return LayerId(_new("lay"))


def new_snapshot_id() -> SnapshotId:
    """Make a fresh snapshot id."""
    return SnapshotId(_new("snap"))


def new_workspace_id() -> WorkspaceId:
    """Make a fresh workspace id."""
    return WorkspaceId(_new("ws"))


def new_exec_id() -> ExecId:
    """Make a fresh exec id."""
    return ExecId(_new("exec"))


def new_run_id() -> RunId:
    """Make a fresh run id."""
    return RunId(_new("run"))


def new_attempt_id() -> AttemptId:
    """Make a fresh attempt id: a whole UUID, since it leaves this installation in manifests."""
    return AttemptId(_new("att", 32))


def new_candidate_id() -> CandidateId:
    """Make a fresh candidate id."""
    return CandidateId(_new("cand"))


def new_evaluation_id() -> EvaluationId:
    """Make a fresh evaluation id."""
    return EvaluationId(_new("eval"))


def new_application_id() -> ApplicationId:
    """Make a fresh id for one application of a candidate to a working tree."""
    return ApplicationId(_new("app"))


def image_id(digest: str) -> ImageId:
    """Give the id of the image of a manifest's digest: the same one for ever."""
    return ImageId(f"img_{digest.removeprefix('sha256:')[:IMAGE_DIGITS]}")


def image_layer_id(content: str) -> LayerId:
    """Give the id of the layer of a content's SHA-256: whoever has the content has the layer."""
    return LayerId(f"lay_{content[:IMAGE_DIGITS]}")


def is_id(text: str) -> bool:
    """Say whether a text is a whole identifier, safe to use as a file name."""
    return _SHAPE.fullmatch(text) is not None
