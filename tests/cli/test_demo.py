"""`holdfast demo` as somebody meets it who has only just installed the package."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import demo
from support.scripts import ROOT

SHOWN = ("kill -9", "lease_expired", "worker bob started", "charged once", "every history is valid")


def environment(folder: Path, **more: str) -> dict[str, str]:
    """What a user may have set, none of which may be touched; and a place for temporary files that can be looked at."""
    (folder / "temporary").mkdir()
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "HOLDFAST_"))}
    mine = {"HOLDFAST_URL": f"sqlite:///{folder / 'mine.db'}", "TMPDIR": str(folder / "temporary")}
    return usual | mine | {"HOLDFAST_CONCURRENCY": "1"} | more


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.suffix != ".whl")


def test_the_demo_ends_well_in_plain_text_and_leaves_nothing_behind(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "holdfast", "demo"],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    assert all(shown in ran.stdout for shown in SHOWN), ran.stdout
    assert "\x1b" not in ran.stdout, "colours belong on a terminal only"
    assert len(re.findall(r"4242 charged 200 cents, key holdfast:", ran.stdout)) == 1
    assert len(re.findall(r"job_running +(?:ada|bob)", ran.stdout)) >= 4, "two jobs, and each was taken up again"
    assert left_over(tmp_path) == ["temporary"]


def test_the_demo_has_colours_on_a_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    ran = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "demo"], cwd=tmp_path, env=environment(tmp_path), stdin=theirs, stdout=theirs
    )
    os.close(theirs)
    told = b""
    while chunk := read(ours):
        told += chunk
    os.close(ours)
    assert ran.wait(timeout=60) == 0
    assert b"\x1b[32m" in told
    assert b"charged once" in told


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # how a terminal says that nobody is there any more
        return b""


def test_the_demo_runs_from_the_wheel_alone(tmp_path: Path) -> None:
    backend = Path(sys.executable).with_name("uv-build")
    subprocess.run([backend, "build-wheel", tmp_path], cwd=ROOT, check=True, capture_output=True, timeout=60)
    (wheel,) = tmp_path.glob("holdfast_jobs-*.whl")
    ran = subprocess.run(
        [sys.executable, "-m", "holdfast", "demo"],
        cwd=tmp_path,
        env=environment(tmp_path, PYTHONPATH=str(wheel)),
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert all(shown in ran.stdout for shown in SHOWN), ran.stdout


@pytest.mark.parametrize(
    ("ledger", "wrong", "code", "said"),
    [
        (["a"], {}, 0, "charged once"),
        (["a", "a"], {}, 1, "charged 2 TIMES"),
        ([], {}, 1, "charged 0 TIMES"),
        (["a"], {"job": ["breaks P8"]}, 1, "breaks P8"),
    ],
)
def test_the_demo_says_so_when_it_does_not_end_well(
    ledger: list[str], wrong: Any, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo.judge(ledger, wrong) == code
    assert said in capsys.readouterr().out


def test_a_demo_whose_workers_do_not_come_up_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(sys, "executable", "true")
    assert demo.tell() == 1
    assert "it is still not so that the job waits" in capsys.readouterr().out
