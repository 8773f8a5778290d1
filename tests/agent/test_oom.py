"""The kernel's word on memory, as cgroup v1 and v2 and the kernel log spell it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ezpz_elastic.observe.kernel import KernelLog, KernelWord
from ezpz_elastic.observe.oom import OomWatch, counter_of

V1 = "34 25 0:30 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
V1_CONTAINER = "34 25 0:30 /docker/abc /sys/fs/cgroup/memory ro,relatime master:7 - cgroup cgroup rw,memory\n"
V2 = "30 25 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
OTHER = "25 1 0:22 / /proc rw shared:1 - proc proc rw\n31 25 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
LINE = (
    "Memory cgroup out of memory: Killed process 417 (python) total-vm:9000kB, anon-rss:2048kB, file-rss:8kB,"
    " shmem-rss:4kB, UID:0 pgtables:90kB oom_score_adj:0"
)


def root(tmp_path: Path, cgroup: str, mounts: str, file: str, text: str) -> Path:
    for name, content in (
        ("proc/self/cgroup", cgroup),
        ("proc/self/mountinfo", OTHER + mounts),
        (file, text),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


@pytest.mark.parametrize(
    ("cgroup", "mounts", "file", "text"),
    [
        (
            "4:memory:/job/7\n1:cpu:/\n",
            V1,
            "sys/fs/cgroup/memory/job/7/memory.oom_control",
            "under_oom 0\noom_kill 3\n",
        ),
        ("4:memory:/docker/abc\n", V1_CONTAINER, "sys/fs/cgroup/memory/memory.oom_control", "oom_kill 3\n"),
        ("0::/job/7\n", V2, "sys/fs/cgroup/job/7/memory.events", "low 0\noom 4\noom_kill 3\noom_group_kill 0\n"),
        ("4:memory:/j\n0::/\n", V2 + V1, "sys/fs/cgroup/memory/j/memory.oom_control", "oom_kill 3\n"),
    ],
    ids=["v1", "v1 in a container", "v2", "both"],
)
def test_the_counter_is_found_and_counts_from_the_last_look(tmp_path, cgroup, mounts, file, text):
    found = counter_of(root=root(tmp_path, cgroup, mounts, file, text))
    assert found == tmp_path / file
    watch = OomWatch(found, KernelLog("/no/such/log"))
    assert watch.since() == 0
    found.write_text(text.replace("oom_kill 3", "oom_kill 5"))
    assert [watch.since(), watch.since()] == [2, 0]
    found.unlink()
    assert watch.since() is None


def test_without_a_memory_controller_nothing_counts(tmp_path):
    assert counter_of(root=root(tmp_path, "0::/\n", V2, "sys/fs/cgroup/cgroup.procs", "")) is None
    assert counter_of(root=tmp_path / "nowhere") is None
    assert OomWatch(None, KernelLog("/no/such/log")).since() is None


def test_the_kernel_log_names_the_process_and_what_it_held(tmp_path):
    log = tmp_path / "kmsg"
    log.write_text("an old line\n")
    kernel = KernelLog(str(log), ours=True)
    with log.open("a") as file:
        file.write(LINE)
    watch = OomWatch(None, kernel)
    word = watch.of(417)
    assert word is not None
    assert word.resident_bytes == (2048 + 8 + 4) * 1024
    assert watch.of(417) == word, "it is remembered"
    assert watch.of(418) is None
    watch.begin()
    assert watch.of(417) is None, "a number may come again in another round"
    kernel.close()


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (
            "6,1,2,-;python3[417]: segfault at 0 ip 00007f9 sp 00007ff error 4 in libc.so.6[16,7f+15] on CPU 1",
            "segfault at 0 ip 00007f9 sp 00007ff error 4 in libc.so.6[16,7f+15] on CPU 1",
        ),
        (
            "6,1,2,-;traps: pt_main_thread[417] general protection fault ip:7f sp:7ff error:0 in libtorch_cpu.so[1+2]",
            "general protection fault ip:7f sp:7ff error:0 in libtorch_cpu.so[1+2]",
        ),
        ("6,1,2,-;traps: a b[417] trap invalid opcode ip:4 sp:7 error:0", "trap invalid opcode ip:4 sp:7 error:0"),
        (
            "6,1,2,-;python3[417]: segfault (11) at 0 nip 1 lr 2 code 1 in a.so",
            "segfault (11) at 0 nip 1 lr 2 code 1 in a.so",
        ),
        ("6,1,2,-;systemd[417]: starting a trap for mice", None),
    ],
)
def test_the_kernel_log_names_a_process_that_faulted(tmp_path, record, expected):
    log = tmp_path / "kmsg"
    log.write_text("")
    kernel = KernelLog(str(log), ours=True)
    log.write_text(record)
    assert kernel.words() == ([KernelWord(417, expected)] if expected else [])
    kernel.close()


def test_in_a_container_the_numbers_in_the_kernel_log_are_other_peoples(tmp_path):
    log = tmp_path / "kmsg"
    log.write_text("")
    kernel = KernelLog(str(log), ours=False)
    log.write_text(LINE)
    assert kernel.words() == []
