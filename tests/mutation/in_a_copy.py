"""Runs pytest where the product is a copy: ``PYTHONPATH`` has its directory, which a fork has to read for itself."""

import os
import sys

import pytest

sys.path[:1] = os.environ["PYTHONPATH"].split(os.pathsep)
raise SystemExit(pytest.main(sys.argv[1:]))
