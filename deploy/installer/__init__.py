"""What deploy/install is made of. Runs on the machine's own Python, from 3.9 on, with the standard library alone."""
