"""Pure: values in, values out. No files, no clock, no processes, no torch."""
