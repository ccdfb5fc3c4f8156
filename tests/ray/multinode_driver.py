"""Run by `test_multinode`: a sweep on two nodes with two fake GPUs each; notes which GPU decoded what."""

import os
import sys
from pathlib import Path
from typing import Any

from pipelines.run.driver import run_sweep
from tests import fakes
from tests.fakes import FakeTarget, load_card, target_ids

__all__ = ["load_card", "load_target", "target_ids"]


class NotedTarget(FakeTarget):
    """Leaves one line per decoded batch in the folder NOTES, in a file of its own process."""

    def decode(self, prompts: Any, seeds: Any, method: Any, *, frames: bool = False) -> Any:
        import ray

        node = ray.get_runtime_context().get_node_id()
        gpus = ",".join(map(str, ray.get_gpu_ids()))
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        with (Path(os.environ["NOTES"]) / str(os.getpid())).open("a") as file:
            file.write(f"{node} {gpus} {seen} {len(prompts)}\n")
        return super().decode(prompts, seeds, method, frames=frames)


def load_target(target_id: str, *, device: str = "cpu", dtype: str = "float32") -> FakeTarget:
    """No weights, whatever the device."""
    assert device == "cuda"
    return NotedTarget(target_id)


def main(out: str) -> None:
    """Start the cluster and run the sweep into `out`."""
    import ray
    from ray.cluster_utils import Cluster

    import pipelines.plan.build
    from pipelines.plan.sweep import parse_sweep

    pipelines.plan.build.load_prompt_set = lambda spec: (fakes.prompts(48), "toy-prompts-48")  # type: ignore[assignment]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "num_gpus": 2, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=4, num_gpus=2)
        cluster.wait_for_nodes(timeout=120)
        ray.init(address=cluster.address, log_to_driver=False)
        families = "tests.ray.multinode_driver"
        sweep = parse_sweep({**fakes.SWEEP, "device": "cuda"}, families=families, registry="tests.fakes")
        print(run_sweep(sweep, out=out, executor="ray").summary())
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
