"""Log signatures as data: one TOML file per emitter. Adding a signature is adding an entry; nothing else changes."""

from __future__ import annotations

from ezpz_elastic.signatures.library import ContextRule, Library, Signature, load_library
from ezpz_elastic.signatures.schema import SignatureError

__all__ = ["ContextRule", "Library", "Signature", "SignatureError", "load_library"]
