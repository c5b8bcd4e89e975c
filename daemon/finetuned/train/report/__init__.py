"""What people read of a run: report, chart, tables and the model card."""
