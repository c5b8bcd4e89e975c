"""The user-data of a machine: filled in, packed, checked and measured. Standard library only, Python 3.9 or newer."""
