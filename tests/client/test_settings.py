"""Settings, durations and names: small things that everything leans on."""

from __future__ import annotations

import subprocess
import sys
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Backoff, Config, connect
from holdfast.client.store_url import open_store
from holdfast.durations import seconds
from holdfast.errors import StoreUnavailable, shown_url
from holdfast.ids import new_id


def test_what_is_given_comes_first_then_the_environment_then_the_default() -> None:
    environment = {"HOLDFAST_LEASE_SECONDS": "7", "HOLDFAST_CONCURRENCY": "3"}
    config = Config.read({"concurrency": 9}, environment)
    assert (config.concurrency, config.lease_seconds, config.max_attempts) == (9, 7.0, 5)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"HOLDFAST_CONCURRENCY": "many"}, "HOLDFAST_CONCURRENCY='many'"),
        ({"HOLDFAST_LEASE_SECONDS": "0"}, r"HOLDFAST_LEASE_SECONDS=0\.0: it must be greater than 0"),
    ],
)
def test_a_setting_that_cannot_work_is_named(environment: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Config.read(None, environment)
    with pytest.raises(ValueError, match="at least 1"):
        Config(concurrency=0)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        *((5, 5), (0, 0), (1.5, 1.5), ("90s", 90), ("1h30m", 5400), ("3d", 259200), ("250ms", 0.25), ("1w", 604800)),
        *((timedelta(minutes=2), 120), ("1h 5s", 3605)),
    ],
)
def test_durations_are_read_as_people_write_them(given: Any, expected: float) -> None:
    assert seconds(given) == expected


@pytest.mark.parametrize(
    "given",
    [*("", "3", "d", "-1s", "1x", "1h-", "5300w", "1s" * 26), -1, float("nan"), float("inf"), True, 1e300, 10**400],
)
def test_what_is_no_duration_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="duration"):
        seconds(given)


def test_the_wait_after_any_number_of_failures_is_capped() -> None:
    assert Backoff(cap_seconds=300).delay_seconds(5000, 0.5) == 300


def test_names_are_uuids_that_sort_by_time() -> None:
    names = [new_id() for _ in range(5000)]
    assert names == sorted(names)
    assert len(set(names)) == 5000
    assert {(uuid.UUID(name).version, uuid.UUID(name).variant) for name in names} == {(7, uuid.RFC_4122)}


def test_a_url_that_names_no_store_is_refused() -> None:
    with pytest.raises(ValueError, match="url='redis://localhost': it is not the URL of a store: use sqlite:///path"):
        open_store("redis://localhost")
    with pytest.raises(ValueError, match="not the URL of a store"):
        open_store("sqlite:///")


PASSWORD = "s3cr@t/pass"  # noqa: S105 - of nobody


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql+asyncpg://ana:{PASSWORD}@db.example:5432/jobs",
        f"postgresql://ana:{PASSWORD}@db.example/jobs?migrate=perhaps",
        f"postgresql://ana:{PASSWORD}@[db.example/jobs",
        f"redis://:{PASSWORD}@localhost",
        f"postgresql://db.example/jobs?user=ana&password={PASSWORD}&migrate=perhaps",
    ],
)
def test_no_error_and_no_setting_shows_the_password_of_a_url(url: str) -> None:
    with pytest.raises((ValueError, StoreUnavailable)) as refused:
        open_store(url)
    shown = f"{refused.value} {refused.value!r} {vars(refused.value)} {Config(url=url)!r}"
    assert PASSWORD not in shown
    assert "s3cr" not in shown
    assert "example" in shown or "localhost" in shown


def test_no_error_shows_the_password_of_a_servers_address() -> None:
    for url in (f"ftp://ana:{PASSWORD}@example.com", "http://ana:s3cret@127.0.0.1:1"):
        with pytest.raises((ValueError, StoreUnavailable)) as refused:
            connect(url, timeout=0.2).stats()
        assert "s3cr" not in f"{refused.value} {refused.value!r}"


def test_a_plain_call_on_the_apps_own_loop_is_refused_instead_of_waiting_for_itself() -> None:
    app = App("shop", url="memory:")

    async def misuse() -> None:
        app.list()

    with pytest.raises(RuntimeError, match="use the async form"):
        app.block(misuse())
    app.close()


def test_a_system_without_file_locks_can_import_holdfast_and_is_refused_a_store_in_files(tmp_path: Path) -> None:
    program = """
import sys
sys.modules["fcntl"] = None  # as on Windows
from holdfast import App
assert App("shop", "memory:").list() == []
try:
    App("shop", "sqlite:///jobs.db").list()
except ValueError as error:
    print(error)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    refused = "url='sqlite:///jobs.db': this system has no POSIX file locks: use Linux or macOS\n"
    assert (ran.stdout, list(tmp_path.iterdir())) == (refused, [])


def test_a_password_in_a_url_is_never_shown() -> None:
    for url in ("postgresql://ada:geheim@db/x", "postgresql://db/x?user=ada&password=geheim&schema=s"):
        assert "geheim" not in repr(Config(url=url))
        assert "geheim" not in shown_url(url)
    assert shown_url("postgresql://ada@db:5432/x") == "postgresql://ada@db:5432/x"
    assert shown_url("sqlite:///a:b@c.db") == "sqlite:///a:b@c.db"
