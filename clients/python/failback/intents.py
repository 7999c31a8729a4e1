"""What this process wants of each key, and what of that is still to be sent. Does no I/O and reads no clock."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

Key = Tuple[str, str, str]


class Intent(NamedTuple):
    """To be registered as `instance`, or, without one, to be unregistered. A key's later intent has a higher number."""

    key: Key
    number: int
    instance: Optional[Any]


class _Record:
    """Of a key: its newest intent, what the sidecar accepted last, and who waits for which intent's outcome."""

    def __init__(self) -> None:
        self.intent: Any = None
        self.accepted: Optional[Any] = None
        self.waiters: Dict[Any, int] = {}
        self.alone = False


class Intents:
    """One record for each key; a newer intent takes the place of an older one.

    There is one sender. It takes a batch, sends it, and says of each item how it ended, with accepted(), refused(),
    apart() or later(), before it takes the next: so no older intent is sent after a newer one. An outcome is that of
    the intent that was sent and of all before it: accepted() and refused() return who waits for those. Waiters are
    whatever the caller likes; they may leave, and the intent stays."""

    def __init__(self) -> None:
        self._records: Dict[Key, _Record] = {}
        # In the order in which they are sent.
        self._due: Dict[Key, None] = {}
        self._later: Dict[Key, None] = {}
        self._number = 0

    def put(self, key: Key, instance: Optional[Any], waiter: Any) -> None:
        record = self._records.setdefault(key, _Record())
        self._want(key, record, instance)
        record.waiters[waiter] = record.intent.number

    def leave(self, key: Key, waiter: Any) -> None:
        """The waiter waits no longer; what it wants stays wanted."""
        if key in self._records:
            self._records[key].waiters.pop(waiter, None)

    def session_opened(self) -> None:
        """A session holds nothing at first: everything is due."""
        self._due = dict.fromkeys(self._records)
        self._later = {}

    def batch(self, limit: int) -> List[Intent]:
        """The next to be sent: all registrations, or all removals."""
        taken: List[Intent] = []
        for key in self._due:
            record = self._records[key]
            if len(taken) == limit or taken and (
                    record.alone or (record.intent.instance is None) != (taken[0].instance is None)):
                break
            taken.append(record.intent)
            if record.alone:
                break
        for intent in taken:
            del self._due[intent.key]
        return taken

    def accepted(self, intent: Intent) -> List[Any]:
        record = self._records.get(intent.key)
        if not record:
            return []
        record.accepted, record.alone = intent.instance, False
        if intent.instance is None and record.intent is intent:
            self._forget(intent.key)
        return self._waiters(record, intent)

    def refused(self, intent: Intent) -> List[Any]:
        """What the sidecar accepted before is wanted again, unless there is a newer intent."""
        record = self._records.get(intent.key)
        if not record:
            return []
        if record.intent is intent and record.accepted is None:
            self._forget(intent.key)
        elif record.intent is intent and record.accepted is not intent.instance:
            self._want(intent.key, record, record.accepted)
        return self._waiters(record, intent)

    def apart(self, batch: List[Intent]) -> None:
        """Refused as a whole: each is due by itself."""
        for intent in batch:
            if intent.key in self._records:
                self._records[intent.key].alone = True
                self._due[intent.key] = None

    def later(self, intent: Intent) -> None:
        """Not decided: the key's newest intent is due at the next retry()."""
        if intent.key in self._records and intent.key not in self._due:
            self._later[intent.key] = None

    def retry(self) -> None:
        self._due.update(self._later)
        self._later = {}

    def refused_all(self) -> List[Any]:
        """No session can be opened: refuses each intent that is waited for."""
        waited = [record.intent for record in self._records.values() if record.waiters]
        return [waiter for intent in waited for waiter in self.refused(intent)]

    def _want(self, key: Key, record: _Record, instance: Optional[Any]) -> None:
        self._number += 1
        record.intent = Intent(key, self._number, instance)
        self._later.pop(key, None)
        self._due[key] = None

    def _forget(self, key: Key) -> None:
        del self._records[key]
        self._due.pop(key, None)
        self._later.pop(key, None)

    @staticmethod
    def _waiters(record: _Record, intent: Intent) -> List[Any]:
        waiters = [waiter for waiter, number in record.waiters.items() if number <= intent.number]
        for waiter in waiters:
            del record.waiters[waiter]
        return waiters
