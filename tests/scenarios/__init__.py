"""Recovery compared with a run that needed none: one trainer, five scenarios, and comparisons that fail closed.

Each scenario can be run by itself from the top of the repository::

    PYTHONPATH=tests python -m scenarios.with_failure run --mode ddp_2x2 --dump-dir /tmp/dumps
"""
