"""What came of a job's launches, as the facts from which is decided: read alike by the daemon and by finetunectl."""

from collections.abc import Iterable, Sequence

from finetuned.core.events import History
from finetuned.core.job import Launch
from finetuned.core.lifecycle import LaunchFacts
from finetuned.host.jobdir import JobDir


def since_last_result(job: JobDir, launches: Sequence[Launch]) -> list[Launch]:
    """Those of its launches that no result covers yet. Raises Unreadable."""
    earlier = job.read_newest_earlier_result()
    return [launch for launch in launches if launch.number > (earlier.last_launch if earlier else 0)]


def launch_facts(job: JobDir, launches: Iterable[Launch], history: History) -> tuple[LaunchFacts, ...]:
    """`launches` and `history` are of one stage. Raises Unreadable."""
    attempts = {attempt.started.launch: attempt for attempt in history.attempts}
    return tuple(
        LaunchFacts(launch.number, launch.devices, attempts.get(launch.number), job.read_exit(launch.number))
        for launch in launches
    )
