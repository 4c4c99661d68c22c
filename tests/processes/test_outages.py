"""Commands outlive an outage of their store, in processes of their own; `make flaky` has longer ones."""

from __future__ import annotations

import pytest

from lithify.testing.s3 import Outage
from tests.processes.outages import outlive, subjects


@pytest.mark.whole
def test_commands_outlive_an_outage_and_tell_of_it() -> None:
    with subjects() as these:
        said = outlive(these, Outage.HANG, 8.0)
        assert set(said) == set(these.urls)
        these.check()
