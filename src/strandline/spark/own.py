"""The Spark session that this process makes for itself, in itself or on a server: at the first call, for what its
pipelines need, and again after it died. Projects that follow each other, as a service reads an edited config, hand it
on."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from strandline.config import Config, PipelineSpec
from strandline.core.errors import ConfigError
from strandline.spark.work import Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.spark.daemon import Borrowed, Order


@dataclass(frozen=True)
class Wanted:
    """What a session is made with: ours, or one on a server."""

    needs: tuple[str, ...]
    conf: Mapping[str, str]
    master: str | None = None
    remote: str | None = None
    warm: timedelta | None = None


class OwnSpark:
    def __init__(self) -> None:
        self.session: SparkSession | None = None
        self.replaced = 0  # how often a dead session was given up
        self.work = Work.MUCH  # what a session that is made in this process is for
        self._made_for: Wanted | None = None
        self._borrowed: Borrowed | None = None
        self._lock = threading.RLock()

    def get(self, config: Config, specs: Sequence[PipelineSpec]) -> SparkSession:
        """A server may have ended since the last call, or forgotten a session that nobody used for long."""
        with self._lock:
            if self.session is not None and self._on_server:
                from strandline.spark.connect import answers

                if not answers(self.session):
                    self._give_up()
            if self.session is None:
                self._made_for = wanted(config, specs)
                self.session = self._made(config, self._made_for, specs)
            return self.session

    def _made(self, config: Config, made_for: Wanted, specs: Sequence[PipelineSpec]) -> SparkSession:
        if made_for.remote:
            from strandline.spark.connect import remote_session

            return remote_session(made_for.remote, made_for.conf)
        if made_for.warm:
            from strandline.spark.daemon import borrow

            self._borrowed = borrow(order(config))
            return self._borrowed.session
        from strandline.spark.session import local_session

        name = " ".join(["strandline", *(spec.name for spec in specs[:1])])
        return local_session(made_for.needs, made_for.conf, made_for.master, name, work=self.work)

    @property
    def _on_server(self) -> bool:
        return self._made_for is not None and bool(self._made_for.remote or self._made_for.warm)

    def fits(self, config: Config) -> bool:
        """Whether the session, if there is one, is as one made for all pipelines of this config would be."""
        return self.session is None or self._made_for == wanted(config, list(config.pipelines.values()))

    def gave_up(self, replaced: int) -> bool:
        """Whether the session that was there when so many had been replaced is dead; if so it is given up here, and the
        next call makes another."""
        with self._lock:
            if self.replaced != replaced:
                return True
            if self.session is None:
                return False
            from strandline.spark.session import alive

            if alive(self.session):
                return False
            self._give_up()
            return True

    def _give_up(self) -> None:
        assert self.session is not None
        if self._on_server:
            self._leave()
        else:
            from strandline.spark.session import bury

            bury(self.session)
        self.session = None
        self.replaced += 1

    def _leave(self) -> None:
        assert self.session is not None
        if self._borrowed is not None:
            self._borrowed.close()
            self._borrowed = None
        else:
            from strandline.spark.connect import leave

            leave(self.session)

    def close(self) -> None:
        with self._lock:
            if self.session is None or self._made_for is None:
                return
            if self._on_server:
                self._leave()
            else:
                from strandline.spark.session import stop

                stop(self.session)
            self.session = None
            if not self._made_for.remote:
                from strandline.spark.archive import build_in_background

                build_in_background(list(self._made_for.needs))


def wanted(config: Config, specs: Sequence[PipelineSpec]) -> Wanted:
    """What a session for these pipelines and the state is made with. A warm one serves every pipeline of the config."""
    from strandline.spark.storage import needs, session_settings

    settings, state = config.spark, config.state
    if settings.remote:
        return Wanted((), settings.conf, remote=settings.remote)
    specs = list(config.pipelines.values()) if settings.warm else specs
    ends = [end for spec in specs for end in (spec.source, spec.stage, *spec.targets.values()) if end]
    jars = needs([*ends, state] if state.scheme == "catalog" else ends)
    return Wanted(tuple(jars), {**session_settings(ends), **settings.conf}, settings.master, warm=settings.warm)


def order(config: Config) -> Order:
    """What the warm Spark of a config is started for. ConfigError where it has none."""
    from strandline.spark.daemon import Order

    if config.spark.warm is None:
        raise ConfigError(f"{config.path} keeps no Spark warm", remedy="Add to it:   spark: {warm: 10m}")
    made = wanted(config, ())
    idle = config.spark.warm.total_seconds()
    return Order(str(config.path), str(config.root), made.needs, made.conf, made.master, idle)
