"""Signature files: what loads, what is refused and how it is told, and that escapes hide nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ezpz_elastic.errors import UsageError
from ezpz_elastic.observe.logs import scan_log
from ezpz_elastic.signatures import Signature, SignatureError, load_library
from ezpz_elastic.signatures.docs import render
from ezpz_elastic.signatures.trigger import PatternError, check_bounded, trigger

LIBRARY = load_library()
EMITTERS = set("torch gloo nccl xpu cuda pals hydra openmpi slurm pbs storage kernel python launcher".split())  # noqa: SIM905
GOOD = """
emitter = "fabricd"
about = "a fabric manager"

[[signature]]
id = "link-dead"
pattern = 'fabricd: link to {host} is dead'
cause = "host_lost"
example = "fabricd: link to nid003 is dead, giving up"
counterexample = "fabricd: link to nid003 is flapping"
source = "https://example.org"
why = "three minutes without an answer"
"""


def write(directory: Path, text: str) -> Path:
    (directory / "own.toml").write_text(text)
    return directory


def test_every_emitter_of_the_design_has_signatures() -> None:
    assert LIBRARY.emitters() >= EMITTERS


@pytest.mark.parametrize("signature", LIBRARY.signatures, ids=lambda signature: signature.id)
def test_an_example_is_found_by_its_own_signature_or_a_better_one(signature: Signature, tmp_path: Path) -> None:
    frame = {
        "checkpoint": "torch/distributed/checkpoint/filesystem.py",
        "shared-memory": "torch/utils/data/dataloader.py",
    }
    log = tmp_path / "log"
    before = f'  File "/x/{frame[signature.entry.context]}", line 1, in f\n' if signature.entry.context else ""
    if signature.entry.requires_inherited and signature.entry.inherit:
        first = next(other for other in LIBRARY.signatures if other.id == signature.entry.inherit.ids[0])
        before = f"{first.entry.example}\n"
    log.write_text(f"{before}{signature.entry.example}\n")
    found = [match.signature for match in scan_log(log, LIBRARY).matches]
    assert len(found) == 1 + bool(signature.entry.requires_inherited)
    better = next(other for other in LIBRARY.signatures if other.id == found[-1])
    assert better is signature or better.priority >= signature.priority


@pytest.mark.parametrize("signature", LIBRARY.signatures, ids=lambda signature: signature.id)
def test_escapes_around_and_inside_words_hide_no_example(signature: Signature, tmp_path: Path) -> None:
    log = tmp_path / "log"
    plain = signature.entry.example
    around = re.sub(r"([A-Za-z0-9]+)", "\x1b[1;36m\\1\x1b[0m", plain)
    inside = re.sub(r"([A-Za-z]{2})([A-Za-z]{2})", "\\1\x1b[31m\\2\x1b[0m", plain)
    told = []
    for text in (plain, around, inside):
        log.write_text(text + "\n")
        told.append([match.signature for match in scan_log(log, LIBRARY).matches])
    assert told[0] == told[1] == told[2]


def test_a_users_own_file_is_used_and_replaces_an_entry_of_the_same_id(tmp_path: Path) -> None:
    own = GOOD + GOOD.split("\n\n", 1)[1].replace("link-dead", "other").replace("fabricd: link to", "fabricd: path to")
    library = load_library(write(tmp_path, own))
    assert {"fabricd.link-dead", "fabricd.other"} <= {signature.id for signature in library.signatures}
    (tmp_path / "pals.toml").write_text(GOOD.replace('"fabricd"', '"pals"').replace("link-dead", "shepherd-signal-9"))
    replaced = next(s for s in load_library(tmp_path).signatures if s.id == "pals.shepherd-signal-9")
    assert replaced.entry.why == "three minutes without an answer"


def test_the_environment_names_a_directory_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EZPZ_SIGNATURES", str(write(tmp_path, GOOD)))
    assert "fabricd" in load_library().emitters()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("is dead, giving up", "is tired"), "does not match its own example"),
        (("is flapping", "is dead"), "matches its own counterexample"),
        (('"host_lost"', '"bad_luck"'), "cause"),
        (("is dead'", "is (dead'"), "pattern"),
        (("is dead'", "is dead.*'"), "without an upper bound"),
        (("'fabricd: link to {host} is dead'", "'(?:a{1,30}){1,30} fabricd: link'"), "repeat inside a repeat"),
        (("'fabricd: link to {host} is dead'", "'{host}'"), "no fixed text"),
        (('why = "three', 'whi = "three'), "whi"),
        (('source = "https://example.org"', 'source = ""'), "source is empty"),
        (('id = "link-dead"', 'id = "Link Dead"'), "lower-case"),
        (('cause = "host_lost"', 'cause = "host_lost"\ncontext = "nowhere"'), "context 'nowhere'"),
        (('cause = "host_lost"', 'cause = "host_lost"\nkind = "doom"'), "kind 'doom'"),
        (('cause = "host_lost"', 'cause = "host_lost"\ninherit = { ids = ["a.b"] }'), "unknown 'a.b'"),
        (("[[signature]]", "[[signature"), "no valid TOML"),
    ],
)
def test_a_bad_entry_is_one_error_that_names_file_entry_and_reason(
    tmp_path: Path, change: tuple[str, str], reason: str
) -> None:
    with pytest.raises(SignatureError, match=re.escape(reason)) as caught:
        load_library(write(tmp_path, GOOD.replace(*change)))
    line = caught.value.line()
    assert "own.toml" in line
    assert "\n" not in line
    assert isinstance(caught.value, UsageError)


def test_a_directory_that_is_not_there_is_told() -> None:
    with pytest.raises(SignatureError, match="no directory"):
        load_library("/nowhere/at/all")


@pytest.mark.parametrize(
    "line",
    [
        "[rank3]: step=120 loss=2.1234 lr=1e-4 tokens/s=12345",
        "[default0]:[rank0]: 2026-11-30 03:00:00,123 INFO train.py:88 iteration 400/ 1000 | lm loss: 2.1E+00",
        "Epoch 3:  45%|####      | 450/1000 [03:12<03:54,  2.34it/s, v_num=0, train_loss=2.10]",
        "[2026-11-30 03:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=400, skipped=0, mom=[(0.9, 0.95)]",
        "saved checkpoint to /lus/run/ckpt/step-400 in 2.1 s",
        "x4310c2s5b0n0: global_step 400 | loss 2.10 | device memory 31.2 GB | rank 3",
    ],
)
def test_no_signature_is_looked_for_in_lines_that_make_up_most_of_a_log(line: str) -> None:
    """Such a word would be found in every line, and a log be read twenty times as slowly."""
    assert [item.id for item in LIBRARY.signatures if re.search(item.trigger.encode(), line.encode())] == []


def test_a_trigger_is_the_longest_fixed_text_of_each_alternative() -> None:
    assert re.search(trigger(r"rank \d{1,7} died from signal 9\b"), "died from signal 9")
    assert re.search(trigger(r"(?:GPU is lost|fallen off the bus)"), "it has fallen off the bus")
    with pytest.raises(PatternError, match="no fixed text"):
        trigger(r"\d{1,9}: [a-z]{1,9}")


@pytest.mark.parametrize("pattern", [r"a.*b", r"(?:x{1,99}){1,99}", r"(\w)\1", r"\S+: died"])
def test_a_pattern_that_could_outgrow_its_line_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        check_bounded(pattern)


def test_the_page_of_signatures_is_the_files_own() -> None:
    page = Path(__file__).parents[2] / "docs" / "signatures.md"
    assert page.read_text() == render(LIBRARY), "run: python -m ezpz_elastic.signatures.docs > docs/signatures.md"
