"""A database's ledger as a coordinator makes it, for tests that need one without a coordinator."""

from __future__ import annotations

from dataclasses import replace

from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.protocol.model import Ledger


def take_epoch(dataset: SlateDataset) -> int:
    """Take the next epoch and put it into the ledger; which one it is."""
    epoch = dataset.take_epoch()
    dataset.update_ledger(lambda latest: replace(latest, epoch=epoch), Ledger(epoch))
    return epoch
