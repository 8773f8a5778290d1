"""``docs/signatures.md`` from the signature files: ``python -m ezpz_elastic.signatures.docs > docs/signatures.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from ezpz_elastic.decide.verdict import Provenance
from ezpz_elastic.signatures.library import Library, Signature, load_library
from ezpz_elastic.signatures.schema import PLACEHOLDERS

__all__ = ["render"]

_HEAD = """# Log signatures

<!-- generated: python -m ezpz_elastic.signatures.docs > docs/signatures.md -->

Every line of a log that means something is an entry in a TOML file, one file per emitter, under
`ezpz_elastic/signatures/`. Your own go into a directory named by `--signatures DIR` or `EZPZ_SIGNATURES`; an entry
there with the id of one below replaces it. `CONTRIBUTING.md` shows how one is added.

A line is one signature's only: of several that match, the one with the highest priority. The **role** says what the
line is in the story: *primary* can be the beginning, *cascade* follows something earlier, *banner* sums up, *benign*
means nothing. The **certainty** says what one such line is worth. What a verdict makes of causes and hosts is not here
but in the rules of evidence.

A pattern is a Python regular expression whose repeats are all bounded (no pattern may take longer than the line is
long), with short words for what is captured:
"""


def render(library: Library) -> str:
    """The whole page."""
    return "\n".join(_lines(library)) + "\n"


def _lines(library: Library) -> Iterator[str]:
    yield _HEAD
    yield "| in a pattern | captures |\n|---|---|"
    meanings = {
        "{host}": "the host the line is *about*",
        "{hosts}": "the same, as a Slurm host list",
        "{nodes}": "the same, as a list of a rendezvous's nodes in quotation marks (`'host_pid_n'`)",
        "{reporter}": "the host that prints it, where that is another one",
        "{peer}": "an accused peer's name or address",
        "{rank}": "the rank it is about",
        "{task}": "a launcher's task number, a rank only where one task is one rank",
        "{code}": "an exit code, signal or errno",
        "{path}": "a file",
        "{end}": "nothing: the sentence ends here, no words follow that tell a story about it",
        "{slurm}": "nothing: the `srun: error: ` before Slurm's own lines",
    }
    for word in PLACEHOLDERS:
        yield f"| `{word}` | {meanings[word]} |"
    yield "\n## Contexts\n\nA signature may count only near such a stack frame, of the same rank.\n"
    for context in library.contexts.values():
        yield f"- **{context.id}**: {context.entry.why}. {_code(context.entry.pattern)}"
    emitters: dict[str, list[Signature]] = {}
    for signature in library.signatures:
        emitters.setdefault(signature.emitter, []).append(signature)
    for emitter, signatures in sorted(emitters.items()):
        yield f"\n## {emitter}\n\n{library.about[emitter]}.\n"
        for signature in signatures:
            yield from _entry(signature)


def _entry(signature: Signature) -> Iterator[str]:
    entry = signature.entry
    says = [entry.role.value]
    if entry.role.value != "benign":
        says += [entry.cause.value, entry.certainty.value]
    if entry.kind:
        says.append(f"says {entry.kind}")
    if entry.provenance is not Provenance.SCRAPED:
        says.append(f"provenance {entry.provenance.value}")
    if entry.context:
        says.append(f"context {entry.context}")
    yield f"### {signature.id}\n\n*{', '.join(says)}*: {entry.why} ({_link(entry.source)})\n"
    yield f"- pattern {_code(entry.pattern)}\n- example {_code(entry.example)}"
    if entry.counterexample:
        yield f"- not {_code(entry.counterexample)}"
    yield ""


def _link(source: str) -> str:
    return f"[source]({source})" if source.startswith("http") else "from the incidents this project began with"


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}"


if __name__ == "__main__":
    sys.stdout.write(render(load_library()))
