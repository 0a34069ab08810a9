"""Reserved keys and value names: their spelling is stored, and the parser reads what the constructors build."""

from __future__ import annotations

import pytest

from holdfast.machines import keys


@pytest.mark.parametrize(
    ("built", "stored", "kind"),
    [
        (keys.doubt_key("shop.charge:a"), "holdfast:doubt:shop.charge:a", "doubt"),
        (keys.deploy_key("shop.charge:a"), "holdfast:deploy:shop.charge:a", "deploy"),
        (keys.timer_key("sleep:a"), "holdfast:timer:sleep:a", "timer"),
        (keys.child_key("job.pack:a"), "holdfast:child:job.pack:a", "child"),
        (keys.child_key("job.pack:a", "@2"), "holdfast:child:job.pack:a@2", "child"),
        (keys.retry_key("shop.charge:a"), "holdfast:retry:shop.charge:a", "retry"),
        (keys.PAUSE_KEY, "holdfast:pause", "pause"),
        (keys.BUDGET_KEY, "holdfast:budget", "budget"),
    ],
)
def test_reserved_keys_keep_their_spelling_and_parse_back(built: str, stored: str, kind: str) -> None:
    assert built == stored
    parsed = keys.parse_key(built)
    assert parsed is not None
    assert parsed.kind == kind
    assert keys.is_reserved(built)
    assert f"holdfast:{parsed.kind}:{parsed.node}".removesuffix(":") == stored


@pytest.mark.parametrize("key", ["", "paid", "holdfast", "my:holdfast:pause", "Holdfast:pause"])
def test_a_users_key_is_not_reserved(key: str) -> None:
    assert not keys.is_reserved(key)
    assert keys.parse_key(key) is None


def test_value_names_keep_their_spelling() -> None:
    assert keys.until_name("wait:k") == "wait:k:until"
    assert keys.ended_name("wait:k") == "wait:k:ended"
    assert keys.id_name("job.pack:a") == "job.pack:a:id"
    assert keys.id_name("job.pack:a", "@2") == "job.pack:a:id@2"
    assert keys.node_of_ended("wait:k:ended") == "wait:k"
    assert keys.node_of_ended("wait:k:until") is None
