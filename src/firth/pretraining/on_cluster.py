"""Pre-train on a Ray cluster: start the ranks, and restart them from the last checkpoint when one dies.

Every rank is a Ray task in a placement group and joins torch.distributed as under torchrun; training, checkpoints and
folders are those of any run. Ranks are tasks because Ray's cancellation reaches a task as Ctrl-C does, so that a stop
saves a checkpoint, and because each task has a fresh process, which a restart needs. Ray Train is not used: it would
bring a second loop, its own checkpoints and a fixed number of workers.
"""

import contextlib
import dataclasses
import io
import os
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from firth.cluster.addresses import address_here
from firth.cluster.calls import Call, Ended, ended, kill, start, stop, wait, wait_until_free
from firth.cluster.connection import Cluster, connect
from firth.config import to_toml
from firth.errors import ConfigError, FirthError, TrainingError
from firth.files import append_to
from firth.pretraining.recipe import Pretrain, read_resolved_recipe
from firth.pretraining.run import RECIPE, Outcome, recipe_of, run_recipe
from firth.pretraining.several import Processes, Sharding, for_processes, most_slots
from firth.progress import say
from firth.training.collectives import RANKS_HERE

# The leading rank's messages, which the nodes and the process that started them share through the run's folder.
LOG = "cluster.log"
# Seconds to wait for a placement of all ranks before it is requested again.
_PLACE_S = 10
# Seconds that the other ranks have to end after one has failed, before they are killed: by then it is known whose error
# it was.
_SETTLE_S = 10.0


def train_on_cluster(
    recipe: Pretrain,
    run: Path,
    on: str,
    tell: Callable[[str], None],
    *,
    processes: Processes = "auto",
    sharding: Sharding = "auto",
    restarts: int = 3,
) -> Outcome:
    """Train or resume a run with one rank per CPU or GPU of the cluster that ``on`` names, or with ``processes`` ranks.

    When a rank or node dies, all ranks restart from the last checkpoint, at most ``restarts`` times, with as many ranks
    as still fit: the largest number that divides the micro-batches of a step, whose content stays the same.
    """
    with connect(on, run, tell) as cluster:
        kind = "GPU" if cluster.gpus else "CPU"
        room = cluster.gpus or cluster.cpus
        slots = recipe.train.micro_batches or most_slots(recipe)
        if processes != "auto" and processes < 1:
            raise ConfigError(f"processes={processes}: expected at least 1, or auto")
        if processes != "auto" and processes > room:
            raise ConfigError(f"--processes {processes}: the cluster has {room} {kind}s")
        if processes != "auto" and (processes > slots or (recipe.train.micro_batches and slots % processes)):
            raise ConfigError(f"--processes {processes}: cannot share a step of train.micro_batches={slots}")
        most = room if processes == "auto" else processes
        recipe = for_processes(recipe, most)
        try:
            for left in range(restarts, -1, -1):
                outcome, problem = _attempt(recipe, run, cluster, tell, most, sharding)
                if outcome is not None:
                    return outcome
                if not left:
                    break
                tell(f"{problem}; all start again from the last checkpoint ({restarts - left + 1} of {restarts})")
                wait_until_free(run)
                if (run / RECIPE).is_file():
                    stored = recipe_of(run)
                    # A resumed run may have been given another folder for its corpus than its recipe names.
                    recipe = dataclasses.replace(
                        stored, data=dataclasses.replace(stored.data, corpus=recipe.data.corpus)
                    )
            raise TrainingError(f"{problem}. Saved checkpoints are untouched; to resume: firth pretrain --resume {run}")
        except TrainingError as error:
            if cluster.lost:
                raise TrainingError(
                    f"{error}; the ranks end within a minute. Then resume from the last checkpoint, on a cluster or "
                    f"without: firth pretrain --resume {run}"
                ) from None
            raise
        finally:
            if not (run / RECIPE).is_file():  # the run never began
                (run / LOG).unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    run.rmdir()


def world_size(slots: int, room: int) -> int:
    """The largest number of ranks, at most ``room``, that divides the micro-batches of a step."""
    return max(n for n in range(1, max(room, 1) + 1) if slots % n == 0)


def _attempt(
    recipe: Pretrain, run: Path, cluster: Cluster, tell: Callable[[str], None], most: int, sharding: Sharding
) -> tuple[Outcome | None, str]:
    """Train with as many ranks as there is room for; returns the outcome, or why a restart is needed."""
    with _placed(recipe.train.slots, most, cluster, tell) as (group, nodes):
        said = _Said(run / LOG, tell)
        message = {"recipe": to_toml(recipe), "run": str(run), "sharding": sharding}
        ranks = _start_ranks(message, run, group, nodes, bool(cluster.gpus))
        found: dict[Any, Ended] = {}
        try:
            while len(found) < len(ranks) and not any(one.problem for one in found.values()):
                _collect(ranks, nodes, found, cluster)
                said.show()
            give_up_s = time.monotonic() + _SETTLE_S
            while len(found) < len(ranks) and time.monotonic() < give_up_s:
                _collect(ranks, nodes, found, cluster)
        except KeyboardInterrupt:
            tell("stopping: the ranks save a checkpoint")
            with contextlib.suppress(KeyboardInterrupt):
                stop([rank for rank in ranks if rank not in found], cluster, said.show)
            _collect(ranks, nodes, found, cluster)
            if ranks[0] in found and found[ranks[0]].value is not None:
                return _outcome(run, found[ranks[0]].value), ""
            raise
        finally:
            said.show()
            kill([rank for rank in ranks if rank not in found])
    return _judged(run, [found.get(rank) for rank in ranks])


def _collect(ranks: list[Any], nodes: list[str], found: dict[Any, Ended], cluster: Cluster) -> None:
    """Record which ranks have ended since, and which are on a node that was lost."""
    left = [rank for rank in ranks if rank not in found]
    done = wait(left, cluster) if left else []
    found |= {rank: ended(rank) for rank in done}
    if not left or done or cluster.lost:
        return
    # Ray may know that a node is lost long before it ends the tasks there: connections to a silent node stay open.
    alive = {node.id for node in cluster.nodes()}
    for rank, node in zip(ranks, nodes, strict=True):
        if rank not in found and node not in alive:
            found[rank] = Ended(problem=TrainingError("its node was lost"), lost=True)


def _judged(run: Path, found: list[Ended | None]) -> tuple[Outcome | None, str]:
    """The ranks' outcome, or why to restart them: Firth's own errors would recur and are raised, others may pass."""
    numbered = [(number, one.problem, one.lost) for number, one in enumerate(found, 1) if one and one.problem]
    for _, problem, lost in numbered:
        if isinstance(problem, FirthError) and not lost:
            raise problem
    if not numbered:
        assert found[0] is not None
        return _outcome(run, found[0].value), ""
    # Ranks that only lost the connection to a dead one do not know the cause.
    number, problem, _ = min(numbered, key=lambda one: not one[2])
    return None, f"rank {number} of {len(found)}: {str(problem).strip().splitlines()[-1]}"


def _outcome(run: Path, value: dict[str, Any]) -> Outcome:
    return Outcome(run, value["finished"], value["step"], value["best"])


@contextlib.contextmanager
def _placed(slots: int, most: int, cluster: Cluster, tell: Callable[[str], None]) -> Iterator[tuple[Any, list[str]]]:
    """Yield a placement group with a bundle for each rank, and the node of each bundle."""
    import ray
    from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

    told = False
    group: Any = None
    try:
        while True:
            size = world_size(slots, min(most, cluster.gpus or cluster.cpus))
            bundle = {"CPU": 1, "GPU": 1} if cluster.gpus else {"CPU": 1}
            group = placement_group([bundle] * size, strategy="PACK")
            if group.wait(_PLACE_S):
                break
            # Requested again, for as many ranks as there is room for by now: nodes may have come or gone.
            remove_placement_group(group)
            cluster.check()
            if not told:
                tell(f"waiting until {size} {'GPUs' if cluster.gpus else 'CPUs'} are free")
                told = True
        bundles = placement_group_table(group)["bundles_to_node_id"]
        tell(f"{size} rank{'s'[: size > 1]} on {len(set(bundles.values()))} of {len(cluster.nodes())} nodes")
        yield group, [bundles[number] for number in range(size)]
    finally:
        if group is not None and not cluster.lost:
            with contextlib.suppress(ray.exceptions.RayError):
                remove_placement_group(group)


def _start_ranks(message: dict[str, str], run: Path, group: Any, nodes: list[str], gpu: bool) -> list[Any]:
    """Start the ranks, each with the environment that torchrun would set."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    def bundle(number: int) -> dict[str, Any]:
        return {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)}

    leading = ray.remote(address_here).options(num_cpus=1, max_retries=0, **bundle(0))
    host, port = ray.get(leading.remote())
    here, seen = Counter(nodes), Counter[str]()
    ranks = []
    for rank, node in enumerate(nodes):
        # A rank sees only its own GPU.
        local = (0, 1) if gpu else (seen[node], here[node])
        seen[node] += 1
        facts = {"RANK": rank, "WORLD_SIZE": len(nodes), "LOCAL_RANK": local[0], "LOCAL_WORLD_SIZE": local[1]}
        environment = {name: str(value) for name, value in facts.items()}
        environment |= {"MASTER_ADDR": host, "MASTER_PORT": str(port), RANKS_HERE: str(here[node])}
        function = f"{__name__}:train_rank"
        call = Call(function=function, arguments=message, folder=run, gpus=int(gpu), environment=environment)
        ranks.append(start(call, **bundle(rank)))
    return ranks


def train_rank(*, recipe: str, run: str, sharding: Sharding) -> dict[str, Any]:
    """Train as one of the ranks. The leading one writes its messages to the run's ``cluster.log``."""
    from firth.cluster.addresses import use_interface

    use_interface()
    leads = os.environ["RANK"] == "0"
    place = Path(run)
    if leads:
        place.mkdir(parents=True, exist_ok=True)
    file = append_to(place / LOG) if leads else open(os.devnull, "ab")  # noqa: SIM115  # closed by the context
    with io.TextIOWrapper(file, "utf-8", write_through=True) as log, contextlib.redirect_stderr(log):
        resolved = read_resolved_recipe(tomllib.loads(recipe), "recipe")
        outcome = run_recipe(resolved, place, say, "auto", sharding)
    return {key: value for key, value in dataclasses.asdict(outcome).items() if key != "run"}


class _Said:
    """Shows what the leading rank adds to its log."""

    def __init__(self, path: Path, tell: Callable[[str], None]):
        self.path, self.tell = path, tell
        self._at = path.stat().st_size if path.is_file() else 0

    def show(self) -> None:
        if not self.path.is_file():
            return
        with open(self.path, "rb") as file:
            file.seek(self._at)
            lines = file.read().split(b"\n")
        for line in lines[:-1]:  # after the last line end comes the beginning of a line, or nothing
            self._at += len(line) + 1
            self.tell(line.decode("utf-8", "replace"))
