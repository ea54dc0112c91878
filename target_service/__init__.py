"""The target service: owns the large model, verifies draft trees, streams taps."""
