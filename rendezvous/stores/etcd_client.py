"""The wire to etcd: gRPC channels, failover between endpoints, TLS, login, and nothing alive in a fork.

All connections of an agent share one ``EtcdClient`` and so one channel; its heartbeat has one of its own, which waits
less long. A call that fails moves everybody on the channel on to the next endpoint over a fresh one: after a lost
packet, a dead member or a member without a quorum the next call starts clean, and nobody depends on gRPC's own,
minutes-long back-off.

gRPC's threads do not survive ``fork``, and its locks may be held while it happens. Workers are started by
``vfork``/``exec``, which runs none of this; for every other fork the channels are closed before it, opened again in
the parent at the next call, and stay closed for ever in the child. gRPC's own handlers are off (``grpc_forks``).
"""

from __future__ import annotations

import os
import secrets
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rendezvous.stores import StoreRefused, StoreUnavailable
from rendezvous.stores.grpc_forks import etcd3, grpc

__all__ = ["Credentials", "EtcdClient", "LeaseTaken", "LeaseUnknown", "Login"]

OP_TIMEOUT = 5.0
"""Seconds one call may take before the endpoint counts as dead. etcd itself gives up on a lost quorum after 7 s."""

_OPTIONS = (
    # A channel of its own connection: a new channel to the same endpoint must not inherit a half-open socket.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # etcd answers pings that come more often than every 5 s by closing the connection.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.max_receive_message_length", -1),
)

_LEADER_REQUIRED = ("hasleader", "true")
"""Metadata by which a member that has lost its leader refuses calls and ends watches, instead of staying silent."""

# Words of etcd's own errors that no new try will change.
_FINAL = {
    grpc.StatusCode.PERMISSION_DENIED: ("permission denied",),
    grpc.StatusCode.INVALID_ARGUMENT: ("authentication failed", "user name is empty", "user name not found"),
    grpc.StatusCode.FAILED_PRECONDITION: ("authentication is not enabled",),
    grpc.StatusCode.UNAVAILABLE: ("CERTIFICATE_VERIFY_FAILED",),
}

# etcd has answered, and answered no; nothing is wrong with the channel.
_ANSWERS = frozenset(
    {
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.OUT_OF_RANGE,
    }
)

_T = TypeVar("_T")


class Credentials(msgspec.Struct, frozen=True):
    """Files for TLS.

    Args:
        ca: certificates of the authority that signed etcd's; ``None``: those gRPC brings along.
        cert, key: this client's own, if etcd asks for one.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def load(self) -> grpc.ChannelCredentials:
        """What gRPC needs.

        Raises:
            OSError: a file cannot be read.
        """
        ca, cert, key = (None if path is None else path.read_bytes() for path in (self.ca, self.cert, self.key))
        return grpc.ssl_channel_credentials(ca, key, cert)


class Login:
    """User and password. Not a record, so that nothing prints or stores it by accident."""

    def __init__(self, user: str, password: str) -> None:
        self.user, self.password = user, password

    def __repr__(self) -> str:
        return "Login(…)"


class LeaseTaken(Exception):
    """A lease of this id is there already."""


class LeaseUnknown(StoreUnavailable):
    """The lease that a key was to hang on is not there (any more)."""


class EtcdClient:
    """A channel that several connections share; safe to use from several threads.

    Args:
        endpoints: ``(host, port)`` of the members; tried in this order, and from the last one on to the first.
        tls: how to speak TLS; ``None``: in the clear.
        login: who to be; ``None``: nobody.
        timeout: seconds one call may take.
        first: index of the endpoint to begin with; ``None``: any, so that one member that hangs is not everybody's.
    """

    def __init__(
        self,
        endpoints: Sequence[tuple[str, int]],
        tls: grpc.ChannelCredentials | None = None,
        login: Login | None = None,
        timeout: float = OP_TIMEOUT,
        first: int | None = None,
    ) -> None:
        self._endpoints, self._tls, self._login, self.timeout = list(endpoints), tls, login, timeout
        # Not from ``random``: this may be a worker's process, whose program has seeded that.
        self._at = secrets.randbelow(len(self._endpoints)) if first is None else first
        self._client: Any = None
        self._calls = 0
        self._forking = self._closed = self._orphaned = False
        self._changed = threading.Condition()
        _clients.add(self)

    def hastier(self, timeout: float) -> EtcdClient:
        """Another client of the same members, with a channel of its own and less patience.

        Args:
            timeout: seconds one of its calls may take.
        """
        return EtcdClient(self._endpoints, self._tls, self._login, timeout, self._at)

    def call(self, operation: Callable[[Any], _T]) -> _T:
        """Run an operation on the ``etcd3`` client.

        Args:
            operation: given the client; repeated by nobody but the caller.

        Raises:
            StoreUnavailable: no answer; the next call goes to the next endpoint.
            StoreRefused: etcd does not want us.
            LeaseTaken: a lease that was to be granted is there already.
            LeaseUnknown: a lease that was to be used is not there.
        """
        at = self._enter()
        client = None
        try:
            client = self._open(at)
            return operation(client)
        except grpc.RpcError as error:
            raise self._failed(client, at, error.code(), error.details()) from None
        except (etcd3.exceptions.Etcd3Exception, ValueError) as error:
            # ValueError: the channel was closed by another thread's failure. etcd3 keeps gRPC's words as the context.
            cause = error.__context__
            code, details = (cause.code(), cause.details()) if isinstance(cause, grpc.RpcError) else (None, str(error))
            if "lease already exists" in (details or ""):
                raise LeaseTaken from None
            raise self._failed(client, at, code, details or type(error).__name__) from None
        finally:
            self._exit()

    def watch(self, key: bytes, told: Callable[[Any], None], **options: Any) -> Callable[[], None]:
        """Be told of changes from a revision on.

        Args:
            key: the key, or the beginning of a range.
            told: given a response, or whatever else to say that the watch is lost; called from gRPC's thread.
            options: of ``etcd3``'s ``add_watch_callback``.

        Returns:
            What to call to be told no longer.
        """

        def begin(client: Any) -> Callable[[], None]:
            # Ids of watches are a channel's own: on another channel the same id is somebody else's.
            return partial(client.cancel_watch, client.add_watch_callback(key, told, **options))

        return self.call(begin)

    def close(self) -> None:
        """Close the channel for good."""
        with self._changed:
            self._closed = True
            client, self._client = self._client, None
        _close(client)

    # -- one call ----------------------------------------------------------------------------------------------------

    def _enter(self) -> int:
        """Wait out a fork and be counted; the endpoint's turn it is."""
        with self._changed:
            self._changed.wait_for(lambda: not self._forking)
            if self._orphaned:
                raise StoreUnavailable("this connection belongs to the parent process")
            if self._closed:
                raise StoreUnavailable("this connection is closed")
            self._calls += 1
            return self._at

    def _exit(self) -> None:
        with self._changed:
            self._calls -= 1
            self._changed.notify_all()

    def _open(self, at: int) -> Any:
        """The client in use, or a new one to this endpoint."""
        with self._changed:
            if self._client is not None:
                return self._client
        host, port = self._endpoints[at]
        endpoint = etcd3.Endpoint(
            host=f"[{host}]" if ":" in host else host,
            port=port,
            secure=self._tls is not None,
            creds=self._tls,
            time_retry=float("-inf"),  # it compares wall clocks, which may be set back; failures are counted here
            opts=_OPTIONS,
        )
        try:
            made = etcd3.MultiEndpointEtcd3Client(
                endpoints=[endpoint],
                timeout=max(self.timeout, OP_TIMEOUT),  # for the login: etcd takes its time to check a password
                user=self._login.user if self._login else None,
                password=self._login.password if self._login else None,
            )
        except BaseException:
            endpoint.close()
            raise
        made.timeout = self.timeout
        made.metadata = (*(made.metadata or ()), _LEADER_REQUIRED)
        made.call_credentials = None  # the token is in the metadata; gRPC sends credentials over TLS only
        with self._changed:
            usable = not self._closed and not self._forking
            if usable and self._client is None:
                self._client = made
                return made
            current = self._client if usable else None
        made.close()
        if current is None:
            raise StoreUnavailable("the connection was closed meanwhile")
        return current

    def _failed(self, client: Any, at: int, code: Any, details: str | None) -> StoreUnavailable:
        """What to raise; a channel that failed is given up and the next endpoint's turn comes, once per failure."""
        host, port = self._endpoints[at]
        words = f"etcd at {host}:{port}: {code.name.lower() if code is not None else 'failed'}: {details}"
        if code is grpc.StatusCode.NOT_FOUND and "lease not found" in (details or ""):
            return LeaseUnknown(words)
        with self._changed:
            mine = code not in _ANSWERS and self._client is client and self._at == at
            if mine:
                self._client = None
                self._at = (at + 1) % len(self._endpoints)
        if mine:
            _close(client)
        if any(word in (details or "") for word in _FINAL.get(code, ())):
            if self._login is None and "user name is empty" in words:
                words += "; it wants a login: EZPZ_ETCD_USER and EZPZ_ETCD_PASSWORD"
            return StoreRefused(words)
        return StoreUnavailable(words)

    # -- forks -------------------------------------------------------------------------------------------------------

    def _before_fork(self) -> None:
        with self._changed:
            self._forking = True
            client, self._client = self._client, None
        _close(client)
        with self._changed:
            self._changed.wait_for(lambda: self._calls == 0)

    def _after_fork(self) -> None:
        with self._changed:
            self._forking = False
            self._changed.notify_all()

    def _in_child(self) -> None:
        self._changed = threading.Condition()
        self._client, self._calls, self._forking, self._orphaned = None, 0, False, True


_clients: weakref.WeakSet[EtcdClient] = weakref.WeakSet()


def _close(client: Any) -> None:
    if client is not None:
        client.close()


def _for_all(step: Callable[[EtcdClient], None]) -> None:
    for client in list(_clients):
        step(client)


os.register_at_fork(
    before=partial(_for_all, EtcdClient._before_fork),
    after_in_parent=partial(_for_all, EtcdClient._after_fork),
    after_in_child=partial(_for_all, EtcdClient._in_child),
)
