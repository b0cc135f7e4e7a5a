"""What does `count` answer? A model's size under every convention, its FLOPs per token, links, traffic and updates.

One frozen dataclass that holds what `model/` counted, as text for people and, like every answer, as JSON for scripts.
Nothing here computes a result beyond shares.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from k3ablate.answers import number, table

if TYPE_CHECKING:
    from k3ablate.model.conventions import Outside, Reading
    from k3ablate.model.links import LinkCounts
    from k3ablate.model.traffic import RunTraffic, Traffic
    from k3ablate.training.groups import Rule


@dataclass(frozen=True)
class Updates:
    """How an optimizer treats every tensor of the model, and whose logits it clips."""

    recipe: str
    rules: Sequence["Rule"]
    qk_clip_threshold: float | None  # None where logits are not clipped
    num_latent_layers: int  # those with MLA

    def text(self) -> str:
        """A row for all tensors that differ by their layer only."""
        rows = Counter(_rule_row(rule) for rule in self.rules)
        headers = ["tensor", "tensors", "shape", "role", "rule", "cut", "scale", "rate", "decay"]
        cells = [(name, f"{number_of:,}", *rest) for (name, *rest), number_of in rows.items()]
        return "\n".join([
            f"updates by {self.recipe}",
            "",
            table(cells, headers, right=(1, 6, 7, 8)),
            "",
            "cut: what Muon orthogonalises alone; scale: what it multiplies that by, 0.2 sqrt(max(rows, columns));",
            "rate: at the peak of the schedule; decay: of weights, times the rate",
            self._clipping(),
        ])  # fmt: skip

    def _clipping(self) -> str:
        if self.qk_clip_threshold is None:
            return "logits are not clipped"
        if not self.num_latent_layers:
            return f"QK-clip at {self.qk_clip_threshold:g}: no layer has MLA, so that nothing is ever clipped"
        return f"QK-clip at {self.qk_clip_threshold:g}, head by head in {self.num_latent_layers} layers with MLA"


@dataclass(frozen=True)
class Counted:
    """`count`: parameters by group and by convention, forward FLOPs per token, links, traffic."""

    model: str
    context: int
    total_params: int
    active_params: int
    flops_per_token: float
    links: int
    groups: Mapping[str, int]
    outside: "Outside"
    conventions: Sequence["Reading"]
    flops: Mapping[str, float]  # by structure
    link_table: Sequence["LinkCounts"]  # empty without blocks
    traffic: "Traffic | None"  # every expert as popular as every other
    run_traffic: "RunTraffic | None"  # as the tokens of a run were routed
    updates: Updates | None  # by the optimizer that was asked about

    def text(self) -> str:
        """One table after the other, to the last parameter."""
        parts = [self._parameters(), self._conventions(), self._flops(), self._links(), self._traffic()]
        if self.updates is not None:
            parts.append(self.updates.text())
        return "\n\n".join(part for part in parts if part)

    def _parameters(self) -> str:
        beside = [(name, f"{size:,}") for name, size in asdict(self.outside).items() if size]
        return "\n".join([
            table([(name, f"{size:,}") for name, size in self.groups.items()], ["group", "parameters"], right=(1,)),
            "",
            f"total parameters {self.total_params:,}",
            f"active parameters {self.active_params:,} (LM head in, input embedding out)",
            "counted in closed form and on the built modules, which agree",
            "",
            table(beside, ["not in the groups", "parameters"], right=(1,)),
        ])  # fmt: skip

    def _conventions(self) -> str:
        rows = [
            (reading.counted, reading.convention, f"{reading.parameters:,}",
             "-" if reading.published is None else number(reading.published),
             "-" if reading.difference is None else f"{reading.difference:+.2%}")
            for reading in self.conventions
        ]  # fmt: skip
        return table(rows, ["counted", "convention", "parameters", "published", "difference"], right=(2, 3, 4))

    def _flops(self) -> str:
        rows = [(name, number(value), f"{value / self.flops_per_token:.1%}") for name, value in self.flops.items()]
        total = f"forward FLOPs per token {self.flops_per_token:,.0f} at a context of {self.context:,}"
        return "\n".join([table(rows, ["structure", "FLOPs per token", "share"], right=(1, 2)), "", total])

    def _links(self) -> str:
        total = f"attention-residual links {self.links:,}"
        rows = [
            (row.consumer, *(f"{value:,}" for value in (row.num_consumers, row.pairs, row.full, row.full_with_output,
                                                        row.block, row.block_with_output)))
            for row in self.link_table
        ]  # fmt: skip
        headers = ["consumer", "consumers", "pairs", "full", "with output", "block", "with output"]
        return "\n".join([table(rows, headers, right=range(1, 7)), "", total]) if rows else total

    def _traffic(self) -> str:
        if self.traffic is None:
            return ""
        even, run = self.traffic, self.run_traffic
        found = {"even": even}
        if run is not None:
            found |= {f"run, layer {entry.layer}": entry.traffic for entry in run.layers}
        widths = [f"bytes per token at {even.full_width:,} (full)"]
        if even.routed_width != even.full_width:
            widths.append(f"at {even.routed_width:,} (latent)")
        headers = ["routing", "pairs that leave", "busiest rank", *widths]
        return "\n".join([
            f"expert-parallel traffic of a layer on {even.num_ranks} ranks, dispatch and combine together, "
            f"{even.bytes_per_number} bytes per number",
            "",
            table([_traffic_row(*item, len(widths)) for item in found.items()], headers, right=range(1, len(headers))),
            "",
            "a pair is a token at one of its experts; busiest rank: its pairs over the mean; tokens lie on ranks by",
            "chance, so that the same share of pairs leaves whichever experts are popular",
            *([] if run is None else [
                f"run {run.run}: as it routed {run.num_tokens:,} tokens of {run.validation} after its last step",
            ]),
        ])  # fmt: skip


def _traffic_row(routing: str, found: "Traffic", num_widths: int) -> list[str]:
    sent = [f"{size:,.0f}" for size in (found.full_width_bytes, found.routed_width_bytes)]
    return [routing, f"{found.leaving_share:.2%}", f"{found.worst_load:.3f}", *sent[:num_widths]]


def _rule_row(rule: "Rule") -> tuple[str, ...]:
    """All but the layer."""
    is_whole = [blocks.number for blocks in rule.cut] == [1]
    blocks = " + ".join(f"{blocks.number} x [{blocks.rows}, {blocks.columns}]" for blocks in rule.cut)
    return (
        re.sub(r"\.\d+\.", ".*.", rule.name, count=1),
        str(list(rule.shape)),
        rule.role,
        rule.update,
        "whole" if is_whole else blocks or "-",
        " + ".join(dict.fromkeys(number(blocks.scale) for blocks in rule.cut)) or "-",
        number(rule.learning_rate),
        number(rule.weight_decay),
    )
