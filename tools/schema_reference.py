"""The reference of the archive's schema, as Markdown, from the comments in the schema itself.

python tools/schema_reference.py    prints it
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from gen_protos import ROOT, SCHEMA
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

# The numbers of fields in descriptor.proto: a comment's path is made of them and of positions.
# https://github.com/protocolbuffers/protobuf/blob/main/src/google/protobuf/descriptor.proto
_SYNTAX: Final = (FileDescriptorProto.SYNTAX_FIELD_NUMBER,)
_MESSAGE: Final = FileDescriptorProto.MESSAGE_TYPE_FIELD_NUMBER
_ENUM: Final = FileDescriptorProto.ENUM_TYPE_FIELD_NUMBER
_FIELD: Final = DescriptorProto.FIELD_FIELD_NUMBER
_VALUE: Final = EnumDescriptorProto.VALUE_FIELD_NUMBER

Route = tuple[int, ...]
Comments = Mapping[Route, str]


def described() -> tuple[FileDescriptorProto, Comments]:
    """The schema, and the comment before each of its elements by path.

    Raises:
        subprocess.CalledProcessError: protoc refuses the schema.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "schema.bin"
        command = [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"-I{ROOT / 'schemas'}",
            "--include_source_info",
        ]
        subprocess.run([*command, f"--descriptor_set_out={out}", SCHEMA], check=True, cwd=ROOT)
        (file,) = FileDescriptorSet.FromString(out.read_bytes()).file
    comments = {
        tuple(location.path): location.leading_comments for location in file.source_code_info.location
    }
    return file, comments


def enum_comments(name: str) -> dict[str, str]:
    """What the values of an enum mean, by name without the enum's own; the unspecified one is left out."""
    file, comments = described()
    for number, enum in enumerate(file.enum_type):
        if enum.name == name:
            return {_short(enum, at): _line(comments, (_ENUM, number, _VALUE, at)) for at in _said(enum)}
    raise LookupError(name)


def page() -> str:
    """All messages, then all enums, each with its comment and a table."""
    file, comments = described()
    return "\n".join(_page(file, comments))


def _page(file: FileDescriptorProto, comments: Comments) -> Iterator[str]:
    yield "# Archive schema\n"
    yield f"Package `{file.package}`, from the comments in `schemas/{SCHEMA}`."
    yield "`protoc --decode memexport.archive.v1.Archive` reads a `.memx` file.\n"
    yield from _prose(comments[_SYNTAX])
    for number, message in enumerate(file.message_type):
        yield from _message(message, (_MESSAGE, number), comments)
    for number, enum in enumerate(file.enum_type):
        yield from _enum(enum, (_ENUM, number), comments)


def _message(message: DescriptorProto, path: Route, comments: Comments) -> Iterator[str]:
    yield f"\n## {message.name}\n"
    yield from _prose(comments[path])
    yield from ("\n| number | field | type | what it is |", "| ---: | --- | --- | --- |")
    for at, field in enumerate(message.field):
        meaning = _line(comments, (*path, _FIELD, at))
        yield f"| {field.number} | `{field.name}` | {_type(message, field)} | {meaning} |"


def _enum(enum: EnumDescriptorProto, path: Route, comments: Comments) -> Iterator[str]:
    yield f"\n## {enum.name}\n"
    yield from _prose(comments[path])
    yield from ("\n| number | value | what it means |", "| ---: | --- | --- |")
    for at, value in enumerate(enum.value):
        yield f"| {value.number} | `{value.name}` | {_line(comments, (*path, _VALUE, at))} |"


def _type(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    """As the schema writes it; a type of the schema's own is a link to its section."""
    for entry in message.nested_type:
        if entry.options.map_entry and field.type_name.endswith(f".{message.name}.{entry.name}"):
            key, value = (_type(entry, part) for part in entry.field)
            return f"map of {key} to {value}"
    label = "repeated " if field.label == FieldDescriptorProto.LABEL_REPEATED else ""
    label = "optional " if field.proto3_optional else label
    if field.type_name:
        name = field.type_name.rpartition(".")[2]
        return f"{label}[{name}](#{name.lower()})"
    return f"{label}`{FieldDescriptorProto.Type.Name(field.type).removeprefix('TYPE_').lower()}`"


def _prose(comment: str) -> Iterator[str]:
    """A comment as Markdown: what is indented in it is a drawing."""
    yield from (f"    {line}" if line.startswith("  ") else line.strip() for line in comment.splitlines())


def _line(comments: Comments, path: Route) -> str:
    """A comment in one cell of a table."""
    return " ".join(comments[path].split()).replace("|", r"\|")


def _said(enum: EnumDescriptorProto) -> Iterable[int]:
    return (at for at, value in enumerate(enum.value) if value.number)


def _short(enum: EnumDescriptorProto, at: int) -> str:
    """`COLUMN_ID_KIND` of ColumnId as `kind`: values begin with their enum's name."""
    words = sum(letter.isupper() for letter in enum.name)
    return "_".join(enum.value[at].name.split("_")[words:]).lower()


if __name__ == "__main__":
    print(page())
