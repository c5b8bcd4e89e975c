"""finetunectl: reads the spool, writes only into its doors (`incoming/`, `requests/`), and never imports torch."""
