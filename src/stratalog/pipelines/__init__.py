"""The jobs that run on Spark: export, backfill, query, verify, rekey, repartition, compact."""
