"""`strandline serve`: pipelines run unattended, on schedules, over one warm Spark session."""
