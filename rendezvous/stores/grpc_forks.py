"""gRPC without its own handlers for ``fork``: whoever needs gRPC takes it, and ``etcd3`` on top, from this module.

gRPC's core registers ``pthread_atfork`` handlers that stop its threads before a ``fork`` and start them again after it.
While other threads are inside gRPC (a heartbeat and a watch always are) these can wait for each other for ever in the
parent, or abort the child: grpcio 1.85.3 stood still in each of three runs of a thousand forks and more beside three
or six busy threads, and never in nine thousand without the handlers. ``etcd_client`` closes its channels before a
``fork`` and uses none in the child, so the handlers have nothing to do for us.

The core reads ``GRPC_ENABLE_FORK_SUPPORT`` once, when it is loaded. A value of the user's own stands, and so does what
was chosen by somebody who has imported gRPC before us; the environment that workers inherit is left as it was.
"""

from __future__ import annotations

import os

__all__ = ["etcd3", "grpc"]

_SWITCH = "GRPC_ENABLE_FORK_SUPPORT"

_ours = _SWITCH not in os.environ
if _ours:
    os.environ[_SWITCH] = "0"
try:
    import etcd3
    import grpc
finally:
    if _ours:
        del os.environ[_SWITCH]
