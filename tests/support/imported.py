"""What an agent imports, and the signatures that it compiles; imported by the process that tests fork agents from."""

from importlib import import_module

from ezpz_elastic.observe.scanner import warm_up
from ezpz_elastic.signatures.library import load_library

for name in ("torch.distributed.run", "ezpz_elastic.agent", "ezpz_elastic.plugin", "rendezvous.handler"):
    import_module(name)
warm_up(load_library())
