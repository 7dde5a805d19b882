"""Pickles that nobody should load: each disguised as a recording, made here, never stored."""

from __future__ import annotations

import functools
import os
import pickle
import struct
from collections.abc import Callable
from typing import Any

PROTO = b"\x80\x04"
STOP = b"."


class Calls:
    """Something that runs a function when it is unpickled."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def text(string: str) -> bytes:
    """The operation that makes the string."""
    return b"X" + struct.pack("<I", len(string)) + string.encode()


def snapshot(traces: bytes, protocol: bytes = PROTO) -> bytes:
    """A snapshot whose traces are what these operations make."""
    return protocol + b"}(" + text("segments") + b"]" + text("device_traces") + traces + b"u."


def entries(operations: bytes) -> bytes:
    """A snapshot with these entries in its only trace."""
    return snapshot(b"](](" + operations + b"ee")


def entry(**values: bytes) -> bytes:
    """An entry of a trace with these values, and an action."""
    items = {"action": text("alloc"), **values}
    return b"}(" + b"".join(text(key) + value for key, value in items.items()) + b"u"


def segments(operations: bytes) -> bytes:
    """A snapshot with these segments."""
    return PROTO + b"}(" + text("device_traces") + b"]" + text("segments") + b"](" + operations + b"eu."


def segment(**values: bytes) -> bytes:
    """A segment."""
    items = {"address": b"K\x01", "total_size": b"K\x08", **values}
    return b"}(" + b"".join(text(key) + value for key, value in items.items()) + b"u"


def block(**values: bytes) -> bytes:
    """A block."""
    items = {"size": b"K\x08", "state": text("inactive"), **values}
    return b"}(" + b"".join(text(key) + value for key, value in items.items()) + b"u"


def nested_laughs(levels: int) -> bytes:
    """A list that holds another ten times, which holds another ten times, and so on."""
    made, end = b"", b""
    for level in range(levels):
        made += b"]q" + bytes([level]) + b"("
        end = (b"h" + bytes([level + 1])) * 9 + b"e" + end
    return made + b"]q" + bytes([levels]) + end


def nested_keys(levels: int) -> bytes:
    """A dict with a key whose hash takes 2**levels steps."""
    key = b")q\x00" + b"".join(b"h" + bytes([n]) + b"\x86q" + bytes([n + 1]) for n in range(levels))
    return b"}" + key + b"Ns"


def forbidden_operations() -> dict[str, bytes]:
    """Every operation that can call, import, recurse, look up or reach around, by its name."""
    line = b"os\nsystem\n"
    return {
        "GLOBAL": b"c" + line,
        "STACK_GLOBAL": text("os") + text("system") + b"\x93",
        "INST": b"(" + text("true") + b"i" + line,
        "OBJ": b"(c" + line + text("true") + b"o",
        "REDUCE": b"}" + text("true") + b"\x85R",
        "BUILD": b"}}b",
        "NEWOBJ": b"})\x81",
        "NEWOBJ_EX": b"})}\x92",
        "EXT1": b"\x82\x01",
        "EXT2": b"\x83\x01\x00",
        "EXT4": b"\x84\x01\x00\x00\x00",
        "PERSID": b"P1\n",
        "BINPERSID": b"K\x01Q",
        "NEXT_BUFFER": b"\x97",
        "READONLY_BUFFER": b"C\x01x\x98",
        "BYTEARRAY8": b"\x96" + struct.pack("<Q", 1) + b"x",
        "EMPTY_SET": b"\x8f",
        "ADDITEMS": b"](K\x01\x90",
        "FROZENSET": b"(K\x01\x91",
        "POP": b"NN0",
        "POP_MARK": b"N(N1",
        "DUP": b"N2",
        "INT": b"I1\n",
        "LONG": b"L1L\n",
        "FLOAT": b"F1\n",
        "STRING": b"S'x'\n",
        "UNICODE": b"Vx\n",
        "DICT": b"(d",
        "LIST": b"(l",
        "PUT": b"Np0\n",
        "GET": b"g0\n",
        "SHORT_BINSTRING": b"U\x01x",
        "BINSTRING": b"T\x01\x00\x00\x00x",
        "an unknown one": b"\xff",
    }


def bombs() -> dict[str, bytes]:
    """Small files that describe what is large or takes long."""
    many = 1_000_000
    frame = b"}" + text("name") + text("f") + b"sq\x01"
    kept = {"lists": b"]", "dicts": b"}", "tuples": b"N\x85", "strings": b"\x8c\x01a"}
    return {
        "a memo index of 2**31": entries(b"Nr" + struct.pack("<I", 2**31 - 1)),
        "a memo index of 2**32": entries(b"Nr" + struct.pack("<I", 2**32 - 1)),
        "an integer of 2**31 bytes": entries(b"\x8b" + struct.pack("<i", 2**31 - 1)),
        "an integer of a negative length": entries(b"\x8b" + struct.pack("<i", -1)),
        "an integer of 255 bytes": entries(b"\x8a\xff" + bytes(255)),
        "a string of 2**32 bytes": entries(b"X" + struct.pack("<I", 2**32 - 1)),
        "a string of 2**63 bytes": entries(b"\x8d" + struct.pack("<Q", 2**63)),
        "bytes of 2**63 bytes": entries(b"\x8e" + struct.pack("<Q", 2**63)),
        "bytes of 2**32 bytes": entries(b"B" + struct.pack("<I", 2**32 - 1)),
        "a frame longer than the file": PROTO + b"\x95" + struct.pack("<Q", 2**40) + entries(b"")[2:],
        "a second frame longer than the file": PROTO + b"\x95" + struct.pack("<Q", 2) + b"}("
        b"\x95" + struct.pack("<Q", 2**63) + entries(b"")[4:],
        "a million marks": entries(b"(" * many),
        "a million lists in each other": entries(b"]" * many),
        "a million dicts": entries(b"}" * many),
        "a million values": entries(b"N" * many),
        "a million tuples in each other": entries(b")" + b"\x85" * many),
        "a million times MEMOIZE": entries(b"N" + b"\x94" * many),
        "a million lists in a list": snapshot(b"](" + (b"](" + b"]" * 1_000 + b"e") * 1_000 + b"e"),
        **{
            f"{name} that are kept": PROTO + b"}(" + text("x") + b"]" + (b"(" + made * 1_000 + b"e") * 2_000
            + text("device_traces") + b"]u."
            for name, made in kept.items()
        },
        "lists ten times in each other, as metadata": entries(entry(user_metadata=nested_laughs(30))),
        "tuples in each other as a key": entries(nested_keys(60)),
        "a dict as a key": entries(b"}}Ns"),
        "one entry a million times": entries(entry() + b"q\x00" + (b"h\x00" * 1_000 + b"e(") * 100),
        "one trace a million times": snapshot(b"](](" + entry() + b"eq\x00" + b"h\x00" * 90_000 + b"e"),
        "one long trace a thousand times": snapshot(
            b"](](" + (entry() * 1_000 + b"e(") * 20 + b"eq\x00" + b"h\x00" * 1_000 + b"e"
        ),
        "one list of blocks in two segments": segments(
            segment(blocks=b"](" + block() * 1_000 + b"eq\x00") + segment(blocks=b"h\x00") * 100
        ),
        "a stack of 250,000 calls": entries(
            entry(frames=b"](" + frame + b"e")
            + entry(frames=b"](" + (b"h\x01" * 50_000 + b"e(") * 5 + b"h\x01e")
        ),
        "a name of a megabyte in a thousand frames": entries(
            entry(
                frames=b"](}(" + text("name") + text("n" * 1_000_000) + b"q\x01u"
                + b"".join(
                    b"}(" + text("name") + b"h\x01" + text("line") + b"M" + struct.pack("<H", n) + b"u"
                    for n in range(1_000)
                )
                + b"e"
            )
        ),
        "a trace that contains itself": snapshot(b"](]q\x00(h\x00ee"),
        "a dict that contains itself as metadata": entries(
            b"}q\x00(" + text("action") + text("a") + text("user_metadata") + b"h\x00u"
        ),
    }  # fmt: skip


def wrong_shapes() -> dict[str, bytes]:
    """Pickles that do nothing, but are no snapshots."""
    return {
        "a number": PROTO + b"K\x01.",
        "a string": PROTO + text("device_traces") + b".",
        "an empty dict": PROTO + b"}.",
        "a dict of other things": PROTO + b"}" + text("x") + b"Ns.",
        "a list of numbers": PROTO + b"](K\x01K\x02e.",
        "traces that are a dict": snapshot(b"}"),
        "traces that are a number": snapshot(b"K\x01"),
        "a trace that is a number": snapshot(b"](K\x01e"),
        "an entry that is a number": entries(b"K\x01"),
        "an entry without an action": entries(b"}"),
        "an action that is a number": entries(entry(action=b"K\x01")),
        "a negative address": entries(entry(addr=b"J\xff\xff\xff\xff")),
        "an address of 65 bits": entries(entry(addr=b"\x8a\x09" + bytes(8) + b"\x01")),
        "a negative size": entries(entry(size=b"J\xff\xff\xff\xff")),
        "a size of 64 bits": entries(entry(size=b"\x8a\x09" + bytes(7) + b"\x80\x00")),
        "a size that is a string": entries(entry(size=text("8"))),
        "a size that is true": entries(entry(size=b"\x88")),
        "a time that is a fraction": entries(entry(time_us=b"G?\xf0\x00\x00\x00\x00\x00\x00")),
        "a time after the end of time": entries(entry(time_us=b"\x8a\x08" + bytes(7) + b"\x7f")),
        "a stream of 65 bits": entries(entry(stream=b"\x8a\x09" + bytes(8) + b"\x01")),
        "frames that are a string": entries(entry(frames=text("x"))),
        "a frame that is a number": entries(entry(frames=b"]K\x01a")),
        "a frame whose name is a list": entries(entry(frames=b"]}" + text("name") + b"]sa")),
        "an entry as a frame": entries(entry() + b"q\x00" + entry(frames=b"]h\x00a")),
        "a trace as frames": entries(entry(frames=b"]q\x00" + entry() + b"a") + entry(frames=b"K\x01")),
        "a segment that is a list": segments(b"]"),
        "a segment without an address": segments(b"}" + text("total_size") + b"K\x01s"),
        "a segment of device 10**6": segments(segment(device=b"J\x40\x42\x0f\x00")),
        "blocks that are a dict": segments(segment(blocks=b"}")),
        "a block without a size": segments(segment(blocks=b"]}" + text("state") + text("x") + b"sa")),
        "a block without a state": segments(segment(blocks=b"]}" + text("size") + b"K\x01sa")),
        "a pool of three numbers": segments(segment(segment_pool_id=b"K\x01K\x01K\x01\x87")),
        "an annotation without a name": PROTO + b"}(" + text("device_traces") + b"]"
        + text("external_annotations") + b"]}au.",
        "a key that is set twice": PROTO + b"}(" + (text("device_traces") + b"]") * 2 + b"u.",
        "a memo index that was never set": entries(b"h\x07"),
        "a memo index that is set twice": entries(b"Nq\x00Nq\x00"),
        "a stack that is too short": PROTO + b"}" + text("device_traces") + b"u.",
        "two values": PROTO + b"N" + entries(b"")[2:],
        "data after its end": entries(b"") + b"x",
        "a string that is not UTF-8": entries(entry(action=b"\x8c\x01\xff")),
        "a global as a value": entries(entry(user_metadata=b"cbuiltins\nint\n")),
    }  # fmt: skip


def system_calls(command: str) -> dict[str, bytes]:
    """os.system in every protocol, where a snapshot and where a tracker's recording has something."""
    made = {}
    for protocol in range(6):
        for key in ("device_traces", "memories_allocated"):
            value = {key: Calls(os.system, command), "markers": {}}
            made[f"os.system as {key}, protocol {protocol}"] = pickle.dumps(value, protocol)
        made[f"os.system alone, protocol {protocol}"] = pickle.dumps(Calls(os.system, command), protocol)
    return made


def cuts() -> dict[str, bytes]:
    """A pickle that ends too early."""
    whole = entries(entry(addr=b"\x8a\x01\x05", size=b"M\x05\x05", user_metadata=text("abc")))
    return {f"cut after byte {length}": whole[:length] for length in range(1, len(whole), 7)}


@functools.cache
def hostile(command: str) -> dict[str, bytes]:
    """All of them, by name."""
    forbidden = {
        f"operation {name}": entries(entry(user_metadata=code))
        for name, code in forbidden_operations().items()
    }
    return {**forbidden, **bombs(), **wrong_shapes(), **system_calls(command), **cuts()}
