"""What samples allow to be said: medians, paired intervals, verdicts that fail closed."""
