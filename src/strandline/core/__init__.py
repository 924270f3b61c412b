"""Pure Python: values, contracts, planning and the loop. No Spark, no driver, no clock of its own."""
