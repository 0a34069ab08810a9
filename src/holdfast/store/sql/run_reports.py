"""What runs report and produce, within a batch: fenced as every write of a worker is, and no event (SPEC R9, R10)."""

from __future__ import annotations

from abc import ABC, abstractmethod

import msgspec

from holdfast.machines import RunRecord
from holdfast.store import commands as c
from holdfast.store import decide
from holdfast.store.commands import PROGRESS
from holdfast.store.rows import Job

__all__ = ["Produced"]

_encode = msgspec.json.Encoder().encode


class Produced(ABC):
    """The part of a batch that is about progress, exports and runs that have ended."""

    now: float
    change: int

    @abstractmethod
    def put_row(self, job: Job) -> None:
        """Have a row written that has changed."""

    @abstractmethod
    def one(self, name: str) -> Job:
        """Give a row that must be there."""

    @abstractmethod
    def keep_run(self, job: str, number: int, record: RunRecord) -> None:
        """Keep the record of a run that another follows, which begins with its exports."""

    @abstractmethod
    def put_attributes(self, rows: list[tuple[str, str, str]]) -> None:
        """Have jobs found by their attributes: names, values, jobs."""

    @abstractmethod
    def put_progress(self, job: str, number: int, said: bytes) -> None:
        """Keep what a run reports, in place of what it reported before."""

    @abstractmethod
    def keep_export(self, command: c.KeepExport, number: int) -> int:
        """Keep an export of a run, unless its key is known; its number."""

    @abstractmethod
    def put_blob(self, command: c.PutBlob) -> None:
        """Keep a piece of a blob; a repeat changes nothing."""

    def report(self, command: c.Progress) -> None:
        """Keep what a run reports of itself."""
        job = self._fenced(command)
        self.put_progress(job.id, job.run, _encode(command.said))
        self.change |= PROGRESS

    def export(self, command: c.KeepExport) -> int:
        """Keep what a run has produced; its number."""
        job = self._fenced(command)
        number = self.keep_export(command, job.run)
        if number > job.exported:
            self.put_row(msgspec.structs.replace(job, exported=number))
        self.change |= PROGRESS
        return number

    def put_piece(self, command: c.PutBlob) -> None:
        """Keep a piece of a blob."""
        self._fenced(command)
        self.put_blob(command)

    def _fenced(self, command: c.Progress | c.KeepExport | c.PutBlob) -> Job:
        job = self.one(command.job)
        decide.fence(job, command.attempt, self.now)
        return job
