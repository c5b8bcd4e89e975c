"""The state of every random generator that a training step may draw from, as tensors."""

import random

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def capture_randomness() -> dict[str, torch.Tensor]:
    """Copies of the states; cheap enough for every step (no device is waited for)."""
    _version, words, gauss = random.getstate()
    _name, keys, place, has_gauss, cached = np.random.get_state(legacy=True)
    states = {
        "torch": torch.get_rng_state(),
        "python.words": torch.tensor(words, dtype=torch.int64),
        "python.gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
        "numpy.keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
        "numpy.place": torch.tensor([int(place), int(has_gauss)], dtype=torch.int64),
        "numpy.cached": torch.tensor([float(cached)], dtype=torch.float64),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_randomness(states: dict[str, torch.Tensor]) -> None:
    """Put back what `capture_randomness` returned. A GPU's state is left out where there is none now."""
    gauss = states["python.gauss"].tolist()
    random.setstate((3, tuple(states["python.words"].tolist()), gauss[0] if gauss else None))
    place, has_gauss = states["numpy.place"].tolist()
    keys = states["numpy.keys"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, place, has_gauss, states["numpy.cached"].item()))
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
