"""``store.json`` in the run directory: where the job's store is, for whoever looks in later. It holds no secret."""

from __future__ import annotations

import uuid
from collections.abc import MutableMapping
from pathlib import Path

import msgspec

from ezpz_elastic.endpoint import reach_store
from ezpz_elastic.errors import UsageError
from ezpz_elastic.settings import Settings
from rendezvous.stores import Store

__all__ = ["StoreFile", "find", "remember"]

NAME = "store.json"


class StoreFile(msgspec.Struct, frozen=True):
    """Content of ``store.json``.

    Args:
        endpoint: as ``--rdzv-endpoint`` would name it.
        run_id: ``--rdzv-id``.
        store, etcd_ca, etcd_cert, etcd_key: as in ``--rdzv-conf``.
    """

    endpoint: str
    run_id: str
    store: str = "tcp"
    etcd_ca: str | None = None
    etcd_cert: str | None = None
    etcd_key: str | None = None


def remember(directory: Path, endpoint: str, run_id: str, settings: Settings) -> None:
    """Write down where the store is. Every agent does so, with the same words."""
    paths = (settings.etcd_ca, settings.etcd_cert, settings.etcd_key)
    store = "etcd" if "://" in endpoint else settings.store  # no other store has an endpoint of that form
    content = StoreFile(endpoint, run_id, store, *paths)
    temporary = directory / f".{NAME}.{uuid.uuid4().hex}"  # several hosts may share the directory
    temporary.write_bytes(msgspec.json.encode(content) + b"\n")
    temporary.replace(directory / NAME)


def find(directory: Path, environ: MutableMapping[str, str]) -> tuple[Store, str]:
    """A connection to the store of a run directory's job.

    Args:
        directory: the run directory.
        environ: where the login to etcd is.

    Returns:
        The connection, and the run id.

    Raises:
        UsageError: it is no run directory, or its ``store.json`` cannot be used.
    """
    path = directory / NAME
    try:
        content = msgspec.json.decode(path.read_bytes(), type=StoreFile)
    except FileNotFoundError as error:
        raise UsageError(f"no {path}", expected="the run directory of a job (--rdzv-conf run_dir)") from error
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}", expected="what an agent writes there") from error
    settings = Settings(
        store=content.store, etcd_ca=content.etcd_ca, etcd_cert=content.etcd_cert, etcd_key=content.etcd_key
    )
    return reach_store(content.endpoint, content.run_id, settings, environ), content.run_id
