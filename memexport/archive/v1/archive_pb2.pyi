from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Clock(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CLOCK_UNSPECIFIED: _ClassVar[Clock]
    CLOCK_UNIX: _ClassVar[Clock]
    CLOCK_INDEX: _ClassVar[Clock]

class ColumnId(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COLUMN_ID_UNSPECIFIED: _ClassVar[ColumnId]
    COLUMN_ID_KIND: _ClassVar[ColumnId]
    COLUMN_ID_TIME_UNIX_NS: _ClassVar[ColumnId]
    COLUMN_ID_DURATION_NS: _ClassVar[ColumnId]
    COLUMN_ID_NAME: _ClassVar[ColumnId]
    COLUMN_ID_MODULE: _ClassVar[ColumnId]
    COLUMN_ID_THREAD: _ClassVar[ColumnId]
    COLUMN_ID_STACK: _ClassVar[ColumnId]
    COLUMN_ID_PHASE: _ClassVar[ColumnId]
    COLUMN_ID_CATEGORY: _ClassVar[ColumnId]
    COLUMN_ID_DEVICE: _ClassVar[ColumnId]
    COLUMN_ID_STEP: _ClassVar[ColumnId]
    COLUMN_ID_RANK: _ClassVar[ColumnId]
    COLUMN_ID_SIZE_BYTES: _ClassVar[ColumnId]
    COLUMN_ID_ALLOCATED_BYTES: _ClassVar[ColumnId]
    COLUMN_ID_ACTIVE_BYTES: _ClassVar[ColumnId]
    COLUMN_ID_RESERVED_BYTES: _ClassVar[ColumnId]
    COLUMN_ID_ADDRESS: _ClassVar[ColumnId]
    COLUMN_ID_INPUTS: _ClassVar[ColumnId]
    COLUMN_ID_INPUT_BYTES: _ClassVar[ColumnId]
    COLUMN_ID_OUTPUT_BYTES: _ClassVar[ColumnId]

class Encoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENCODING_UNSPECIFIED: _ClassVar[Encoding]
    ENCODING_PLAIN: _ClassVar[Encoding]
    ENCODING_DICTIONARY: _ClassVar[Encoding]
    ENCODING_DELTA: _ClassVar[Encoding]
    ENCODING_END_TIME: _ClassVar[Encoding]
    ENCODING_LEVEL: _ClassVar[Encoding]
    ENCODING_ABOVE_ALLOCATED: _ClassVar[Encoding]

class EventKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVENT_KIND_UNSPECIFIED: _ClassVar[EventKind]
    EVENT_KIND_OPERATOR: _ClassVar[EventKind]
    EVENT_KIND_ALLOCATION: _ClassVar[EventKind]
    EVENT_KIND_RELEASE: _ClassVar[EventKind]
    EVENT_KIND_SAMPLE: _ClassVar[EventKind]
    EVENT_KIND_SPAN: _ClassVar[EventKind]
    EVENT_KIND_MARKER: _ClassVar[EventKind]

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_FORWARD: _ClassVar[Phase]
    PHASE_BACKWARD: _ClassVar[Phase]
    PHASE_RECOMPUTE: _ClassVar[Phase]
    PHASE_OPTIMIZER: _ClassVar[Phase]
    PHASE_OTHER: _ClassVar[Phase]

class Category(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CATEGORY_UNSPECIFIED: _ClassVar[Category]
    CATEGORY_PARAMETER: _ClassVar[Category]
    CATEGORY_BUFFER: _ClassVar[Category]
    CATEGORY_GRADIENT: _ClassVar[Category]
    CATEGORY_ACTIVATION: _ClassVar[Category]
    CATEGORY_TEMPORARY: _ClassVar[Category]
    CATEGORY_OPTIMIZER_STATE: _ClassVar[Category]
    CATEGORY_INPUT: _ClassVar[Category]
    CATEGORY_OTHER: _ClassVar[Category]
    CATEGORY_UNATTRIBUTED: _ClassVar[Category]
    CATEGORY_SHARDED_PARAMETER: _ClassVar[Category]
    CATEGORY_UNSHARDED_PARAMETER: _ClassVar[Category]
    CATEGORY_SHARDED_GRADIENT: _ClassVar[Category]
    CATEGORY_UNSHARDED_GRADIENT: _ClassVar[Category]
    CATEGORY_ALL_GATHER: _ClassVar[Category]
    CATEGORY_REDUCE_SCATTER: _ClassVar[Category]
CLOCK_UNSPECIFIED: Clock
CLOCK_UNIX: Clock
CLOCK_INDEX: Clock
COLUMN_ID_UNSPECIFIED: ColumnId
COLUMN_ID_KIND: ColumnId
COLUMN_ID_TIME_UNIX_NS: ColumnId
COLUMN_ID_DURATION_NS: ColumnId
COLUMN_ID_NAME: ColumnId
COLUMN_ID_MODULE: ColumnId
COLUMN_ID_THREAD: ColumnId
COLUMN_ID_STACK: ColumnId
COLUMN_ID_PHASE: ColumnId
COLUMN_ID_CATEGORY: ColumnId
COLUMN_ID_DEVICE: ColumnId
COLUMN_ID_STEP: ColumnId
COLUMN_ID_RANK: ColumnId
COLUMN_ID_SIZE_BYTES: ColumnId
COLUMN_ID_ALLOCATED_BYTES: ColumnId
COLUMN_ID_ACTIVE_BYTES: ColumnId
COLUMN_ID_RESERVED_BYTES: ColumnId
COLUMN_ID_ADDRESS: ColumnId
COLUMN_ID_INPUTS: ColumnId
COLUMN_ID_INPUT_BYTES: ColumnId
COLUMN_ID_OUTPUT_BYTES: ColumnId
ENCODING_UNSPECIFIED: Encoding
ENCODING_PLAIN: Encoding
ENCODING_DICTIONARY: Encoding
ENCODING_DELTA: Encoding
ENCODING_END_TIME: Encoding
ENCODING_LEVEL: Encoding
ENCODING_ABOVE_ALLOCATED: Encoding
EVENT_KIND_UNSPECIFIED: EventKind
EVENT_KIND_OPERATOR: EventKind
EVENT_KIND_ALLOCATION: EventKind
EVENT_KIND_RELEASE: EventKind
EVENT_KIND_SAMPLE: EventKind
EVENT_KIND_SPAN: EventKind
EVENT_KIND_MARKER: EventKind
PHASE_UNSPECIFIED: Phase
PHASE_FORWARD: Phase
PHASE_BACKWARD: Phase
PHASE_RECOMPUTE: Phase
PHASE_OPTIMIZER: Phase
PHASE_OTHER: Phase
CATEGORY_UNSPECIFIED: Category
CATEGORY_PARAMETER: Category
CATEGORY_BUFFER: Category
CATEGORY_GRADIENT: Category
CATEGORY_ACTIVATION: Category
CATEGORY_TEMPORARY: Category
CATEGORY_OPTIMIZER_STATE: Category
CATEGORY_INPUT: Category
CATEGORY_OTHER: Category
CATEGORY_UNATTRIBUTED: Category
CATEGORY_SHARDED_PARAMETER: Category
CATEGORY_UNSHARDED_PARAMETER: Category
CATEGORY_SHARDED_GRADIENT: Category
CATEGORY_UNSHARDED_GRADIENT: Category
CATEGORY_ALL_GATHER: Category
CATEGORY_REDUCE_SCATTER: Category

class Archive(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[Record]
    def __init__(self, records: _Optional[_Iterable[_Union[Record, _Mapping[str, object]]]] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("sync", "crc32", "header", "tables", "batch", "index", "footer")
    SYNC_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FOOTER_FIELD_NUMBER: _ClassVar[int]
    sync: int
    crc32: int
    header: Header
    tables: Tables
    batch: EventBatch
    index: Index
    footer: Footer
    def __init__(self, sync: _Optional[int] = ..., crc32: _Optional[int] = ..., header: _Optional[_Union[Header, _Mapping[str, object]]] = ..., tables: _Optional[_Union[Tables, _Mapping[str, object]]] = ..., batch: _Optional[_Union[EventBatch, _Mapping[str, object]]] = ..., index: _Optional[_Union[Index, _Mapping[str, object]]] = ..., footer: _Optional[_Union[Footer, _Mapping[str, object]]] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("schema_major", "schema_minor", "origin_format", "clock", "producer", "producer_version", "start_time_unix_ns", "host", "pid", "rank", "local_rank", "world_size", "torch_version", "python_version", "command_line", "options")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SCHEMA_MAJOR_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_MINOR_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FORMAT_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_VERSION_FIELD_NUMBER: _ClassVar[int]
    START_TIME_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    TORCH_VERSION_FIELD_NUMBER: _ClassVar[int]
    PYTHON_VERSION_FIELD_NUMBER: _ClassVar[int]
    COMMAND_LINE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    schema_major: int
    schema_minor: int
    origin_format: str
    clock: Clock
    producer: str
    producer_version: str
    start_time_unix_ns: int
    host: str
    pid: int
    rank: int
    local_rank: int
    world_size: int
    torch_version: str
    python_version: str
    command_line: _containers.RepeatedScalarFieldContainer[str]
    options: _containers.ScalarMap[str, str]
    def __init__(self, schema_major: _Optional[int] = ..., schema_minor: _Optional[int] = ..., origin_format: _Optional[str] = ..., clock: _Optional[_Union[Clock, str]] = ..., producer: _Optional[str] = ..., producer_version: _Optional[str] = ..., start_time_unix_ns: _Optional[int] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., rank: _Optional[int] = ..., local_rank: _Optional[int] = ..., world_size: _Optional[int] = ..., torch_version: _Optional[str] = ..., python_version: _Optional[str] = ..., command_line: _Optional[_Iterable[str]] = ..., options: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Tables(_message.Message):
    __slots__ = ("first_string", "strings", "first_stack", "stack_parents", "stack_frames", "first_device", "devices")
    FIRST_STRING_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    FIRST_STACK_FIELD_NUMBER: _ClassVar[int]
    STACK_PARENTS_FIELD_NUMBER: _ClassVar[int]
    STACK_FRAMES_FIELD_NUMBER: _ClassVar[int]
    FIRST_DEVICE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    first_string: int
    strings: _containers.RepeatedScalarFieldContainer[str]
    first_stack: int
    stack_parents: _containers.RepeatedScalarFieldContainer[int]
    stack_frames: _containers.RepeatedScalarFieldContainer[int]
    first_device: int
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    def __init__(self, first_string: _Optional[int] = ..., strings: _Optional[_Iterable[str]] = ..., first_stack: _Optional[int] = ..., stack_parents: _Optional[_Iterable[int]] = ..., stack_frames: _Optional[_Iterable[int]] = ..., first_device: _Optional[int] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping[str, object]]]] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("type", "index", "name", "uuid", "capacity_bytes")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    type: str
    index: int
    name: str
    uuid: str
    capacity_bytes: int
    def __init__(self, type: _Optional[str] = ..., index: _Optional[int] = ..., name: _Optional[str] = ..., uuid: _Optional[str] = ..., capacity_bytes: _Optional[int] = ...) -> None: ...

class EventBatch(_message.Message):
    __slots__ = ("first_event", "event_count", "columns", "dropped_events")
    FIRST_EVENT_FIELD_NUMBER: _ClassVar[int]
    EVENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_EVENTS_FIELD_NUMBER: _ClassVar[int]
    first_event: int
    event_count: int
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    dropped_events: int
    def __init__(self, first_event: _Optional[int] = ..., event_count: _Optional[int] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping[str, object]]]] = ..., dropped_events: _Optional[int] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("id", "encoding", "start", "values", "dictionary", "dictionary_count")
    ID_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    DICTIONARY_FIELD_NUMBER: _ClassVar[int]
    DICTIONARY_COUNT_FIELD_NUMBER: _ClassVar[int]
    id: ColumnId
    encoding: Encoding
    start: int
    values: Packed
    dictionary: Packed
    dictionary_count: int
    def __init__(self, id: _Optional[_Union[ColumnId, str]] = ..., encoding: _Optional[_Union[Encoding, str]] = ..., start: _Optional[int] = ..., values: _Optional[_Union[Packed, _Mapping[str, object]]] = ..., dictionary: _Optional[_Union[Packed, _Mapping[str, object]]] = ..., dictionary_count: _Optional[int] = ...) -> None: ...

class Packed(_message.Message):
    __slots__ = ("base", "width_bytes", "planes")
    BASE_FIELD_NUMBER: _ClassVar[int]
    WIDTH_BYTES_FIELD_NUMBER: _ClassVar[int]
    PLANES_FIELD_NUMBER: _ClassVar[int]
    base: int
    width_bytes: int
    planes: bytes
    def __init__(self, base: _Optional[int] = ..., width_bytes: _Optional[int] = ..., planes: _Optional[bytes] = ...) -> None: ...

class Index(_message.Message):
    __slots__ = ("batches",)
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[IndexEntry]
    def __init__(self, batches: _Optional[_Iterable[_Union[IndexEntry, _Mapping[str, object]]]] = ...) -> None: ...

class IndexEntry(_message.Message):
    __slots__ = ("offset", "event_count", "first_time_unix_ns", "last_time_unix_ns")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    EVENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    FIRST_TIME_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    LAST_TIME_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    offset: int
    event_count: int
    first_time_unix_ns: int
    last_time_unix_ns: int
    def __init__(self, offset: _Optional[int] = ..., event_count: _Optional[int] = ..., first_time_unix_ns: _Optional[int] = ..., last_time_unix_ns: _Optional[int] = ...) -> None: ...

class Footer(_message.Message):
    __slots__ = ("event_count", "string_count", "stack_count", "device_count", "index_offset", "warnings", "dropped_events", "alloc_retries", "ooms")
    EVENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    STRING_COUNT_FIELD_NUMBER: _ClassVar[int]
    STACK_COUNT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_COUNT_FIELD_NUMBER: _ClassVar[int]
    INDEX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_EVENTS_FIELD_NUMBER: _ClassVar[int]
    ALLOC_RETRIES_FIELD_NUMBER: _ClassVar[int]
    OOMS_FIELD_NUMBER: _ClassVar[int]
    event_count: int
    string_count: int
    stack_count: int
    device_count: int
    index_offset: int
    warnings: _containers.RepeatedScalarFieldContainer[str]
    dropped_events: int
    alloc_retries: int
    ooms: int
    def __init__(self, event_count: _Optional[int] = ..., string_count: _Optional[int] = ..., stack_count: _Optional[int] = ..., device_count: _Optional[int] = ..., index_offset: _Optional[int] = ..., warnings: _Optional[_Iterable[str]] = ..., dropped_events: _Optional[int] = ..., alloc_retries: _Optional[int] = ..., ooms: _Optional[int] = ...) -> None: ...
