"""pprof profiles, decoded with a schema that knows nothing of the exporter, into plain values."""

from __future__ import annotations

import functools
import gzip
import importlib.resources
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

SCHEMA = Path(__file__).parents[2] / "data" / "pprof" / "profile.proto"


class Sample(NamedTuple):
    """One sample: its stack outermost first, as "function" or "function file:line"."""

    stack: tuple[str, ...]
    allocated_count: int
    allocated_bytes: int
    count: int
    bytes: int
    labels: dict[str, str]


@functools.cache
def profile_class() -> Any:
    """The class of the message Profile."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder) / "set"
        include = importlib.resources.files("grpc_tools") / "_proto"
        arguments = [f"-I{SCHEMA.parent}", f"-I{include}", f"--descriptor_set_out={compiled}", str(SCHEMA)]
        assert protoc.main(["protoc", *arguments]) == 0
        files = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("memexport.tests.pprof.Profile"))


def decoded(path: Path) -> Any:
    """The message in a file. It has no field that the schema does not."""
    content = gzip.decompress(path.read_bytes())
    profile = profile_class().FromString(content)
    profile.DiscardUnknownFields()
    assert profile.ByteSize() == len(content)
    return profile


def samples(profile: Any) -> list[Sample]:
    """In their order. Every id that is used is there once, and 0 is the empty string."""
    text = profile.string_table
    assert text[0] == ""
    assert len(set(text)) == len(text)
    functions = {function.id: function for function in profile.function}
    locations = {location.id: location for location in profile.location}
    assert len(functions) == len(profile.function)
    assert len(locations) == len(profile.location)
    assert {location.mapping_id for location in profile.location} <= {m.id for m in profile.mapping}

    def frame(location: int) -> str:
        (line,) = locations[location].line
        function = functions[line.function_id]
        place = f" {text[function.filename]}:{line.line}" if function.filename else ""
        return text[function.name] + place

    return [
        Sample(
            tuple(map(frame, reversed(sample.location_id))),
            *sample.value,
            {text[label.key]: text[label.str] for label in sample.label},
        )
        for sample in profile.sample
    ]
