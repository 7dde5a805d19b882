"""Ends the requests of a `requests.Session` that still wait for an answer: no thread is left waiting."""

from __future__ import annotations

import contextlib
import socket
import threading
import weakref
from collections.abc import Callable
from typing import Any

import requests
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool


def abortable(session: requests.Session) -> Callable[[], None]:
    """Watch what the session connects to from now on.

    Returns:
        Ends all of it, in any thread, and lets nothing connect any more.
    """
    connections: weakref.WeakSet[Any] = weakref.WeakSet()
    aborted = threading.Event()

    def watch(connection: Any) -> None:
        # First it is known, then looked at: so none slips through while others are being ended.
        connections.add(connection)
        if aborted.is_set():
            abort()

    class Connection(HTTPConnection):
        def connect(self) -> None:
            super().connect()
            watch(self)

    class SecureConnection(HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            watch(self)

    class Pool(HTTPConnectionPool):
        ConnectionCls = Connection

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = SecureConnection

    def abort() -> None:
        aborted.set()
        for connection in list(connections):
            with contextlib.suppress(OSError, AttributeError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    for adapter in session.adapters.values():
        pools: Any = getattr(adapter, "poolmanager", None)
        if pools is not None:
            pools.pool_classes_by_scheme = {"http": Pool, "https": SecurePool}
    return abort
