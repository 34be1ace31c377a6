"""Tests of the benchmarks that compare searches."""

import sys

from tests import ROOT

sys.path.append(str(ROOT / "benchmarks" / "search"))
