"""The ways out of here: webhook, command, Apprise. Each makes one try and says why it failed; none raises."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from strandline.alerts.conditions import Message
from strandline.alerts.webhook import post
from strandline.config import Config

COMMAND_TIMEOUT = 30.0
"""Seconds."""

Channel = Callable[[Message, datetime], str]
"""Gives why it failed; empty: delivered."""


def channels(config: Config) -> Mapping[str, Channel]:
    """By the names under which they are shown: addresses hold secrets."""
    spec = config.alerts
    found: dict[str, Channel] = {}
    if spec.webhook:
        hook = spec.webhook
        found["webhook"] = lambda message, now: post(hook, _body(message), now)
    if spec.command:
        found["command"] = partial(_command, spec.command, config.root)
    for number, address in enumerate(spec.apprise, 1):
        found[f"apprise {number}"] = partial(_apprise, address)
    return {name: _told(channel, config.redactor.redact) for name, channel in found.items()}


def _told(channel: Channel, redact: Callable[[str], str]) -> Channel:
    def send(message: Message, now: datetime) -> str:
        try:
            return redact(channel(message, now))
        except Exception as error:  # whatever a library does, the others are still to be told
            return redact(f"{type(error).__name__}: {error}")

    return send


def _body(message: Message) -> bytes:
    return json.dumps(message.to_json(), ensure_ascii=False).encode()


def _command(words: tuple[str, ...], folder: Path, message: Message, _now: datetime) -> str:
    """No shell, and no pipe to read from: whatever it starts and leaves behind cannot hold us up."""
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=said,
                cwd=folder,
                start_new_session=True,
            )
        except OSError as error:
            return f"{words[0]}: {error.strerror}"
        try:
            process.communicate(_body(message), timeout=COMMAND_TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"not done after {COMMAND_TIMEOUT:.0f} s"
        if process.returncode == 0:
            return ""
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
        return f"exit code {process.returncode}" + (f": {lines[-1]}" if lines else "")


def _apprise(address: str, message: Message, _now: datetime) -> str:
    try:
        apprise: Any = import_module("apprise")
    except ImportError:
        return "Apprise is not installed:   pip install 'strandline[alerts]'"
    sender = apprise.Apprise()
    if not sender.add(address):
        return "Apprise does not know this kind of address"
    taken = sender.notify(title=message.title, body=message.message)
    return "" if taken else "Apprise could not deliver it"
