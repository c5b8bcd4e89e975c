"""finetuned: the daemon that fine-tunes. Read `core/` first, then `service/turn.py`, then `train/main.py`."""

__version__ = "0.1.0"
