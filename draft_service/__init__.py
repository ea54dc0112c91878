"""The draft service: follows a target's taps and pushes draft trees; its drafters are swappable."""
