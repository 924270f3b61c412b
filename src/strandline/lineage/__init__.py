"""OpenLineage: what each run read and wrote, told to a catalogue of lineage."""
