"""`strandline alerts test`: whether alerts arrive where the config sends them."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from strandline.cli.invocation import Invocation, common
from strandline.core.errors import ConfigError


@click.group()
def alerts() -> None:
    """Alerts, which `serve` sends when something about a pipeline changes."""


@alerts.command()
@common
@click.pass_obj
def test(invocation: Invocation) -> int:
    """Send a test message through every channel of the config, now, and say how it went.

    Nothing is noted in the state, and nothing is tried again. Exit code 1 if a channel failed.
    """
    from strandline.alerts.conditions import trial
    from strandline.alerts.deliver import channels

    with invocation.project() as project:
        config, ways = project.config, channels(project.config)
    if not ways:
        remedy = "Add one:   alerts: {webhook: {url: https://…, secret: …}}"
        raise ConfigError("there are no alerts", where=config.path.name, remedy=remedy, docs="docs/alerts.md")
    now = datetime.now(UTC)
    message = trial(now)
    errors = {name: send(message, now) for name, send in ways.items()}
    if invocation.json:
        found = [{"channel": name, "sent": not error, "error": error or None} for name, error in errors.items()]
        invocation.say_json({"id": message.id, "channels": found})
    else:
        for name, error in errors.items():
            invocation.say(f"{name}: {f'failed: {error}' if error else 'sent'}")
    return 1 if any(errors.values()) else 0
