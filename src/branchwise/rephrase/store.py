"""Every reply on disk the moment it arrives, so that none is ever asked for, or paid for, twice."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from branchwise.errors import ConfigError
from branchwise.rephrase.writer import Order, Reply

FORMAT = 1
"""Written into the file; another number is another program's, or a later one's."""
_TABLE = """
CREATE TABLE IF NOT EXISTS replies (
    key TEXT PRIMARY KEY, model TEXT NOT NULL, version TEXT NOT NULL, sample INTEGER NOT NULL, prompt TEXT NOT NULL,
    text TEXT, finish TEXT, prompt_tokens INTEGER NOT NULL, reply_tokens INTEGER NOT NULL, served_by TEXT NOT NULL
)
"""
_COLUMNS = "text, finish, prompt_tokens, reply_tokens, served_by"


class Store:
    """Replies by the key of their orders, in one SQLite file.

    `put` returns when the reply is on the disk (a transaction and an fsync each): a process that is killed at any
    moment leaves a file from which the next one goes on. The file is locked while a process works on it.

    Raises:
        ConfigError: another process works on it, or it is no such file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._open()
        except sqlite3.OperationalError as error:
            raise ConfigError(f"{path}: {error}; is another run at work on it?") from None
        except sqlite3.DatabaseError as error:
            raise ConfigError(f"{path}: not a store of replies ({error}); move it away") from None

    def _open(self) -> None:
        self.file = sqlite3.connect(self.path, timeout=2, isolation_level=None)
        self.file.execute("PRAGMA locking_mode = EXCLUSIVE")
        self.file.execute("PRAGMA synchronous = FULL")
        self.file.execute("BEGIN EXCLUSIVE")
        found = self.file.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, FORMAT):
            raise ConfigError(f"{self.path}: format {found}, this version reads {FORMAT}; move it away")
        self.file.execute(_TABLE)
        self.file.execute(f"PRAGMA user_version = {FORMAT}")
        self.file.execute("COMMIT")

    def get(self, order: Order) -> Reply | None:
        """The reply to an order; None where it was not asked yet."""
        row = self.file.execute(f"SELECT {_COLUMNS} FROM replies WHERE key = ?", (order.key,)).fetchone()
        return Reply(*row) if row else None

    def put(self, order: Order, reply: Reply) -> None:
        """Keep a reply; it is on the disk when this returns."""
        asked = (order.key, order.model, order.version, order.sample, order.prompt)
        came = (reply.text, reply.finish, reply.prompt_tokens, reply.reply_tokens, reply.served_by)
        self.file.execute(f"INSERT OR REPLACE INTO replies VALUES ({', '.join('?' * 10)})", asked + came)

    def totals(self) -> list[tuple[str, int, int, int]]:
        """By model: (its name, replies, prompt tokens, reply tokens)."""
        sums = "SELECT model, COUNT(*), SUM(prompt_tokens), SUM(reply_tokens) FROM replies GROUP BY model"
        return self.file.execute(sums).fetchall()

    def close(self) -> None:
        self.file.close()
