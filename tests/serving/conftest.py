"""Policies for gateways, made once."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of policies for the model of scripted servers, each named after what it does."""
    from tests.serving.gateways import FULL_BUDGET, NEVER, odd_server, save_changed, save_policy_of

    folder = tmp_path_factory.mktemp("policies")
    with odd_server() as server:
        save_policy_of(server, folder / "stops.json")
    for name, changes in (("never", NEVER), ("full", FULL_BUDGET)):
        save_changed(folder / "stops.json", folder / f"{name}.json", **changes)
    return folder
