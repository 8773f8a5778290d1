"""What a Python exception says of the cause: by its type, its message and the frames around it (rules 2, 7, 13)."""

from __future__ import annotations

import re
from typing import NamedTuple

from ezpz_elastic.decide.evidence import Certainty, ErrorRecord, Role
from ezpz_elastic.decide.verdict import Cause, VerdictKind

__all__ = ["Reading", "fingerprint", "read_exception"]

_CHECKPOINT = re.compile(
    r"distributed/checkpoint/|(?<!utils/)checkpoint|ckpt|/torch/serialization\.py|safetensors|save_state", re.I
)
_SHARED = re.compile(r"torch/utils/data/|/multiprocessing/|/dev/shm|reductions\.py", re.I)
_LOCAL_PATH = re.compile(r"['\"](?:/dev/shm|/tmp|/var/tmp|/local|/run)\b")
_SHM_PATH = re.compile(r"['\"]/dev/shm\b")
_BROKEN_DATA = re.compile(
    r"truncated|unexpected e(?:of|nd of)|ended unexpectedly|corrupt|not a zip file|bad (?:magic|crc)"
    r"|magic (?:number|bytes)|checksum mismatch|signature not found|incomplete metadata|premature end",
    re.I,
)
"""What readers of every format say of a file that was cut short or damaged; only of a checkpoint is it known why."""
_ERRNO = re.compile(r"\[Errno (\d{1,3})\]|\bOs \{ code: (\d{1,3})|\(os error (\d{1,3})\)|\berrno = (\d{1,3})")
"""As Python spells it, Rust's two ways (safetensors), HDF5's."""
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib(?:64)?/python\d|^<frozen|^<string>")

_NETWORK = re.compile(
    r"connection (?:\S{1,60} ){0,4}?(?:closed|reset|refused|aborted|timed out|lost|broken|dropped)\b"
    r"|lost (?:the )?connection|(?:host|peer|rank|node) \S{0,60} ?(?:is )?unreachable"
    r"|closed by (?:remote )?peer|broken pipe"
    r"|socket (?:timeout|error|has timed out)|remote process exited|no route to host|network is unreachable"
    r"|connectfullmesh|sendbytes failed|recvvalue failed|recv, 0 bytes|failed to recv|tcpstore|rendezvous"
    r"|nccl (?:error|communicator was aborted)|ncclremoteerror|ncclsystemerror"
    r"|nccl operations have failed|gloo/transport|timed out waiting \d+ms|wait timeout|aborted connection",
    re.I,
)
_NETWORK_TYPES = frozenset(
    {
        "BrokenPipeError",
        "ConnectionResetError",
        "ConnectionRefusedError",
        "ConnectionAbortedError",
        "ConnectionError",
        "DistNetworkError",
        "DistBackendError",
        "DistStoreError",
        "RendezvousClosedError",
        "RendezvousConnectionError",
        "RendezvousTimeoutError",
    }
)
_TEARDOWN_TYPES = frozenset({"SignalException", "ChildFailedError", "ProcessExitedException", "ProcessRaisedException"})
_GROUPS = frozenset({"ExceptionGroup", "BaseExceptionGroup"})
"""The members, which are told beneath, are what went wrong."""
_PROGRAM_TYPES = frozenset(
    {"ValueError", "TypeError", "KeyError", "AttributeError", "IndexError", "AssertionError", "NotImplementedError"}
)
"""No broken connection raises these: a message that speaks of one speaks of settings."""
_CERTAIN_TYPES = frozenset({"SyntaxError", "IndentationError", "ModuleNotFoundError", "ImportError", "NameError"})

# errno -> cause where a checkpoint frame is near, cause elsewhere (None: a broken connection, i.e. a cascade)
_ERRNOS: dict[int, tuple[Cause | None, Cause | None]] = {
    5: (Cause.STORAGE, Cause.STORAGE),
    11: (Cause.WORKER_EXIT, Cause.WORKER_EXIT),
    12: (Cause.OOM_HOST, Cause.OOM_HOST),
    13: (Cause.QUOTA, Cause.USER_EXCEPTION),
    27: (Cause.STORAGE, Cause.USER_EXCEPTION),
    28: (Cause.STORAGE, Cause.STORAGE),
    30: (Cause.QUOTA, Cause.QUOTA),
    52: (Cause.STORAGE, Cause.USER_EXCEPTION),
    61: (Cause.STORAGE, Cause.USER_EXCEPTION),
    70: (Cause.STORAGE, Cause.STORAGE),
    74: (Cause.STORAGE, Cause.USER_EXCEPTION),
    98: (Cause.PORT_IN_USE, Cause.PORT_IN_USE),
    107: (Cause.STORAGE, None),
    108: (Cause.STORAGE, Cause.STORAGE),
    110: (Cause.STORAGE, None),
    116: (Cause.STORAGE, Cause.STORAGE),
    117: (Cause.STORAGE, Cause.STORAGE),
    121: (Cause.STORAGE, Cause.STORAGE),
    122: (Cause.QUOTA, Cause.QUOTA),
    **dict.fromkeys((32, 99, 101, 103, 104, 111, 112, 113), (None, None)),
}

# (message pattern, cause, certainty, kind the text states outright)
_MESSAGES: tuple[tuple[re.Pattern[str], Cause, Certainty, str], ...] = tuple(
    (re.compile(pattern, re.I), cause, certainty, kind)
    for pattern, cause, certainty, kind in (
        (
            r"uncorrectable (?:ecc|nvlink)|fallen off the bus|gpu is lost|ecc uncorrectable|eccnotcorrectable",
            Cause.DEVICE_FAULT,
            Certainty.CERTAIN,
            "",
        ),
        (
            r"device_lost|device lost|busy or unavailable|no cuda-capable device|devices? unavailable",
            Cause.DEVICE_FAULT,
            Certainty.DOUBTFUL,
            "",
        ),
        (
            r"unspecified launch failure|unhandled cuda error|ncclunhandledcudaerror"
            r"|cublas_status_execution_failed|cudnn_status_execution_failed"
            r"|cuda error: unknown error",
            Cause.DEVICE_FAULT,
            Certainty.DOUBTFUL,
            VerdictKind.RETRYABLE_UNATTRIBUTED.value,
        ),
        (
            r"(?:cuda|hip|xpu) out of memory|out_of_device_memory|out_of_resources|cublas_status_alloc_failed"
            r"|cuda error: out of memory",
            Cause.OOM_DEVICE,
            Certainty.LIKELY,
            "",
        ),
        (
            r"pytorchstreamreader failed|failed finding central directory|invalid load key|pickle data was truncated"
            r"|error while deserializing header|ran out of input",
            Cause.CHECKPOINT_CORRUPT,
            Certainty.LIKELY,
            "",
        ),
        (
            r"pytorchstreamwriter failed|inline_container\.cc.*unexpected pos|file write failed|iostream error",
            Cause.STORAGE,
            Certainty.LIKELY,
            "",
        ),
        (
            r"insufficient shared memory|unable to open shared memory|unable to write to file </torch_"
            r"|out of shared memory|killed by signal: bus error",
            Cause.SHM_FULL,
            Certainty.LIKELY,
            "",
        ),
        (
            r"node running low on memory|std::bad_alloc|defaultcpuallocator: can't allocate memory"
            r"|killed by signal: killed",
            Cause.OOM_HOST,
            Certainty.LIKELY,
            "",
        ),
        (r"eaddrinuse|address already in use", Cause.PORT_IN_USE, Certainty.CERTAIN, ""),
        (
            r"collective operation timeout|watchdog got stuck|heartbeat monitor timed out",
            Cause.HANG,
            Certainty.LIKELY,
            "",
        ),
        (
            r"can't start new thread|process pool was terminated abruptly"
            r"|the actor (?:died|is dead|is temporarily unavailable)|worker (?:died or was killed|crashed unexpectedly)"
            r"|dataloader worker \(pid.{0,40} (?:exited unexpectedly|is killed by signal)",
            Cause.WORKER_EXIT,
            Certainty.LIKELY,
            "",
        ),
    )
)


class Reading(NamedTuple):
    """What an exception says: the cause, its role in the story, what it is worth, and an outright kind if any."""

    cause: Cause
    role: Role = Role.PRIMARY
    certainty: Certainty = Certainty.LIKELY
    kind: str = ""


def read_exception(error: ErrorRecord) -> Reading:
    """Read one exception.

    Args:
        error: type, message and frames; frames may be missing.

    Returns:
        what it says; ``USER_EXCEPTION`` where nothing says otherwise.
    """
    return _by_message(error.message) or _by_errno(error) or _by_file(error) or _by_type(error)


def fingerprint(error: ErrorRecord) -> str:
    """Type, message with numbers masked, innermost project frame (rule 13): equal for a repeated user error."""
    message = re.sub(r"0x[0-9a-f]+|\d+", "#", error.message, flags=re.I)[:200]
    frame = ""
    for file, _, function in reversed(error.frames):
        if not _LIBRARY.search(file):
            frame = f"{file.rpartition('/')[2]}:{function}"
            break
    return "|".join((error.type.rpartition(".")[2], message, frame))


def _by_message(message: str) -> Reading | None:
    for pattern, cause, certainty, kind in _MESSAGES:
        if pattern.search(message):
            return Reading(cause, Role.PRIMARY, certainty, kind)
    return None


def _by_errno(error: ErrorRecord) -> Reading | None:
    found = _ERRNO.search(error.message)
    code = 0 if found is None else int(found.group(found.lastindex or 0))
    if code not in _ERRNOS:
        return None
    around = "\n".join([error.message, *(frame[0] for frame in error.frames)])
    checkpoint = bool(_CHECKPOINT.search(around))
    local = _LOCAL_PATH.search(error.message) or _SHARED.search(around)
    if code == 28 and (_SHM_PATH.search(error.message) or (local and not checkpoint)):
        return Reading(Cause.SHM_FULL)
    cause = _ERRNOS[code][0 if checkpoint else 1]
    return Reading(Cause.NETWORK, Role.CASCADE) if cause is None else Reading(cause)


def _by_file(error: ErrorRecord) -> Reading | None:
    """A damaged file, read where checkpoints are read."""
    around = "\n".join([error.message, *(f"{file}:{function}" for file, _, function in error.frames)])
    damaged = _BROKEN_DATA.search(error.message) is not None and _CHECKPOINT.search(around) is not None
    return Reading(Cause.CHECKPOINT_CORRUPT) if damaged else None


def _by_type(error: ErrorRecord) -> Reading:
    name = error.type.rpartition(".")[2]
    if name == "KeyboardInterrupt":
        return Reading(Cause.UNKNOWN, kind=VerdictKind.INTERRUPTED.value)
    if name in _TEARDOWN_TYPES | _GROUPS:
        return Reading(Cause.UNKNOWN, Role.CASCADE)
    if name.endswith("MemoryError"):
        return Reading(Cause.OOM_DEVICE if name.endswith("OutOfMemoryError") else Cause.OOM_HOST)
    if name == "CheckpointException":  # torch wraps the error of a rank in it; alone it still says where it happened
        return Reading(Cause.STORAGE, Role.CASCADE)
    if name in _NETWORK_TYPES or (name not in _PROGRAM_TYPES | _CERTAIN_TYPES and _NETWORK.search(error.message)):
        return Reading(Cause.NETWORK, Role.CASCADE)
    certainty = Certainty.CERTAIN if name in _CERTAIN_TYPES else Certainty.LIKELY
    return Reading(Cause.USER_EXCEPTION, certainty=certainty)
