"""The state of evaluators that judge samples one by one: a record per sample, joined by sample id."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from mulosd.files.reading import parse_json

Record = Mapping[str, Any]


@dataclass(frozen=True)
class SampleState:
    """Records by sample id; the empty state is the identity of `merge`. Records are JSON-serialisable.

    A sample scored twice (a retried worker) counts once; two different records for one sample are a bug and raise.
    """

    suffix: ClassVar[str] = ".json"

    records: Mapping[str, Record] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The records as JSON."""
        return json.dumps({"records": self.records}, ensure_ascii=False).encode("utf-8")

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """What `to_bytes` wrote; ValueError for anything else."""
        content = parse_json(data, allow_nan=True)
        records = content.get("records") if isinstance(content, dict) else None
        if not isinstance(records, dict) or not all(isinstance(record, dict) for record in records.values()):
            raise ValueError("no records by sample id")
        return cls(records)

    def merge(self, other: "SampleState") -> "SampleState":
        """Both states' records. Raises ValueError when they disagree about a sample."""
        for key in sorted(self.records.keys() & other.records.keys()):
            if self.records[key] != other.records[key]:
                raise ValueError(f"sample {key!r} was scored twice with different results")
        return SampleState({**self.records, **other.records})

    def select(self, status: str) -> dict[str, Record]:
        """Records with this `status`, sorted by sample id."""
        return {key: self.records[key] for key in sorted(self.records) if self.records[key]["status"] == status}


def reasons_of(records: Mapping[str, Record]) -> dict[str, str]:
    """Why the records without a score have none, sorted by sample id."""
    return {
        key: str(records[key].get("reason") or "no score")
        for key in sorted(records)
        if records[key]["status"] != "scored"
    }


def state_of(records: Iterable[Record]) -> SampleState:
    """A state from records that carry their `sample_id`; raises ValueError on a duplicate."""
    by_id: dict[str, Record] = {}
    for record in records:
        if record["sample_id"] in by_id:
            raise ValueError(f"sample {record['sample_id']!r} appears twice in one chunk")
        by_id[record["sample_id"]] = record
    return SampleState(by_id)
