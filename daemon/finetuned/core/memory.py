"""Bytes that a run needs whatever its rows are: weights, gradients and optimizer states, term by term.

Activations are left out: they follow from how micro-batches are cut. Rates: fp32 4 bytes, bf16 2; NF4 and FP4 0.5 and
one constant a 64 weights (fp32, or one byte and fp32 a 256 constants with double quantization: QLoRA, Dettmers et al.
2023, section 3); AdamW two states of 4 bytes, or of one byte and one fp32 constant a 256 weights (8-bit Optimizers via
Block-wise Quantization, Dettmers et al. 2022).
"""

from dataclasses import dataclass

from finetuned.core.plan import Facts, FreezeTuning, FullTuning, LoraTuning, ModelFacts, Optimizer, Quantization, Tuning

_FP32 = 4
_EMBEDDINGS = ("embed_tokens", "lm_head", "wte", "embed_in", "embed_out")


@dataclass(frozen=True)
class StaticBytes:
    weights: int
    """The base, and what is trained beside it."""
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer


def static_bytes(
    tuning: Tuning, optimizer: Optimizer, facts: Facts, *, base_bytes: int, new_tokens: bool
) -> StaticBytes:
    """Of a run whose frozen base is held in `base_bytes` a weight where it is not quantized."""
    trained = trainable_parameters(tuning, facts, new_tokens=new_tokens)
    states = 2 * _FP32 if "8bit" not in optimizer.optim else 2 * (1 + _FP32 / 256)
    return StaticBytes(
        weights=_base_weights(tuning, facts.model, trained, base_bytes),
        gradients=trained * _FP32,
        optimizer=int(trained * states),
    )


def trainable_parameters(tuning: Tuning, facts: Facts, *, new_tokens: bool = False) -> int:
    """Parameters that get gradients.

    For LoRA an upper bound: r x (in + out), seven linears of 4 x hidden at most, and the embeddings that are trained
    whole. New tokens take an adapter a few rows, which are not counted, and `freeze` the embeddings.
    """
    model = facts.model
    embedding = model.vocab_size * model.hidden_size
    match tuning:
        case FullTuning():
            return model.parameters
        case FreezeTuning():
            grown = (1 if model.tied_embeddings else 2) * embedding if new_tokens else 0
            return min(facts.unfrozen_parameters + grown, model.parameters)
        case LoraTuning(r=r, modules_to_save=saved):
            adapter = min(model.layers * 7 * r * 5 * model.hidden_size, model.parameters)
            return adapter + sum(name in _EMBEDDINGS for name in saved) * embedding


def _base_weights(tuning: Tuning, model: ModelFacts, trained: int, base_bytes: int) -> int:
    match tuning:
        case FullTuning():
            return model.parameters * _FP32
        case FreezeTuning():
            return (model.parameters - trained) * base_bytes + trained * _FP32
        case LoraTuning(quantization=quantization):
            if quantization is None:
                return model.parameters * base_bytes + trained * _FP32
            embeddings = (1 if model.tied_embeddings else 2) * model.vocab_size * model.hidden_size
            embeddings = min(embeddings, model.parameters)
            linear = (model.parameters - embeddings) * _bytes_a_weight(quantization)
            return int(linear) + embeddings * base_bytes + trained * _FP32


def _bytes_a_weight(quantization: Quantization) -> float:
    if quantization.kind == "int8":
        return 1.0
    return 0.5 + (1 / 64 + _FP32 / (64 * 256) if quantization.double_quant else _FP32 / 64)
