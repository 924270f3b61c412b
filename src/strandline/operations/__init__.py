"""What a person does to positions: set, reset, accept, import, rename, forget, replan; and what they can see of them.

Every operation first gives `Change`s, which say what would be and write nothing; `apply` writes them as they were
shown, each with its history record, under compare-and-set. Target data is never touched. Knows nothing of terminals.
"""

from strandline.operations.adopt import adopt, adopt_control, is_foreign
from strandline.operations.adopt_cache import adopt_cache
from strandline.operations.adopt_delta import adopt_delta
from strandline.operations.backup import export, import_
from strandline.operations.change import Change, apply
from strandline.operations.positions import forget, import_from_target, rename, replan, reset, set_watermark
from strandline.operations.status import ChangeEntry, OpenPlan, PipelineStatus, TableStatus, history, status
from strandline.operations.suspension import Suspension, resume, suspend, suspension, suspensions

__all__ = [
    "Change",
    "ChangeEntry",
    "OpenPlan",
    "PipelineStatus",
    "Suspension",
    "TableStatus",
    "adopt",
    "adopt_cache",
    "adopt_control",
    "adopt_delta",
    "apply",
    "export",
    "forget",
    "history",
    "import_",
    "import_from_target",
    "is_foreign",
    "rename",
    "replan",
    "reset",
    "resume",
    "set_watermark",
    "status",
    "suspend",
    "suspension",
    "suspensions",
]
