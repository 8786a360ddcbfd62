"""Beyond the test rows: the same classifiers on corrupted, unknown and attacked inputs."""
