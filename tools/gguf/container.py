"""Writes GGUF files of version 3."""

import struct
from typing import NamedTuple

ALIGNMENT = 32
INT32, FLOAT32, BOOL, STRING, ARRAY, UINT32 = 5, 6, 7, 8, 9, 4
FORMATS = {INT32: "i", FLOAT32: "f", BOOL: "?", UINT32: "I"}


class Stored(NamedTuple):
    """A tensor as it is stored; `shape` has the outermost dimension first."""

    name: str
    shape: tuple
    type_id: int
    data: bytes


def text(value):
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def kind_of(value):
    if isinstance(value, str):
        return STRING
    if isinstance(value, bool):
        return BOOL
    return FLOAT32 if isinstance(value, float) else UINT32


def element(kind, value):
    return text(value) if kind == STRING else struct.pack("<" + FORMATS[kind], value)


def key(name, value):
    if not isinstance(value, list):
        kind = kind_of(value)
        return text(name) + struct.pack("<I", kind) + element(kind, value)
    kind = kind_of(value[0]) if value else STRING
    kind = INT32 if kind == UINT32 else kind
    head = struct.pack("<IIQ", ARRAY, kind, len(value))
    return text(name) + head + b"".join(element(kind, each) for each in value)


def padded(data):
    return data + bytes(-len(data) % ALIGNMENT)


def write(path, keys, tensors):
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    head += b"".join(key(name, value) for name, value in keys.items())
    offset = 0
    for tensor in tensors:
        dims = [len(tensor.shape), *reversed(tensor.shape)]
        head += text(tensor.name) + struct.pack(f"<I{len(tensor.shape)}Q", *dims)
        head += struct.pack("<IQ", tensor.type_id, offset)
        offset += len(padded(tensor.data))
    path.write_bytes(padded(head) + b"".join(padded(tensor.data) for tensor in tensors))
