"""Files of other tools → our job file: text in, job file and report out. Never guessed in the spool."""
