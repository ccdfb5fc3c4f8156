"""The state of evaluators that judge samples one by one: a record per sample, joined by sample id."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Record = Mapping[str, Any]


@dataclass(frozen=True)
class SampleState:
    """Records by sample id; the empty state is the identity of `merge`. Records are JSON-serialisable.

    A sample scored twice (a retried worker) counts once; two different records for one sample are a bug and raise.
    """

    records: Mapping[str, Record] = field(default_factory=dict)

    def merge(self, other: "SampleState") -> "SampleState":
        """Both states' records. Raises ValueError when they disagree about a sample."""
        for key in self.records.keys() & other.records.keys():
            if self.records[key] != other.records[key]:
                raise ValueError(f"sample {key!r} was scored twice with different results")
        return SampleState({**self.records, **other.records})

    def select(self, status: str) -> dict[str, Record]:
        """Records with this `status`, sorted by sample id."""
        return {key: self.records[key] for key in sorted(self.records) if self.records[key]["status"] == status}


def state_of(records: Iterable[Record]) -> SampleState:
    """A state from records that carry their `sample_id`; raises ValueError on a duplicate."""
    by_id: dict[str, Record] = {}
    for record in records:
        if record["sample_id"] in by_id:
            raise ValueError(f"sample {record['sample_id']!r} appears twice in one chunk")
        by_id[record["sample_id"]] = record
    return SampleState(by_id)
