"""`slipstream chat`: a conversation in the terminal that shows what the drafter guessed right."""

from __future__ import annotations

import grpc
from rich.console import Console
from rich.text import Text

from protos import gateway_pb2 as pb
from slipstream.client import Client, Completion
from slipstream.generate import Options

_ACCEPTED_STYLE = "green"


class Chat:
    """The conversation so far, and how it goes on."""

    def __init__(self, client: Client, options: Options, console: Console) -> None:
        self._client = client
        self._options = options
        self._console = console
        self._messages: list[dict[str, str]] = []

    def run(self) -> None:
        """Read, answer, repeat, until the end of the input. Ctrl-C stops an answer."""
        self._console.print(
            Text.assemble(
                "Words in ", ("green", _ACCEPTED_STYLE), " were drafted and accepted. Ctrl-D ends."
            )
        )
        while True:
            try:
                line = self._console.input("[bold]> [/]").strip()
            except (EOFError, KeyboardInterrupt):
                self._console.print()
                return
            if line:
                self._answer(line)

    def _answer(self, line: str) -> None:
        """Answer one message. A turn that failed does not enter the conversation."""
        turn = [*self._messages, {"role": "user", "content": line}]
        chunks: list[pb.GenerateResponse] = []
        try:
            for chunk in self._client.stream(self._options.chat_request(turn)):
                chunks.append(chunk)
                self._show(chunk)
        except KeyboardInterrupt:
            self._console.print("\n[dim]stopped[/]")
        except grpc.RpcError as error:
            self._console.print(Text(f"\n{error.code().name}: {error.details()}", style="red"))
        except ValueError as error:
            self._console.print(Text(f"not sent: {error}", style="red"))
        if chunks:
            text = "".join(chunk.text for chunk in chunks)
            self._messages = [*turn, {"role": "assistant", "content": text}]
        if chunks and chunks[-1].HasField("finish"):
            self._console.print(Text("\n" + summary(Completion.of(chunks)), style="dim"))

    def _show(self, chunk: pb.GenerateResponse) -> None:
        accepted = chunk.text[: chunk.accepted_text_len]
        rest = chunk.text[chunk.accepted_text_len :]
        self._console.print(Text.assemble((accepted, _ACCEPTED_STYLE), rest), end="")


def summary(completion: Completion) -> str:
    """Return the statistics of an answer in one line."""
    stats = completion.statistics()
    line = (
        f"{len(completion.token_ids)} tokens, {stats['tokens_per_second']:.1f} tok/s, "
        f"first after {stats['time_to_first_token']:.2f} s, "
        f"accept length {stats['accept_length']:.2f} "
        f"({stats['accepted']} of {stats['drafted']} drafts in {stats['rounds']} rounds)"
    )
    if stats["simulated"]:
        line = f"SIMULATED acceptance, this is not the model's text: {line}"
    trouble = stats["drafter_trouble"]
    return f"{line}; drafts were missing: {trouble}" if trouble else line
