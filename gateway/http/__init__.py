"""The gateway's second face: OpenAI's HTTP API over the generator that gRPC has, too."""
