"""The stages that make a blank machine one that trains. Standard library only, Python 3.9 or newer."""
