"""Mistakes planted in the product one by one, each of which the suite must catch: `make mutants`.

A mutant is one text replaced in one file of a copy of the package. The tests named beside it run against that copy and
must fail; against the untouched product they must pass, or they would prove nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "strandline"

PLAN, POSITION, RUN, BOOKS = ("tests/unit/test_plan.py", "tests/unit/test_position.py", "tests/unit/test_run.py",
                              "tests/unit/test_books.py")  # fmt: skip
STALL, BACKFILL, RECONCILE = "tests/unit/test_stall.py", "tests/unit/test_backfill.py", "tests/unit/test_reconcile.py"
POSTGRES, MARIADB = (f"tests/contracts/test_source.py::Test{name}Source" for name in ("Postgres", "Mariadb"))
BARRIER_PG, BARRIER_MY = "tests/integration/test_barrier_postgres.py", "tests/integration/test_barrier_mysql.py"
DELTA = "tests/contracts/test_sink.py::TestDeltaSink"
SQL = "tests/contracts/test_sink.py::TestPostgresSink"
DOCUMENTS, TRACKER = "tests/integration/test_state_objects.py", "tests/unit/test_tracker.py"
VERSIONS, DELTA_STATE = "tests/unit/test_delta_plans.py", "tests/integration/test_state_delta.py"
OBJECTS, STAGE = "tests/integration/test_objects.py", "tests/integration/test_stage.py::TestStageInDirectory"
LEDGER = "tests/integration/test_stage.py::TestLedgerInDirectory"
COMPAT, FAN_OUT = "tests/unit/test_compat.py", "tests/unit/test_fan_out.py"
CATALOG_STATE = "tests/integration/test_state_catalog.py::TestCatalogState"


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str  # within the package
    old: str  # occurs there exactly once
    new: str
    tests: tuple[str, ...]

    def applied(self, text: str) -> str:
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name}: {self.file} has its text {found} times, not once")
        return text.replace(self.old, self.new)


MUTANTS = (
    # how far it is safe to read
    Mutant(
        "every row is numbered to cut a load",
        "sources/database.py",
        "if rows and share < _WORTH_SAMPLING else None",
        "if rows and share < 0 else None",
        (f"{POSTGRES}::test_many_rows_are_cut_by_a_sample_of_them",),
    ),
    Mutant(
        "the guard is 0",
        "sources/database.py",
        "Horizon(_bound(table.cursor, at, self.guard))",
        "Horizon(_bound(table.cursor, at, timedelta(0)))",
        (f"{POSTGRES}::test_the_horizon_is_the_databases_clock_less_the_guard",),
    ),
    Mutant(
        "the barrier is not waited for",
        "sources/database.py",
        "holder = self.barrier() if guarded and self.barrier else None",
        "holder = None",
        (f"{POSTGRES}::test_an_open_transaction_holds_the_horizon_until_it_commits",),
    ),
    Mutant(
        "prepared transactions are ignored",
        "sources/postgres_barrier.py",
        "return self._outlast(_waiting(prepared), deadline) if prepared else None",
        "return None",
        (f"{BARRIER_PG}::test_an_unprivileged_reader_waits_for_prepared_transactions_too",),
    ),
    Mutant(
        "prepared transactions are noted before the others have ended",
        "sources/mysql_barrier.py",
        "prepared = [] if noted else self._outlast([found for found in now if not found.thread], now, deadline)[0]",
        "prepared: list[Transaction] = []",
        (f"{BARRIER_MY}::test_an_xa_transaction_prepared_and_left_while_it_is_waited_for_is_waited_for_further",),
    ),
    Mutant(
        "statements in flight are not noted",
        "sources/mysql_barrier.py",
        "running = self._running()",
        "running: dict[int, Statement] = {}",
        (f"{BARRIER_MY}::test_an_event_worker_is_waited_for", f"{BARRIER_MY}::test_a_slow_statement_is_waited_for"),
    ),
    Mutant(
        "the upper bound is found by the data query itself",
        "sources/dialect.py",
        'bounds = [f"{column} < {dialect.literal(table.cursor, high)}"]',
        'bounds = [f"{column} <= (SELECT max({column}) FROM {dialect.relation(table)})"]',
        (f"{POSTGRES}::test_a_microsecond_is_in_exactly_one_window",),
    ),
    Mutant(
        "windows leave out the watermark itself",
        "sources/dialect.py",
        'f"{column} >= {dialect.literal(table.cursor, low)}"',
        'f"{column} > {dialect.literal(table.cursor, low)}"',
        (f"{POSTGRES}::test_a_row_stamped_at_the_watermark_after_the_run_is_in_the_next_window",),
    ),
    Mutant(
        "the bound is not cut to the column's precision",
        "sources/database.py",
        "return high.floor(cursor.precision)",
        "return high",
        (f"{BARRIER_PG}::test_a_row_written_after_the_barrier_never_lands_below_it_however_it_is_rounded",),
    ),
    Mutant(
        "one explicit id drags the watermark past ids to come",
        "sources/postgres.py",
        "high = min(int(value) for value in answer if value is not None) + 1",
        "high = max(int(value) for value in answer if value is not None) + 1",
        (f"{BARRIER_PG}::test_ids_still_to_come_below_an_explicit_one_arrive",),
    ),
    Mutant(
        "rows without a cursor are passed over in silence",
        "sources/database.py",
        'if nulls and table.nulls != "include":',
        "if False:",
        (f"{POSTGRES}::test_null_cursors_are_refused_or_counted_never_skipped",),
    ),
    # what a run does, and in which order
    Mutant(
        "the state moves before the sink",
        "core/position.py",
        "return replace(self, intent=batch, status=Status.RUNNING)",
        "return replace(self, intent=batch, watermark=batch.watermark, status=Status.RUNNING)",
        (RUN,),
    ),
    Mutant(
        "batch numbers start again",
        "core/position.py",
        "number = 1 if self.batch is None else self.batch.number + 1",
        "number = 1 if self.plan is None else self.plan.done + 1",
        (RUN, POSITION),
    ),
    Mutant(
        "the epoch is not raised", "core/position.py", "epoch=self.epoch + 1,", "epoch=self.epoch,", (POSITION, RUN)
    ),
    Mutant(
        "batches are compared by number only",
        "core/batch.py",
        "return other is not None and replace(other, attempt=self.attempt, carried=self.carried) == self",
        "return other is not None and other.number == self.number",
        ("tests/unit/test_batch.py", RECONCILE),
    ),
    Mutant(
        "whatever the target holds is taken for ours",
        "core/reconcile.py",
        "        if batch.same(held):\n            return tuple(found)",
        "        if batch.number == held.number:\n            return tuple(found)",
        (RECONCILE, RUN),
    ),
    Mutant(
        "what a batch carried is forgotten",
        "core/reconcile.py",
        "carried = receipt.batch.carried if len(batches) > 1 else None",
        "carried = None",
        (RECONCILE, RUN),
    ),
    Mutant(
        "batches that the state was told of are taken in again",
        "core/reconcile.py",
        "if held.carried is None or batch.number >= held.number:",
        "if batch.number >= held.number:",
        (RECONCILE, RUN),
    ),
    Mutant(
        "a batch further on in a plan that was given up is not shut out",
        "operations/resting.py",
        "unfinished = resting.position.plan is not None or resting.position.batch == before.batch",
        "unfinished = resting.position.batch == before.batch",
        ("tests/unit/test_operations.py",),
    ),
    Mutant(
        "a lost target is written to",
        "core/reconcile.py",
        "if last is None and held is None:",
        "if held is None:",
        (RECONCILE, RUN),
    ),
    Mutant(
        "a retry plans a wider window",
        "core/plan.py",
        "    if position.plan is not None:\n        return Planned(",
        "    if False:\n        return Planned(",
        (PLAN, RUN),
    ),
    Mutant(
        "a lease that was lost is not noticed",
        "core/books.py",
        "            expires_at=stamp(now + self.lease_time),\n        )\n\n    def begin",
        "            expires_at=stamp(now + self.lease_time),\n            revision=0,\n        )\n\n    def begin",
        (BOOKS, RUN),
    ),
    Mutant(
        "the state is written without a comparison",
        "state/memory.py",
        "if revision != record.revision:",
        "if False:",
        (BOOKS, RUN),
    ),
    Mutant(
        "an idle run moves the watermark to a bound that nothing proves",
        "core/position.py",
        "if window is not None and (plan.proven or window.empty) and (up is None or up < window.high):",
        "if window is not None and (up is None or up < window.high):",
        (PLAN, POSITION),
    ),
    Mutant(
        "a change of what the watermark measures is not noticed",
        "core/plan.py",
        "if position.measures.get(name, now) != now",
        "if False",
        (PLAN,),
    ),
    # ranges that are looked at again
    Mutant(
        "the watermark follows a range read again down",
        "core/position.py",
        "if slice_.last and (watermark is None or watermark < slice_.window.high):",
        "if slice_.last:",
        (POSITION,),
    ),
    Mutant(
        "a range passed over is closed while its transaction is open",
        "core/plan.py",
        "gap = gap or position.gap",
        "gap = None",
        (STALL,),
    ),
    Mutant(
        "a clock that went back is not noticed",
        "core/stall.py",
        "if not position.observed or seconds_between(position.observed, found.observed) >= 0:",
        "if True:",
        (STALL,),
    ),
    Mutant(
        "what was seen is taken after the rows were read",
        "core/plan.py",
        "found = source.fingerprints(asked) if asked else {}",
        "found = {name: str(_fingerprint(opened[name].ask.position)) for name in asked}",
        (BACKFILL,),
    ),
    Mutant(
        "an overlap is compared by count alone",
        "sources/database.py",
        'else f"{answer[0]}:{answer[1]}"',
        'else f"{answer[0]}"',
        (f"{POSTGRES}::test_a_fingerprint_changes_with_any_row_and_only_then",),
    ),
    Mutant(
        "a backfill moves the watermark",
        "core/backfill.py",
        "return Window(start, min(end, mark)), note",
        "return Window(start, end), note",
        (BACKFILL,),
    ),
    Mutant(
        "append mode reads rows again",
        "core/plan.py",
        "if table.mode is Mode.APPEND and twice:",
        "if False:",
        (PLAN, STALL),
    ),
    # the target
    Mutant(
        "an older row overwrites a newer one",
        "sinks/delta_rows.py",
        "s.{cursor} >= t.{cursor})",
        "true)",
        (f"{DELTA}::test_a_newer_row_is_never_overwritten_and_an_equal_one_is_refreshed",),
    ),
    Mutant(
        "a batch replaces rows though the target holds newer ones",
        "sinks/delta_write.py",
        "return rows.first_value is not None and not self._log.may_exceed(name, rows.first_value)",
        "return True",
        ("tests/integration/test_delta_replace.py::test_these_are_merged",),
    ),
    Mutant(
        "a batch replaces rows though it lacks a column of the target",
        "sinks/delta_write.py",
        "self._plain = not feed and not evolution.dropped",
        "self._plain = not feed",
        ("tests/integration/test_delta_replace.py::test_a_column_that_the_source_lost_keeps_its_values",),
    ),
    Mutant(
        "what Delta cuts off a time is forgotten",
        "sinks/delta_log.py",
        "+ timedelta(milliseconds=1)",
        "",
        ("tests/integration/test_delta_replace.py::test_what_files_tell_of_a_time_is_cut_to_milliseconds",),
    ),
    Mutant(
        "an older row overwrites a newer one in a database",
        "sinks/sql_merge.py",
        'return f"({unmarked}{held} IS NULL OR {given} >= {held})"',
        'return "1 = 1"',
        (f"{SQL}::test_a_newer_row_is_never_overwritten_and_an_equal_one_is_refreshed",),
    ),
    Mutant(
        "a batch does not look whose turn it is in a database's ledger",
        "sinks/sql_ledger.py",
        'still = f"number = {entry.number} AND epoch = {entry.epoch} AND fence <= {batch.epoch}"',
        'still = "1 = 1"',
        (f"{SQL}::test_a_fence_shuts_out_a_batch_that_is_on_its_way",),
    ),
    Mutant(
        "rows of a task that ran twice are all read from a database's staging table",
        "sinks/sql_stage.py",
        'where = f"(part, tag) IN ({listed})" if listed else "1 = 0"',
        'where = "1 = 1"',
        ("tests/integration/test_sql_sink.py::test_rows_of_a_task_that_ran_twice_come_once",),
    ),
    Mutant(
        "the epoch is not part of Delta's count",
        "sinks/delta_log.py",
        "return batch.epoch << 32 | batch.number",
        "return batch.number",
        (f"{DELTA}::test_a_zombie_of_an_older_epoch_commits_nothing",),
    ),
    Mutant(
        "a fence raises nothing",
        "sinks/delta.py",
        "if count >> 32 >= epoch:",
        "if True:",
        (f"{DELTA}::test_a_fence_shuts_out_a_batch_that_is_on_its_way",),
    ),
    Mutant(
        "a table that is made for a fence hides a batch that came in meanwhile",
        "sinks/delta_write.py",
        "self._bare(self.frame).limit(0), 1 << 32",
        "self._bare(self.frame).limit(0), self.batch.epoch << 32",
        (f"{DELTA}::test_a_first_load_given_up_and_committed_late_does_not_add_to_the_next",),
    ),
    Mutant(
        "a write that Delta skipped counts as done",
        "sinks/delta.py",
        "held = None if log is None else _held(log, table, batch)\n        if held is None:",
        "held = None if log is None else log.receipt(table)\n        if held is None:",
        (f"{DELTA}::test_a_zombie_that_wakes_up_past_its_checks_commits_nothing",),
    ),
    # the state as documents
    Mutant(
        "a revision that could be created is taken for the newest",
        "state/objects_documents.py",
        "if created and newest.key == key:",
        "if created:",
        (f"{DOCUMENTS}::test_a_writer_that_slept_through_many_revisions_is_refused",),
    ),
    Mutant(
        "a write that others went on from counts as lost",
        "state/objects_documents.py",
        "if mark in self._newest(document.place, entries).writes:",
        "if False:",
        (f"{DOCUMENTS}::test_a_write_that_others_went_on_from_counts_as_made",),
    ),
    Mutant(
        "checksums are not compared",
        "state/objects_document.py",
        'if body.pop("checksum") != _checksum(body):',
        'if not body.pop("checksum"):',
        (f"{DOCUMENTS}::test_a_damaged_document_is_named_with_its_last_good_version_and_disturbs_no_other",),
    ),
    Mutant(
        "a stage that was not restored goes on from its last good version",
        "state/objects_document.py",
        "return replace(record, revision=record.revision + 1, damage=damage)",
        'return replace(record, revision=record.revision + 1, damage="")',
        (f"{DOCUMENTS}::test_what_replaces_a_damaged_position_leaves_the_other_stage_damaged",),
    ),
    Mutant(
        "what was seen before the damage may be written over it",
        "state/objects_document.py",
        "return replace(record, revision=record.revision + 1, damage=damage)",
        "return replace(record, damage=damage)",
        (f"{DOCUMENTS}::test_whoever_saw_only_what_was_before_the_damage_is_refused",),
    ),
    Mutant(
        "history that a dead writer owed is not made up for",
        "state/objects.py",
        "missing = [record for record in parts if base.stored(record) == record.revision - 1]",
        "missing: list[Record] = []",
        ("tests/integration/test_crash_matrix.py::test_between_the_objects_of_one_write",),
    ),
    Mutant(
        "a lease taken before a conflict is kept",
        "core/books.py",
        "self._give_back(lease)",
        "pass",
        (f"{DOCUMENTS}::test_a_lease_taken_before_a_conflict_is_given_back",),
    ),
    # the Tracker
    Mutant(
        "the table at hand when a loop is broken off counts as done",
        "tracking/run.py",
        "yield table\n                table.pass_by()",
        "table.pass_by()\n                yield table",
        (f"{TRACKER}::test_a_break_commits_neither_the_table_at_hand_nor_those_behind_it",),
    ),
    Mutant(
        "what is iterated past is committed though the block failed",
        "tracking/run.py",
        "            try:\n                self._fail(error)",
        "            try:\n                self._leave()",
        (f"{TRACKER}::test_what_was_iterated_past_is_not_done_when_the_write_after_the_loop_fails",),
    ),
    Mutant(
        "a skipped table's plan is dropped",
        "tracking/run.py",
        "if error else table.step[0].released()",
        "if error else table.step[0].completed()",
        (f"{TRACKER}::test_a_skipped_or_failed_table_keeps_watermark_and_window_and_the_others_go_on",),
    ),
    Mutant(
        "an atomic run moves the others when one table is skipped",
        "tracking/run.py",
        "if self.atomic and (rest or kept):",
        "if self.atomic and rest:",
        (f"{TRACKER}::test_in_an_atomic_run_a_table_that_is_skipped_or_failed_keeps_all_of_them",),
    ),
    Mutant(
        "what was prepared is forgotten, and whatever is open is marked",
        "compat.py",
        "elif tracker.prepared is not None:",
        "elif False:",
        (f"{COMPAT}::test_a_plan_that_others_made_meanwhile_is_not_marked_by_a_job_that_prepared_another",),
    ),
    Mutant(
        "a plan that ends before the newest version counts as up to date",
        "core/plan.py",
        "observed=observed_below(source, table, window.high, horizon),",
        "observed=horizon.observed,",
        (f"{TRACKER}::test_lag_is_measured_from_the_last_version_that_was_read_where_a_plan_ends_before_the_newest",),
    ),
    Mutant(
        "schema stop does not stop a job of one's own",
        "tracking/planning.py",
        'table.schema == "stop"',
        'table.schema == "never"',
        (f"{TRACKER}::test_schema_stop_stops_at_a_change_of_columns_until_it_is_taken",),
    ),
    Mutant(
        "a caller's transaction anywhere will do",
        "state/sql.py",
        "if store != self._store:",
        "if store is not None and store != self._store:",
        (f"{TRACKER}::test_a_transaction_that_cannot_decide_is_refused",),
    ),
    # objects and the stage
    Mutant(
        "an object is created over another",
        "objects/directory.py",
        "self._write(key, data, os.link)",
        "self._write(key, data, os.replace)",
        (f"{OBJECTS}::test_an_object_is_created_once_and_keeps_its_first_bytes",),
    ),
    Mutant(
        "a manifest of an epoch that was shut out counts",
        "stage/ledger.py",
        "order is not None and fences.owner(order[1]) == order[0]",
        "order is not None",
        (f"{LEDGER}::test_a_void_manifest_neither_counts_nor_takes_the_number",),
    ),
    Mutant(
        "the hint of the newest manifest is believed",
        "stage/ledger.py",
        """        if not orders:
            orders = self._orders(None)
""",
        "",
        (f"{LEDGER}::test_a_lost_or_forged_hint_changes_nothing",),
    ),
    Mutant(
        "a manifest that is missing amid a window is not missed",
        "stage/ledger.py",
        "if manifest.previous >= low and manifest.previous != before:",
        "if False:",
        (f"{LEDGER}::test_a_missing_or_edited_manifest_is_an_error_until_a_whole_reload",),
    ),
    Mutant(
        "an edited manifest is believed",
        "stage/manifest.py",
        'if raw.pop("checksum") != _checksum(raw):',
        'if not raw.pop("checksum"):',
        (f"{LEDGER}::test_a_missing_or_edited_manifest_is_an_error_until_a_whole_reload",),
    ),
    Mutant(
        "a file stays as large as it came out",
        "stage/write.py",
        "if file.bytes > _TOO_LARGE * file_bytes]",
        "if file.bytes > 100 * file_bytes]",
        (f"{STAGE}::test_a_small_batch_of_many_parts_becomes_one_file_and_a_large_one_several",),
    ),
    Mutant(
        "a shortened file is read",
        "stage/changes.py",
        "if size != file.bytes:",
        "if size is None:",
        (f"{LEDGER}::test_a_missing_or_shortened_file_is_named_with_its_batch_and_nothing_is_read",),
    ),
    Mutant(
        "an emptied table is taken for nothing new",
        "stage/source.py",
        "return rows if rows or not any(manifest.alone for manifest in found) else None",
        "return rows",
        (f"{LEDGER}::test_batches_without_rows_are_passed_over_unless_they_do_something",),
    ),
    Mutant(
        "what one of two targets has loaded is cleaned away",
        "stage/clean.py",
        "loaded = batch.loaded and not batch.waiting",
        "loaded = bool(batch.loaded)",
        (f"{LEDGER}::test_what_not_every_target_has_loaded_is_cleaned_only_when_told",),
    ),
    Mutant(
        "files of an attempt at work are taken for orphans",
        "stage/clean.py",
        "if number is None or (number > highest and entry.modified > before):",
        "if number is None:",
        (f"{LEDGER}::test_files_that_no_manifest_names_are_orphans_once_they_cannot_be_at_work",),
    ),
    Mutant(
        "files that were cleaned away are looked for",
        "stage/source.py",
        "if gone and gone[0] < ledger.floor():",
        "if not ledger:",
        (f"{LEDGER}::test_cleaned_batches_cannot_be_read_and_numbers_go_on",),
    ),
    # several targets of one source
    Mutant(
        "the first of two targets gives the lease back",
        "core/books.py",
        "if done and lease.users == 1}",
        "if done}",
        (f"{FAN_OUT}::test_the_lease_is_one_and_is_given_back_by_the_last_target",),
    ),
    Mutant(
        "a range that is looked at again is not asked for again",
        "core/once.py",
        "frozenset((name, table.name, window) for name",
        "frozenset((table.name, table.name, window) for _",
        (f"{FAN_OUT}::test_a_range_that_is_looked_at_twice_in_one_planning_is_asked_for_twice",),
    ),
    Mutant(
        "what targets share goes with what one of them keeps",
        "sources/shared.py",
        'return self._view(spark).where("true")',
        "return self._view(spark)",
        ("tests/integration/test_fan_out_reads.py::test_targets_at_the_same_place_share_one_read_of_each_slice",),
    ),
    # Delta tables as a source, and as the state
    Mutant(
        "versions: a row that was replaced without the feed is passed over",
        "sources/delta.py",
        "if not metadata.feed and not commit.appends:",
        "if not metadata:",
        (f"{VERSIONS}::test_without_the_feed_added_files_are_read_and_anything_else_stops_with_three_ways_out",),
    ),
    Mutant(
        "versions: rows that compaction moved are read again",
        "sources/delta_log.py",
        'case {"add": dict(file)} if file.get("dataChange", True):',
        'case {"add": dict(file)}:',
        (f"{VERSIONS}::test_first_load_increment_nothing_new",),
    ),
    Mutant(
        "versions: a renamed column is read under its new name",
        "sources/delta_schema.py",
        "if now[physical][0] != name:",
        "if not name:",
        (f"{VERSIONS}::test_a_column_renamed_dropped_or_retyped_within_the_window_stops",),
    ),
    Mutant(
        "versions: a table made anew is taken for the old one",
        "sources/delta_schema.py",
        "identity=metadata.id,",
        'identity="",',
        (f"{VERSIONS}::test_a_table_dropped_and_made_anew_is_another_one",),
    ),
    Mutant(
        "versions: a table whose log no longer tells what there was then is left out of the cut",
        "sources/delta.py",
        "if last is None and log.earliest:",
        "if last is None and log.earliest < 0:",
        (f"{VERSIONS}::test_a_moment_before_the_log_begins_stops_a_table_that_may_have_been_there",),
    ),
    Mutant(
        "versions: what an updated row was before beats what it is",
        "sources/delta_changes.py",
        'sql.col("strandline_gone").asc()',
        'sql.col("strandline_gone").desc()',
        ("tests/contracts/test_source.py::TestDeltaSource::test_a_window_comes_to_the_last_change_of_each_key",),
    ),
    Mutant(
        "Delta state: a write goes behind whatever others wrote",
        "state/delta_files.py",
        "CommitProperties(max_commit_retries=0)",
        "CommitProperties(max_commit_retries=15)",
        ("tests/contracts/test_state.py::TestDeltaState::test_concurrent_increments_are_never_lost",),
    ),
    Mutant(
        "Delta state: one that a newer version has taken over is written to",
        "state/delta_files.py",
        "            self._marks(self._table)  #",
        "            #",
        (f"{DELTA_STATE}::test_one_that_becomes_so_while_it_is_open_is_refused_too",),
    ),
    Mutant(
        "Delta state: a write whose answer got lost is made twice",
        "state/delta_files.py",
        "if written.num_rows:",
        "if not written:",
        (f"{DELTA_STATE}::test_a_write_whose_answer_got_lost_is_found_again",),
    ),
    Mutant(
        "Delta state: threads that write one record at once share a commit",
        "state/delta_state.py",
        "(first if ids.isdisjoint(taken) else later).append(write)",
        "first.append(write)",
        ("tests/unit/test_delta_state.py::test_two_writes_of_one_record_never_share_a_commit",),
    ),
    Mutant(
        "state in a catalog: a write goes behind whatever others wrote",
        "state/delta_catalog.py",
        "ON t.seq > {self._known} ",
        "ON FALSE ",
        (f"{CATALOG_STATE}::test_concurrent_increments_are_never_lost",),
    ),
    # what it costs
    Mutant(
        "every batch compiles its queries anew",
        "spark/session.py",
        '"spark.sql.artifact.isolation.enabled": "false"',
        '"spark.sql.artifact.isolation.enabled": "true"',
        ("tests/integration/test_work_counted.py::test_batches_share_the_queries_that_were_compiled",),
    ),
)


def _pytest(package: Path, tests: tuple[str, ...]) -> int:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        f"pythonpath={package}",
        *tests,
    ]
    environment = {**os.environ, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False).returncode


def _try(mutant: Mutant) -> str:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "strandline"
        shutil.copytree(PACKAGE, copy)
        path = copy / mutant.file
        path.write_text(mutant.applied(path.read_text()))
        code = _pytest(Path(folder), mutant.tests)
    return {0: "SURVIVED", 1: "caught"}.get(code, f"pytest ended with {code}")


def main(chosen: list[str]) -> int:
    """All mutants, or those whose name contains one of the words given. Returns how many were not caught."""
    mutants = [mutant for mutant in MUTANTS if not chosen or any(word in mutant.name for word in chosen)]
    tests = tuple(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    if code := _pytest(ROOT / "src", tests):
        print(f"the tests do not pass on the product itself (pytest ended with {code})")
        return 1
    missed = 0
    for mutant in mutants:
        started = time.monotonic()
        verdict = _try(mutant)
        missed += verdict != "caught"
        print(f"{verdict:10}{time.monotonic() - started:6.1f} s  {mutant.name}", flush=True)
    print(f"{len(mutants) - missed} of {len(mutants)} mutants caught")
    return missed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
