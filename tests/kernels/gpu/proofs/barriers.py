"""Whether the threads of a program wait for each other before they touch what others hold.

The interpreter has no threads. In compiled code every way through a kernel is followed: a tensor
that was written is read, and one that was read is written, only behind a barrier. Where each thread
keeps to elements of its own there is no need for one; here nobody knows.

Tensors are told apart by the parameter that an address was computed from.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_LINE = re.compile(
    r"^\s*(?:(?P<label>\$\w+):|(?P<guard>@!?%\w+\s+)?(?P<op>[a-z][\w.:]*)(?P<rest>.*))"
)
_REGISTER = re.compile(r"%rd\d+")
_PARAMETER = re.compile(r"_param_(\d+)\]")
_ADDRESS = re.compile(r"\[\s*(%rd\d+)")
_MOVES = ("ld.param", "ld.shared", "st.shared", "add", "sub", "mad", "mov", "or", "selp")
"""What addresses are computed and passed on by."""
_SHARED = "shared"
_OPPOSITE = {"read": "written", "written": "read"}

Access = tuple[str, int]
"""What was done to which tensor: the number of its parameter."""


class _Line(NamedTuple):
    op: str
    rest: str
    is_guarded: bool


class _Block(NamedTuple):
    """Instructions after each other, and the labels of what may follow."""

    lines: list[_Line]
    next_labels: list[str]


def races(ptx: str) -> set[Access]:
    """Return how tensors are touched without a barrier after what was done to them before."""
    blocks = _blocks(ptx)
    tensors = _tensors_of_addresses([line for block in blocks.values() for line in block.lines])
    before: dict[str, set[Access]] = {label: set() for label in blocks}
    found: set[Access] = set()
    todo = list(blocks)
    while todo:
        block, open_accesses = blocks[todo[-1]], set(before[todo.pop()])
        for line in block.lines:
            if line.op.startswith("bar"):
                open_accesses.clear()
            for done, tensor in _accesses(line, tensors):
                if (_OPPOSITE[done], tensor) in open_accesses:
                    found.add((done, tensor))
                open_accesses.add((done, tensor))
        for label in block.next_labels:
            if not open_accesses <= before[label]:
                before[label] |= open_accesses
                todo.append(label)
    return found


def _blocks(ptx: str) -> dict[str, _Block]:
    """Return what lies between labels and branches, by labels; those of no label have one, too."""
    blocks, label = {"": _Block([], [])}, ""
    for line in filter(None, map(_LINE.match, ptx[ptx.index("{") :].splitlines())):
        ends, goes_on = _end(blocks[label])
        if line["label"] or ends:
            after = line["label"] or f"{label}'"
            if goes_on:
                blocks[label].next_labels.append(after)
            label = after
            blocks[label] = _Block([], [])
        if line["op"]:
            blocks[label].lines.append(_Line(line["op"], line["rest"], bool(line["guard"])))
            if line["op"].startswith("bra"):
                blocks[label].next_labels.append(line["rest"].strip(" \t;"))
    return blocks


def _end(block: _Block) -> tuple[bool, bool]:
    """Return whether a block has ended, and whether what comes next in the text can follow."""
    ends = bool(block.lines) and block.lines[-1].op.startswith(("bra", "ret"))
    return ends, not ends or block.lines[-1].is_guarded


def _accesses(line: _Line, tensors: dict[str, set[int]]) -> Iterator[Access]:
    if line.op.startswith(("st.global", "ld.global", "cp.async.c")) and "global" in line.op:
        # Of a copy the source comes last.
        found = tensors[_ADDRESS.findall(line.rest)[-1]]
        assert found, f"an address of no tensor: {line}"
        done = "written" if line.op.startswith("st") else "read"
        yield from ((done, tensor) for tensor in found)


def _tensors_of_addresses(lines: Iterable[_Line]) -> dict[str, set[int]]:
    """Return the parameters that each register was computed from."""
    tensors: dict[str, set[int]] = defaultdict(set)
    flows = [flow for line in lines if (flow := _flow(line))]
    changed = True
    while changed:
        changed = False
        for target, sources, parameters in flows:
            known = parameters.union(*(tensors[source] for source in sources))
            if not known <= tensors[target]:
                tensors[target] |= known
                changed = True
    return tensors


def _flow(line: _Line) -> tuple[str, list[str], set[int]] | None:
    """Return where an address may go to, and from which registers and parameters."""
    registers = _REGISTER.findall(line.rest)
    if not line.op.startswith(_MOVES) or not registers:
        return None
    # What lies in shared memory is taken as one register.
    if line.op.startswith("st.shared"):
        return _SHARED, registers, set()
    if line.op.startswith("ld.shared"):
        return registers[0], [_SHARED], set()
    parameters = {int(number) for number in _PARAMETER.findall(line.rest)}
    return registers[0], registers[1:], parameters
