"""Jobs in a guest: dropped as a person drops them, and read from outside through what stands in their folder."""

import json
from dataclasses import dataclass
from typing import TypeVar

from finetuned.core import events
from finetuned.core.events import Checkpointed, Event, Finished, Restored, Started, Stepped
from finetuned.core.job import Exit, Launch, Phase, Stage
from system.guest.guest import CommandFailed, Guest

SPOOL = "/var/spool/finetuned"
MODEL = "/srv/finetuned/models/tiny"
ROWS = "/srv/finetuned/data/chat.jsonl"
MEMBER = "debian"
"""An ordinary user, in the group; cloud-init makes it, and our provisioning adds it to the group."""

E = TypeVar("E", bound=Event)


def a_spec(**fields: object) -> str:
    """A job file (JSON is YAML) with dropout, so that randomness has to be restored too, in fp32."""
    spec = {
        "base_model": MODEL,
        "datasets": [{"path": ROWS}],
        "lora_r": 4,
        "lora_dropout": 0.1,
        "global_batch_size": 4,
        "bf16": False,
        "save_steps": 10,
    }
    return json.dumps(spec | fields)


def drop(guest: Guest, name: str, spec: str) -> "GuestJob":
    """As `cp` does it, by an ordinary user of the group."""
    home = f"/home/{MEMBER}/{name}.yaml"
    guest.put(home, spec, user=MEMBER)
    guest.run("cp", home, f"{SPOOL}/incoming/", user=MEMBER)
    job = GuestJob(guest, name)
    guest.until(lambda: job.id, 60, f"{name} to be claimed")
    return job


@dataclass(frozen=True)
class GuestJob:
    """The job that was dropped under `name`, wherever it stands by now."""

    guest: Guest
    name: str

    @property
    def folder(self) -> str:
        """Raises CommandFailed before the job is claimed."""
        return self.guest.run("sh", "-c", f"ls -d {self._glob}")

    @property
    def id(self) -> str:
        return self.folder.rsplit("/", 1)[1]

    @property
    def phase(self) -> Phase:
        return Phase(self.folder.split("/")[-2])

    def unit(self, stage: Stage = Stage.TRAIN) -> str:
        return f"finetuned-{stage}@{self.id}.service"

    def worker(self) -> int:
        """Pid of the train stage, as the guest counts; 0 while there is none."""
        return int(self.guest.unit(self.unit(), "MainPID"))

    def events(self, stage: Stage = Stage.TRAIN) -> list[Event]:
        """None before the stage has started for the first time."""
        lines = self.guest.shell(f"cat {self._glob}/events/{stage}.jsonl").stdout.splitlines(keepends=True)
        return [event for line in lines if line.endswith(b"\n") and (event := events.from_line(line)) is not None]

    def of_kind(self, kind: type[E], stage: Stage = Stage.TRAIN) -> list[E]:
        return [event for event in self.events(stage) if isinstance(event, kind)]

    def step(self) -> int:
        return max((event.step for event in self.of_kind(Stepped)), default=0)

    def checkpointed_step(self) -> int:
        """The newest that *Checkpointed* was said of."""
        return max((event.step for event in self.of_kind(Checkpointed)), default=0)

    def launches(self, stage: Stage = Stage.TRAIN) -> list[tuple[Launch, Exit | None]]:
        """Every launch of the stage, oldest first, and how it ended if that is known."""
        names = self.guest.run("sh", "-c", f"cd {self._glob}/launches && ls").split()
        asked = [Launch.model_validate_json(self._read(f"launches/{name}")) for name in names if len(name) == 9]
        found = []
        for launch in asked:
            ending = f"{launch.number:04d}.exit.json"
            text = self._read(f"launches/{ending}") if ending in names else None
            if launch.stage is stage:
                found.append((launch, Exit.model_validate_json(text) if text else None))
        return found

    def exits(self, stage: Stage = Stage.TRAIN) -> list[Exit | None]:
        return [ending for _launch, ending in self.launches(stage)]

    def weights(self) -> dict[str, bytes]:
        """The tuned tensors, bit by bit."""
        from safetensors.torch import load

        tensors = load(self._read("artifacts/adapter/adapter_model.safetensors"))
        return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}

    def wait_for(self, phase: Phase, seconds: float = 120) -> None:
        self.guest.until(lambda: self.phase is phase, seconds, f"{self.name} to come to {phase}/")

    def wait_for_step(self, step: int, seconds: float = 90) -> None:
        self.guest.until(lambda: self.step() >= step, seconds, f"step {step} of {self.name}")

    def wait_for_next_checkpoint(self, seconds: float = 90) -> int:
        """The step of the next one that is taken, with steps after it: a resume that starts over would be seen."""
        before = self.checkpointed_step()
        self.guest.until(
            lambda: before < self.checkpointed_step() < self.step(),
            seconds,
            f"steps of {self.name} after the checkpoint that follows step {before}",
        )
        return self.checkpointed_step()

    def wait_for_attempt(self, number: int, seconds: float = 90) -> int:
        """Until the attempt of this number trains again; the step from which it does."""

        def trains() -> bool:
            return number <= len(self.of_kind(Started)) <= len(self.of_kind(Restored))

        self.guest.until(trains, seconds, f"attempt {number} of {self.name}")
        return self.of_kind(Restored)[number - 1].step

    def assert_steps_follow_each_other(self) -> None:
        """One worker at a time: from each *Restored* on steps go up by one, and one attempt finishes."""
        last = None
        saved = {0}
        for event in self.events():
            match event:
                case Started():
                    last = None
                case Restored(step=step):
                    assert step in saved, f"restored a step {step} that was never saved"
                    last = step
                case Stepped(step=step):
                    assert last is not None, "stepped before anything was restored"
                    assert step == last + 1, f"step {step} follows step {last}: two workers?"
                    last = step
                case Checkpointed(step=step):
                    saved.add(step)
        assert len(self.of_kind(Finished)) == 1

    @property
    def _glob(self) -> str:
        return f"{SPOOL}/*/[0-9]*-{self.name}-????????"

    def _read(self, path: str) -> bytes:
        ended = self.guest.shell(f"cat {self._glob}/{path}")
        if ended.returncode != 0:
            raise CommandFailed(f"{self.name} has no {path} that can be read: {ended.stderr.decode().strip()}")
        return ended.stdout
