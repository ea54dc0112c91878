"""The front of the service: text in, text out, and the rounds between target and drafter."""
