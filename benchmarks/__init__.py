"""The evidence: every table of the paper and the peers, run on the same rows, one JSON line a run."""
