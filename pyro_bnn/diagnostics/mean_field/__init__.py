"""What a mean-field guide loses: distances, covariances, units it prunes."""
