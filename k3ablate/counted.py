"""What does `count` answer? A model's size under every convention, its FLOPs per token, links and traffic.

One frozen dataclass that holds what `model/` counted, as text for people and, like every answer, as JSON for scripts.
Nothing here computes a result beyond shares.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from k3ablate.answers import number, table

if TYPE_CHECKING:
    from k3ablate.model.conventions import Outside, Reading
    from k3ablate.model.links import LinkCounts
    from k3ablate.model.traffic import Traffic


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
    traffic: "Traffic | None"

    def text(self) -> str:
        """One table after the other, to the last parameter."""
        parts = [self._parameters(), self._conventions(), self._flops(), self._links(), self._traffic()]
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
        found = self.traffic
        rows = [("full", found.full_width, f"{found.full_width_bytes:,.0f}")]
        if found.routed_width != found.full_width:
            rows.append(("latent", found.routed_width, f"{found.routed_width_bytes:,.0f}"))
        return "\n".join([
            f"expert-parallel traffic of a layer on {found.num_ranks} ranks, evenly routed",
            f"token-expert pairs that leave their rank {found.leaving_share:.2%}",
            f"busiest rank {found.worst_load:.3f} of the mean",
            "",
            table(rows, ["width", "channels", "bytes per token"], right=(1, 2)),
            f"dispatch and combine together, {found.bytes_per_number} bytes per number",
        ])  # fmt: skip
