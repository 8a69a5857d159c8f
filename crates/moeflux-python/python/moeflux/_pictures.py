"""Pictures in messages: what users write for them, and their bytes."""

from __future__ import annotations

import base64
import binascii
import io
import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

from moeflux._errors import Error
from moeflux._values import is_list, path_of, refused

#: Bytes that are read of a picture's file: above the limit of the model, which refuses what is longer.
_MAX_BYTES = 32 << 20

#: Types of parts that are pictures: those of transformers and Anthropic, and of OpenAI's two interfaces.
_TYPES = ("image", "image_url", "input_image")

#: Keys of such parts that have the picture.
_KEYS = ("image", "image_url", "source", "path", "url", "base64", "data")

#: Modes of Pillow that PNG files have.
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")

_REMEDY = "a path, bytes, a data URL or an image of Pillow is needed"


def taken_out(messages: Sequence[object]) -> tuple[list[object], list[bytes]]:
    """Messages with their pictures' numbers in place of pictures, and the pictures."""
    pictures: list[bytes] = []
    return [_without(message, f"messages[{nth}]", pictures) for nth, message in enumerate(messages)], pictures


def _without(message: object, at: str, pictures: list[bytes]) -> object:
    if not isinstance(message, Mapping):
        return message
    fields = cast("Mapping[str, object]", message)
    content = fields.get("content")
    if not is_list(content):
        return fields
    parts: list[object] = []
    for nth, part in enumerate(cast("Sequence[object]", content)):
        if _is_picture(part):
            picture = cast("Mapping[str, object]", part)
            pictures.append(_bytes_of_part(picture, f"{at}.content[{nth}]"))
            parts.append({"type": "image", "picture": str(len(pictures) - 1), "detail": _detail(picture)})
        else:
            parts.append(part)
    return {**fields, "content": parts}


def _is_picture(part: object) -> bool:
    return isinstance(part, Mapping) and cast("Mapping[str, object]", part).get("type") in _TYPES


def _detail(part: Mapping[str, object]) -> str:
    inner = part.get("image_url")
    own = cast("Mapping[str, object]", inner).get("detail") if isinstance(inner, Mapping) else None
    return "low" if (own or part.get("detail")) == "low" else "auto"


def _bytes_of_part(part: Mapping[str, object], at: str) -> bytes:
    key = _key_of(part, at)
    name, value = f"{at}.{key}", part[key]
    if isinstance(value, Mapping):
        inner = cast("Mapping[str, object]", value)
        key = _key_of(inner, name)
        name, value = f"{name}.{key}", inner[key]
    return _decoded(value, name) if key in ("base64", "data") and isinstance(value, str) else _bytes_of(value, name)


def _key_of(part: Mapping[str, object], at: str) -> str:
    key = next((key for key in _KEYS if part.get(key) is not None), None)
    if key is None:
        raise Error(f"{at}: it has no picture; write {{'type': 'image', 'image': 'cat.jpg'}}", "request", "messages")
    return key


def _bytes_of(value: object, name: str) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(cast("Any", value))
    if isinstance(value, str) and value.startswith("data:"):
        return _decoded(value.partition(",")[2], name)
    if isinstance(value, str) and value.startswith(("http://", "https://")):
        raise refused(name, value, "addresses are not fetched; give the bytes of the picture", "request")
    if isinstance(value, (str, os.PathLike)):
        return _read(path_of(cast("object", value), name), name)
    if hasattr(value, "save") and hasattr(value, "mode"):
        return _png(cast("Any", value), name)
    raise refused(name, value, _REMEDY)


def _decoded(text: str, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Error(f"{name}: it is no base64 ({error})", "request", "messages") from None


def _read(path: str, name: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_MAX_BYTES)
    except OSError as error:
        raise refused(name, path, f"it cannot be read ({error.strerror or error})") from None


def _png(image: Any, name: str) -> bytes:
    file = io.BytesIO()
    try:
        drawn = image if image.mode in _PNG_MODES else image.convert("RGB")
        drawn.save(file, "PNG")
    except Exception as error:
        # Images are of any class, and read their files late.
        raise refused(name, image, f"no PNG can be made of it ({error})") from error
    return file.getvalue()
