"""The store: one protocol of engine commands, one contract suite, and the backends that pass it."""

from holdfast.store.commands import (
    Answer,
    Append,
    Appended,
    Cancel,
    Claim,
    Claimed,
    Claims,
    Command,
    Expire,
    JobIds,
    Keep,
    KeepEvidence,
    KeepExport,
    Leases,
    Pause,
    PauseQueue,
    Progress,
    Purge,
    PutBlob,
    PutWorker,
    Reclaim,
    ReleaseLeases,
    RemoveWorker,
    Renew,
    Resolve,
    Resume,
    Retry,
    SendSignal,
    SetLimits,
    SignalResult,
    Submit,
    Submitted,
    Successor,
)
from holdfast.store.limits import Blocked, Limits, QueueState
from holdfast.store.protocol import Store
from holdfast.store.rows import Evidence, Job, Lease, Signal, WorkerCard, rebuilt
from holdfast.store.schedule_commands import Advance

__all__ = [
    "Advance", "Answer", "Append", "Appended", "Blocked", "Cancel", "Claim", "Claimed", "Claims", "Command", "Evidence",
    "Expire", "Job", "JobIds", "Keep", "KeepEvidence", "KeepExport", "Lease", "Leases", "Limits", "Pause", "PauseQueue",
    "Progress", "Purge", "PutBlob", "PutWorker", "QueueState", "Reclaim", "ReleaseLeases", "RemoveWorker", "Renew",
    "Resolve", "Resume", "Retry", "SendSignal", "SetLimits", "Signal", "SignalResult", "Store", "Submit", "Submitted",
    "Successor", "WorkerCard", "rebuilt",
]  # fmt: skip
