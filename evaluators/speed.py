"""Speed counters: forwards and tokens from the staged DecodeStats. Machine-free; latency comes from bench runs only.

A forward counts for an image when the image has a real query in the call; forwards are of all kinds and both models.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from evaluators.state import Record, SampleState, reasons_of, state_of
from evaluators.statistics.intervals import bootstrap_mean, describe_bootstrap, ratio_of_totals
from evaluators.types import Metric, Row
from mulosd.errors import DataError
from mulosd.types import COUNTERS, FORWARD_KINDS, Direction, Estimate, Values

NOTHING = Estimate(None, reason="no decoded image")


class SpeedEvaluator:
    """Means per image over the rows that decoded; failed rows are counted as missing.

    n_target_tokens: N where all rows must have it; None reads N from each row.
    """

    name = "speed"
    version = "1"
    state = SampleState

    def __init__(self, *, n_target_tokens: int | None = None) -> None:
        self._n_target_tokens = n_target_tokens

    def protocol(self) -> dict[str, Any]:
        """What the counters mean."""
        return {"forwards": "all kinds, both models; guidance pair counts once", "target_tokens": self._n_target_tokens}

    def prepare(self) -> None:
        """Nothing to load."""

    def score(self, rows: Sequence[Row]) -> SampleState:
        """A record of the counters per row."""
        return state_of(self._record(row) for row in rows)

    def merge(self, a: SampleState, b: SampleState) -> SampleState:
        """Join two states by sample id."""
        return a.merge(b)

    def finalize(self, state: SampleState) -> list[Metric]:
        """speed/forwards_per_image, one per kind, tokens_fed_per_image, resampled_fraction and step_ratio; and
        speed/chosen_tau where the decoder chose tau."""
        scored = state.select("scored")
        total = {key: float(sum(r[f"forwards_{kind}"] for kind in FORWARD_KINDS)) for key, r in scored.items()}
        tokens = _column(scored, "target_tokens")
        resampled = {key: value / tokens[key] for key, value in _column(scored, "resampled").items()}
        kinds = {kind: _column(scored, f"forwards_{kind}") for kind in FORWARD_KINDS}
        fed = _column(scored, "tokens_fed")
        return [
            self._mean("forwards_per_image", total, "lower", "forwards", state),
            *(self._mean(f"forwards_{k}_per_image", kinds[k], "none", "forwards", state) for k in FORWARD_KINDS),
            self._mean("tokens_fed_per_image", fed, "none", "tokens", state),
            self._mean("resampled_fraction", resampled, "lower", "share of target tokens", state),
            self._step_ratio(tokens, total, state),
            *self._chosen_tau(scored, state),
        ]

    def _record(self, row: Row) -> Record:
        sample_id = row["sample_id"]
        if row.get("error"):
            return {"sample_id": sample_id, "status": "missing", "reason": row["error"]}
        absent = [name for name in COUNTERS if row.get(name) is None]
        if absent or row.get("token_ids") is None:
            what = absent[0] if absent else "token_ids"
            raise DataError(f"{sample_id}: the row has no {what} and no error either; decode its chunk again.")
        num_tokens = len(row["token_ids"])
        if self._n_target_tokens not in (None, num_tokens):
            raise DataError(
                f"{sample_id}: has {num_tokens} tokens instead of {self._n_target_tokens}; decode it again."
            )
        counters = {name: int(row[name]) for name in COUNTERS}
        if num_tokens < 1 or sum(counters[f"forwards_{kind}"] for kind in FORWARD_KINDS) < 1:
            raise DataError(f"{sample_id}: an image needs at least one token and one forward; decode its chunk again.")
        chosen = {"chosen_taus": row["chosen_taus"]} if row.get("chosen_taus") else {}
        return {"sample_id": sample_id, "status": "scored", "target_tokens": num_tokens, **counters, **chosen}

    def _chosen_tau(self, scored: Mapping[str, Record], state: SampleState) -> list[Metric]:
        """An image's tau is the mean over its cycles; [] where none was chosen, as with a fixed tau."""
        taus = {key: fmean(record["chosen_taus"]) for key, record in scored.items() if "chosen_taus" in record}
        if not taus:
            return []
        metric = self._mean("chosen_tau", taus, "none", "pooled probability", state)
        return [replace(metric, n_missing=len(state.records) - len(taus))]

    def _mean(self, name: str, scores: Values, direction: Direction, unit: str, state: SampleState) -> Metric:
        estimate = bootstrap_mean(scores) if scores else NOTHING
        return Metric(
            name=f"speed/{name}",
            value=estimate.value,
            direction=direction,
            unit=unit,
            n=len(scores),
            n_missing=len(state.select("missing")),
            version=self.version,
            interval=estimate.interval,
            protocol={**self.protocol(), "aggregate": "mean over images", "interval": describe_bootstrap()},
            reason=estimate.reason,
            per_sample=dict(scores),
            missing=reasons_of(state.records),
        )

    def _step_ratio(self, tokens: Values, forwards: Values, state: SampleState) -> Metric:
        """N / forwards: how many AR steps one forward stands for; a ratio of totals, per_sample its paired form."""
        estimate = ratio_of_totals(tokens, forwards) if forwards else NOTHING
        return Metric(
            name="speed/step_ratio",
            value=estimate.value,
            direction="higher",
            unit="target tokens per forward",
            n=len(forwards),
            n_missing=len(state.select("missing")),
            version=self.version,
            interval=estimate.interval,
            protocol={**self.protocol(), "aggregate": "ratio of totals", "interval": describe_bootstrap()},
            reason=estimate.reason,
            per_sample={key: tokens[key] / forwards[key] for key in forwards},
            missing=reasons_of(state.records),
        )


def _column(records: Mapping[str, Record], name: str) -> dict[str, float]:
    return {key: float(record[name]) for key, record in records.items()}
