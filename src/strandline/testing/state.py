"""What every State must keep, as a pytest suite: subclass StateContract and say how to open your store.

class TestMyState(StateContract):
    @pytest.fixture
    def connect(self, tmp_path):
        return lambda: MyState(tmp_path / "state")
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from strandline.core.errors import ConflictError, StateError
from strandline.core.protocols import Record, State, Value
from strandline.core.records import KINDS

Connect = Callable[[], State]


def position(table: str, stage: str = "load", pipeline: str = "shop", **fields: Value) -> Record:
    return Record("position", (pipeline, table, stage), fields)


def run(run_id: str, **fields: Value) -> Record:
    return Record("run", (run_id,), fields)


def keys(records: list[Record]) -> list[tuple[str, ...]]:
    return [record.key for record in records]


class StateContract:
    many = 1000  # records in one put; fewer where each is a request
    rounds = 10  # writes of each of four writers at once; fewer where each takes a second

    @pytest.fixture
    def connect(self) -> Connect:
        """To override: each call opens the same store, empty at first, once more."""
        raise NotImplementedError

    @pytest.fixture
    def state(self, connect: Connect) -> Iterator[State]:
        state = connect()
        yield state
        state.close()

    @pytest.fixture
    def other(self, connect: Connect) -> Iterator[State]:
        other = connect()
        yield other
        other.close()

    def test_what_is_put_is_read_back_with_its_revision(self, state: State, other: State) -> None:
        (put,) = state.put([position("orders", watermark="t:2026-01-02", epoch=3, status="COMPLETED")])
        assert put.revision == 1
        assert other.read("position") == [put]
        (again,) = state.put([replace(put, fields={**put.fields, "epoch": 4})])
        assert again.revision == 2
        assert other.read("position") == [again]

    @pytest.mark.parametrize("kind", sorted(set(KINDS) - {"meta"}))
    def test_every_kind_keeps_every_field(self, state: State, other: State, kind: str) -> None:
        spec = KINDS[kind]
        text: dict[str, Value] = {name: f"text of {name}" for name in spec.text}
        integers: dict[str, Value] = {name: number for number, name in enumerate(spec.integers, 2**40)}
        record = Record(kind, tuple(f"key {name}" for name in spec.key), text | integers)
        assert state.put([record]) == other.read(kind) == [replace(record, revision=1)]

    def test_fields_not_given_are_none(self, state: State) -> None:
        (put,) = state.put([position("orders")])
        assert set(put.fields) == {*KINDS["position"].text, *KINDS["position"].integers}
        assert set(put.fields.values()) == {None}
        assert state.read("position") == [put]

    def test_a_stale_revision_is_a_conflict_that_names_the_record(self, state: State, other: State) -> None:
        (first,) = state.put([position("orders", epoch=1)])
        other.put([replace(first, fields={"epoch": 2})])
        with pytest.raises(ConflictError, match="shop/orders/load"):
            state.put([replace(first, fields={"epoch": 3})])
        assert state.read("position")[0].fields["epoch"] == 2

    def test_a_record_that_exists_cannot_be_put_as_new(self, state: State) -> None:
        state.put([position("orders", epoch=1)])
        with pytest.raises(ConflictError, match="shop/orders/load"):
            state.put([position("orders", epoch=9)])
        assert state.read("position")[0].fields["epoch"] == 1

    def test_a_record_that_is_gone_cannot_be_updated(self, state: State) -> None:
        (put,) = state.put([position("orders")])
        state.delete([put])
        with pytest.raises(ConflictError, match="shop/orders/load"):
            state.put([put])
        assert state.read("position") == []

    def test_one_conflict_leaves_all_records_as_they_were(self, state: State, other: State) -> None:
        if not state.atomic:
            pytest.skip("this store does not promise all or none")
        a, b = state.put([position("a", epoch=1), position("b", epoch=1)])
        other.put([replace(b, fields={"epoch": 2})])
        with pytest.raises(ConflictError):
            state.put([replace(a, fields={"epoch": 7}), position("new"), run("r1"), replace(b, fields={"epoch": 7})])
        assert [record.fields["epoch"] for record in other.read("position")] == [1, 2]
        assert other.read("run") == []

    def test_one_key_twice_in_one_put_is_a_conflict(self, state: State) -> None:
        with pytest.raises(ConflictError):
            state.put([position("a", epoch=1), position("a", epoch=2)])
        assert state.read("position") == []

    def test_putting_nothing_is_fine(self, state: State) -> None:
        assert state.put([]) == []
        state.append([])
        state.delete([])

    def test_many_records_at_once(self, state: State, other: State) -> None:
        put = state.put([position(f"table_{number:04}", epoch=number) for number in range(self.many)])
        assert other.read("position") == put
        again = state.put([replace(record, fields={**record.fields, "status": "SKIPPED"}) for record in reversed(put)])
        assert {record.revision for record in again} == {2}
        assert other.read("position") == again[::-1]

    def test_put_returns_records_in_the_given_order(self, state: State) -> None:
        put = state.put([run("r2"), position("b"), position("a"), run("r1")])
        assert keys(put) == [("r2",), ("shop", "b", "load"), ("shop", "a", "load"), ("r1",)]

    def test_prefix_selects_whole_key_parts(self, state: State) -> None:
        state.put([position("b"), position("a"), position("ab"), position("a", "extract"), position("a", pipeline="s")])
        assert keys(state.read("position", ["shop"])) == [
            ("shop", "a", "extract"),
            ("shop", "a", "load"),
            ("shop", "ab", "load"),
            ("shop", "b", "load"),
        ]
        assert keys(state.read("position", ["shop", "a"])) == [("shop", "a", "extract"), ("shop", "a", "load")]
        assert keys(state.read("position", ["shop", "a", "load"])) == [("shop", "a", "load")]
        assert state.read("position", ["sho"]) == []

    def test_where_compares_fields_and_none_too(self, state: State) -> None:
        state.append([run("r1", pipeline="shop", tables=3), run("r2", pipeline="Shop", tables=3), run("r3", tables=4)])
        assert keys(state.read("run", where={"pipeline": "shop"})) == [("r1",)]
        assert keys(state.read("run", where={"tables": 3})) == [("r1",), ("r2",)]
        assert keys(state.read("run", where={"tables": 3, "pipeline": "Shop"})) == [("r2",)]
        assert keys(state.read("run", where={"pipeline": None})) == [("r3",)]

    def test_since_bounds_the_next_key_part_and_holds_its_value(self, state: State) -> None:
        state.append([run(f"2026-01-0{day}") for day in (1, 2, 3)])
        assert keys(state.read("run", since="2026-01-02")) == [("2026-01-02",), ("2026-01-03",)]
        state.put([position(name) for name in "abc"])
        assert keys(state.read("position", ["shop"], since="b")) == [("shop", "b", "load"), ("shop", "c", "load")]

    def test_newest_gives_the_last_first(self, state: State) -> None:
        state.append([run(f"r{number}", pipeline="ab"[number % 2]) for number in range(9)])
        assert keys(state.read("run", newest=2)) == [("r8",), ("r7",)]
        assert keys(state.read("run", newest=2, where={"pipeline": "b"})) == [("r7",), ("r5",)]
        assert keys(state.read("run", newest=5, since="r7")) == [("r8",), ("r7",)]
        assert state.read("run", newest=0) == []

    def test_keys_sort_by_code_point(self, state: State) -> None:
        names = ["Z", "_", "a", "a ", "é", "z", "€", "😀", "A", "a-b", "a.b"]
        state.put([position(name) for name in names])
        assert [record.key[1] for record in state.read("position")] == sorted(names)

    def test_append_leaves_what_is_there(self, state: State, other: State) -> None:
        state.append([run("r1", status="COMPLETED")])
        other.append([run("r1", status="FAILED"), run("r2", status="FAILED")])
        assert [record.fields["status"] for record in state.read("run")] == ["COMPLETED", "FAILED"]
        assert {record.revision for record in state.read("run")} == {1}

    def test_delete_compares_too_and_takes_all_or_none(self, state: State, other: State) -> None:
        a, b = state.put([position("a"), position("b")])
        (newer,) = other.put([b])
        with pytest.raises(ConflictError, match="shop/b/load"):
            state.delete([a, b])
        if state.atomic:
            assert keys(other.read("position")) == [("shop", "a", "load"), ("shop", "b", "load")]
            state.delete([a, newer])
            assert other.read("position") == []

    def test_a_deleted_record_can_be_made_again(self, state: State) -> None:
        (put,) = state.put([position("a", epoch=1)])
        state.delete([put])
        state.put([position("a", epoch=2)])
        assert state.read("position")[0].fields["epoch"] == 2

    def test_prune_drops_history_below_a_key(self, state: State) -> None:
        state.append([run(f"2026-01-0{day}") for day in (1, 2, 3)])
        state.append([Record("table_run", (f"2026-01-0{day}", "orders", "load"), {}) for day in (1, 2, 3)])
        assert state.prune("run", "2026-01-03") == 2
        assert keys(state.read("run")) == [("2026-01-03",)]
        assert len(state.read("table_run")) == 3
        assert state.prune("run", "2026-01-03") == 0

    def test_what_is_no_history_is_never_pruned(self, state: State) -> None:
        state.put([position("a")])
        with pytest.raises(StateError, match="position"):
            state.prune("position", "zzz")
        assert len(state.read("position")) == 1

    @pytest.mark.parametrize(
        "text",
        [
            "",
            " both ends ",
            "quote ' double \" back ` slash \\ percent %s %% question ?",
            "line\nfeed\r\ttab",
            "naïve 日本語 😀 \u200b\ufeff",
            "e\u0301 is not é",
            "NULL",
            "x" * 1_500_000,
        ],
        ids=lambda text: text[:12].encode("unicode_escape").decode(),
    )
    def test_text_is_kept_exactly(self, state: State, other: State, text: str) -> None:
        state.put([position("orders", error=text)])
        assert other.read("position")[0].fields["error"] == text
        if len(text) < 190:
            state.put([position(text, "key")])
            assert keys(other.read("position", ["shop", text, "key"])) == [("shop", text, "key")]

    def test_names_that_look_alike_are_different_keys(self, state: State) -> None:
        names = ["orders", "Orders", "orders ", " orders", "órders", "ｏrders"]
        state.put([position(name) for name in names])
        assert {record.key[1] for record in state.read("position")} == set(names)
        for name in names:
            assert keys(state.read("position", ["shop", name])) == [("shop", name, "load")]

    @pytest.mark.parametrize("number", [0, -1, 2**53 + 1, 2**63 - 1, -(2**63)])
    def test_integers_are_exact_to_64_bits(self, state: State, other: State, number: int) -> None:
        state.put([position("orders", rows_read=number)])
        assert other.read("position")[0].fields["rows_read"] == number

    def test_numbers_in_text_stay_text(self, state: State) -> None:
        state.put([position("orders", watermark="00012345678901234567890.10")])
        assert state.read("position")[0].fields["watermark"] == "00012345678901234567890.10"

    @pytest.mark.parametrize(
        "record",
        [
            position("orders", rows_read=2**63),
            position("orders", watermark=7),
            position("orders", error="nul \0"),
            position("orders", error="half \ud800"),
            position("orders", nonsense="x"),
            position("o" * 191),
            Record("position", ("shop",), {}),
            Record("nonsense", ("x",), {}),
        ],
        ids=["65 bits", "integer as text", "nul", "surrogate", "field", "long key", "short key", "kind"],
    )
    def test_what_cannot_be_kept_exactly_is_refused(self, state: State, record: Record) -> None:
        with pytest.raises(StateError):
            state.put([record])
        assert state.read("position") == []

    def test_of_many_writers_of_one_new_record_exactly_one_wins(self, connect: Connect) -> None:
        won = self._race(connect, 4, lambda state, who: state.put([position("orders", f"stage {who}")]))
        assert won == 4  # different records: nobody is in another's way
        won = self._race(connect, 4, lambda state, who: state.put([position("orders", run_id=f"{who}")]))
        assert won == 1

    def test_concurrent_increments_are_never_lost(self, connect: Connect, state: State) -> None:
        names = ["orders", "other"] if state.atomic else ["orders"]  # half a put would count twice
        state.put([position(name, rows_read=0) for name in names])

        def increment(own: State, _: int) -> None:
            done = 0
            while done < self.rounds:
                read = own.read("position", ["shop"])
                try:
                    own.put([replace(record, fields={"rows_read": _add(record, 1)}) for record in read])
                    done += 1
                except ConflictError:
                    continue

        assert self._race(connect, 4, increment) == 4
        assert [record.fields["rows_read"] for record in state.read("position")] == [4 * self.rounds] * len(names)

    def test_threads_may_share_one_state(self, state: State) -> None:
        def work(who: int) -> None:
            for number in range(self.rounds):
                (put,) = state.put([position(f"{who}", f"{number}", epoch=who)])
                state.put([put])
                state.append([run(f"{who} {number}")])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        assert {record.revision for record in state.read("position")} == {2}
        assert len(state.read("position")) == len(state.read("run")) == 4 * self.rounds

    def test_the_clock_is_aware_utc_and_goes_forward(self, state: State) -> None:
        first, second = state.now(), state.now()
        assert first.utcoffset() == timedelta(0)
        assert first <= second
        assert abs(datetime.now(UTC) - second) < timedelta(minutes=5)

    def test_the_identity_outlives_a_connection(self, connect: Connect, state: State) -> None:
        identity = state.identity()
        state.put([position("orders")])
        state.close()
        again = connect()
        assert again.identity() == identity
        assert keys(again.read("position")) == [("shop", "orders", "load")]
        again.close()

    def _race(self, connect: Connect, writers: int, act: Callable[[State, int], object]) -> int:
        """How many of the writers, each on its own connection and all at once, met no conflict."""
        start = threading.Barrier(writers)

        def write(who: int) -> bool:
            state = connect()
            try:
                start.wait(timeout=300)
                act(state, who)
                return True
            except ConflictError:
                return False
            finally:
                state.close()

        with ThreadPoolExecutor(writers) as pool:
            return sum(pool.map(write, range(writers)))


def _add(record: Record, number: int) -> int:
    value = record.fields["rows_read"]
    assert isinstance(value, int)
    return value + number
