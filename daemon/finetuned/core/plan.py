"""What will be done, complete: JobSpec + Machine + ModelFacts + DataFacts → RunPlan, decided without a GPU.

`plan.json` is all that the worker reads of a job's wishes. `digest` covers what defines the result; how micro-batches
are cut, how often a checkpoint is saved and on which device it runs may differ between attempts of one plan.
"""

from typing import Annotated, Literal

from pydantic import Field

from finetuned.core.record import Record


class Device(Record):
    """One slot that a run can take. `id` is "cuda:N" or "cpu:N"."""

    id: str
    name: str
    memory_bytes: int
    has_bf16: bool
    """bf16 matrix products are at least as fast as fp32 ones here."""


class Machine(Record):
    """What finetuned can use of this machine, as seen without torch."""

    devices: tuple[Device, ...]
    memory_bytes: int
    free_disk_bytes: int
    driver_version: str | None = None
    trouble: str = ""
    """An NVIDIA card is there that does not answer: what, and why. Runs wait rather than spend a night on the CPU."""

    @property
    def has_gpu(self) -> bool:
        return any(device.id.startswith("cuda") for device in self.devices)


class ModelFile(Record):
    path: str
    """Relative to the model's folder."""
    size_bytes: int
    sha256: str


class ModelFacts(Record):
    """What prepare found out about the base model."""

    name: str
    """As in the spec: for people, model cards and adapter_config."""
    path: str
    """Absolute folder that holds config, weights and tokenizer; the worker loads from here and nowhere else."""
    revision: str | None = None
    """Commit of a hub model; None for a folder."""
    files: tuple[ModelFile, ...]
    architecture: str
    """E.g. LlamaForCausalLM."""
    parameters: int
    weight_bytes: int
    vocab_size: int
    hidden_size: int
    layers: int
    max_position_embeddings: int
    tied_embeddings: bool


class DataSource(Record):
    path: str
    sha256: str
    rows: int


class RowNote(Record):
    """A row that was dropped or cut, and why."""

    place: str
    """file:line"""
    what: str


class DataFacts(Record):
    """What prepare found out about the data, after rendering, masking and splitting."""

    prepared: str
    """Name of the folder in store/prepared/: train.arrow, eval.arrow (absent without evaluation rows), probes.json."""
    sources: tuple[DataSource, ...]
    train_rows: int
    eval_rows: int
    train_tokens: int
    train_target_tokens: int
    eval_tokens: int
    eval_target_tokens: int
    longest_tokens: int
    p50_tokens: int
    p99_tokens: int
    max_seq_length: int
    """Resolved: what was asked, or min(4096, the model's)."""
    over_long_rows: int = 0
    dropped_rows: int = 0
    """Too long under `drop`, or with nothing to learn; of them `rows_without_targets`."""
    truncated_rows: int = 0
    rows_without_targets: int = 0
    duplicate_rows: int = 0
    """Rows that say exactly what an earlier one said, trained on or not."""
    weighted_out_rows: int = 0
    """Left out because their set has a weight below 1."""
    dropped: tuple[RowNote, ...] = ()
    """The first of the rows that were dropped or cut; touched.jsonl in the prepared folder lists all."""
    chat_template: str | None = None
    """The template text the rows were rendered with; written into the artifacts. None for plain text."""
    stop_token_ids: tuple[int, ...] = ()
    """What generation must stop on: the model's end-of-sequence ids and the template's end of turn."""


class AdapterFacts(Record):
    """What prepare found out about the adapter that training goes on from (`init_adapter`)."""

    path: str
    """Absolute folder that holds adapter_config.json and adapter_model.safetensors."""
    files: tuple[ModelFile, ...]
    r: int
    alpha: int
    target_modules: str | tuple[str, ...]
    use_dora: bool = False
    use_rslora: bool = False
    modules_to_save: tuple[str, ...] = ()


class Facts(Record):
    """facts.json, written by prepare."""

    format: Literal[1] = 1
    model: ModelFacts
    data: DataFacts
    adapter: AdapterFacts | None = None
    unfrozen_parameters: int = 0
    """Parameters of the weights that `freeze` trains; 0 for any other tuning."""
    notices: tuple[str, ...] = ()


class Quantization(Record):
    """How bitsandbytes holds the frozen base."""

    kind: Literal["nf4", "fp4", "int8"]
    double_quant: bool = False
    """Of 4 bits: the constants are quantized, too."""


class LoraTuning(Record):
    """An adapter on a frozen base, which is held in 16 or 32 bits, or quantized (QLoRA)."""

    kind: Literal["lora"] = "lora"
    r: int
    alpha: int
    dropout: float
    target_modules: str | tuple[str, ...]
    """PEFT's meaning: "all-linear", a regular expression, or suffixes of module names."""
    use_dora: bool = False
    use_rslora: bool = False
    init_lora_weights: Literal["default", "gaussian", "orthogonal"] = "default"
    modules_to_save: tuple[str, ...] = ()
    quantization: Quantization | None = None
    init_adapter: AdapterFacts | None = None


class FullTuning(Record):
    kind: Literal["full"] = "full"


class FreezeTuning(Record):
    """Weights in whose name one of the regular expressions is found are trained, the others stay."""

    kind: Literal["freeze"] = "freeze"
    unfrozen_parameters: tuple[str, ...]


Tuning = Annotated[LoraTuning | FullTuning | FreezeTuning, Field(discriminator="kind")]


class Optimizer(Record):
    """AdamW. Weight decay applies to matrices only, never to biases, norms or embeddings' one-dimensional weights."""

    optim: Literal["adamw_torch", "adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit"] = "adamw_torch"
    loraplus_lr_ratio: float = 1.0
    """Learning rate of an adapter's B matrices over that of everything else (LoRA+)."""
    learning_rate: float
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    max_grad_norm: float
    """0 = no clipping."""


class Schedule(Record):
    """The learning rate at a step is a pure function of this and the step."""

    lr_scheduler_type: Literal["linear", "cosine", "constant", "warmup_stable_decay"]
    warmup_steps: int
    decay_steps: int = 0
    """Of warmup_stable_decay: the last steps, in which the rate falls."""
    total_steps: int


class Batches(Record):
    """A batch is `global_batch_size` examples; the last one of an epoch may be smaller."""

    global_batch_size: int
    steps_per_epoch: int
    micro_batch_tokens: int
    """Budget of one micro-batch; a longer example stands alone. A matter of speed and memory, never of the result."""
    eval_micro_batch_tokens: int
    seed: int
    """Of the order of examples: a pure function of (seed, epoch)."""


class Cadence(Record):
    logging_steps: int
    eval_steps: int
    """0 = no evaluation in training."""
    save_steps: int
    """0 = by time alone."""
    save_minutes: float
    """Also save when this long has passed since the last; 0 = by steps alone."""
    save_total_limit: int
    """Newest whole checkpoints kept, beside the best."""


class Selection(Record):
    """Which weights become the artifact, and when to end early."""

    load_best: bool
    early_stopping_patience: int
    """Evaluations without improvement before training ends; 0 = never."""
    early_stopping_threshold: float


class Exports(Record):
    """Forms of the result beside the trained weights themselves."""

    merge: bool = False
    gguf: Literal["none", "f32", "f16", "bf16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0"] = "none"


class RunPlan(Record):
    """plan.json."""

    format: Literal[1] = 1
    method: Literal["sft", "pretrain"]
    tuning: Tuning
    model: ModelFacts
    data: DataFacts
    optimizer: Optimizer
    schedule: Schedule
    batches: Batches
    cadence: Cadence
    selection: Selection
    added_tokens: tuple[str, ...] = ()
    added_special_tokens: tuple[str, ...] = ()
    """New tokens get the ids after the tokenizer's own: first `added_tokens`, then these."""
    exports: Exports = Exports()
    seed: int
    precision: Literal["bf16", "fp32"]
    """Of computation. A frozen base is stored in it; trained weights and optimizer states are fp32."""
    gradient_checkpointing: bool
    device: Literal["cuda", "cpu"]
    notices: tuple[str, ...] = ()
    digest: str
    """sha256 (hex) over what defines the result; a checkpoint of another digest is not continued."""
