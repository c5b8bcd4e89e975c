"""How a job file is read: text → tree → values; the words people use, what is known but not yet, the rules."""
