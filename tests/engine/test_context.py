"""A job of one task in a Spark context."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

from lithify.engine.classic import run_in_context


def test_a_context_that_was_lost_with_the_job_is_not_the_cause() -> None:
    context: Any = MagicMock()
    context._jvm.PythonParallelizeServer.side_effect = ConnectionError("the answer from Java is empty")
    context.removeJobTag.side_effect = AttributeError("'NoneType' object has no attribute 'removeJobTag'")
    with pytest.raises(ConnectionError, match="the answer from Java is empty"):
        run_in_context(context, b"", "tag", "pool", "description")
    context.removeJobTag.assert_called_once_with("tag")
