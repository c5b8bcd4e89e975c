"""Sets of rows on disk as far as the standard library can see: their files, what these hold, their records.

Used at the claim (files and first records, in milliseconds) and by prepare, which adds Parquet, Arrow and zstd.
"""
