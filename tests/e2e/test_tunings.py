"""What a job file may ask for, through the real daemon and its real stages: the parts that only meet there."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet
import pytest

import tiny
from daemons import a_spec
from finetuned.core.events import Exported
from finetuned.core.job import Outcome, Phase, Stage
from finetuned.host.journal import read_events
from until import until

pytestmark = pytest.mark.slow


def test_qlora_on_named_modules_with_new_tokens_learns_a_mixed_folder_and_merges(a_daemon, home, tmp_path):
    rows = tiny.chat_rows(40)
    data = tmp_path / "rows"
    data.mkdir()
    pa.parquet.write_table(pa.Table.from_pylist(rows[:16]), data / "a.parquet")
    with gzip.open(data / "b.jsonl.gz", "wt") as packed:
        packed.writelines(json.dumps(row) + "\n" for row in rows[16:32])
    (data / "c.json").write_text(json.dumps(rows[32:]))
    daemon = a_daemon()
    spec = a_spec(
        home,
        datasets=[{"path": str(data)}],
        finetuning_type="qlora",
        lora_target_modules=["q_proj", "v_proj"],
        added_special_tokens=["<|tool|>"],
        optim="adamw_8bit",
        lr_scheduler_type="wsd",
        val_set_size=8,
        export={"merge": True},
    )
    daemon.drop(spec, "night.yaml")
    job = daemon.wait_for("night", Phase.DONE, 300)
    assert job.read_result().outcome is Outcome.SUCCEEDED
    facts = job.read_facts()
    assert (facts.data.train_rows, facts.data.eval_rows) == (32, 8)
    (exported,) = [event for event in read_events(job.events_file(Stage.TRAIN)) if isinstance(event, Exported)]
    assert exported.merge_drift is not None

    from transformers import AutoModelForCausalLM, AutoTokenizer

    merged = AutoModelForCausalLM.from_pretrained(job.artifacts / "merged")
    tokenizer = AutoTokenizer.from_pretrained(job.artifacts / "merged")
    assert tokenizer.convert_tokens_to_ids("<|tool|>") < merged.get_input_embeddings().weight.shape[0]


def test_freeze_trains_what_its_patterns_name_and_nothing_else(a_daemon, home):
    daemon = a_daemon()
    spec = a_spec(home, finetuning_type="freeze", unfrozen_parameters=[r"layers\.1\.mlp"], learning_rate=1e-3)
    daemon.drop(spec, "frozen.yaml")
    job = daemon.wait_for("frozen", Phase.DONE, 300)
    assert job.read_facts().unfrozen_parameters > 0

    from safetensors.torch import load_file

    before = load_file(next(home.rglob("model/model.safetensors")))
    after = load_file(job.artifacts / "model" / "model.safetensors")
    changed = {name for name in after if not (after[name] == before[name]).all()}
    assert changed == {name for name in before if "layers.1.mlp" in name}


def test_a_module_that_the_model_lacks_fails_the_job_before_a_device_is_taken(a_daemon, home):
    daemon = a_daemon()
    daemon.drop(a_spec(home, lora_target_modules=["q_porj"]), "typo.yaml")
    until(lambda: daemon.jobs(Phase.FAILED), 300)
    result = daemon.job("typo").read_result()
    assert "lora_target_modules: 'q_porj' is no module of the model" in result.reason
    assert not daemon.job("typo").events_file(Stage.TRAIN).exists()
