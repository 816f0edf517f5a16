# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages of gRPC interfaces, made from tables as the process starts.

Code that protoc writes works with one range of versions of the protobuf library. These tables work with the one that
the host's distribution has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    WHY_NOT = ""
except ImportError as missing:
    WHY_NOT = f"the Python library protobuf is not here ({missing})"

# Message -> field number -> (name, type). A type is a word of SCALARS or another message; in a list it is repeated, and
# in a mapping it is the type of the values, whose keys are texts.
Table = Mapping[str, Mapping[int, tuple[str, Any]]]

SCALARS = ("string", "bool", "int32", "int64", "uint64")


def messages(package: str, table: Table) -> dict[str, Any]:
    """The class of each message of a package."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in table.items():
        message = file.message_type.add(name=name)
        for number, (field, kind) in fields.items():
            _add_field(message, f".{package}", number, field, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: _class_of(pool, f"{package}.{name}") for name in table}


def _add_field(message: Any, package: str, number: int, name: str, kind: Any) -> None:
    field = message.field.add(name=name, number=number)
    field.label = field.LABEL_REPEATED if isinstance(kind, (list, dict)) else field.LABEL_OPTIONAL
    if isinstance(kind, dict):
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        _add_field(entry, package, 1, "key", "string")
        _add_field(entry, package, 2, "value", kind["string"])
        field.type, field.type_name = field.TYPE_MESSAGE, f"{package}.{message.name}.{entry.name}"
        return
    kind = kind[0] if isinstance(kind, list) else kind
    if kind in SCALARS:
        field.type = getattr(field, f"TYPE_{kind.upper()}")
    else:
        field.type, field.type_name = field.TYPE_MESSAGE, f"{package}.{kind}"


def _class_of(pool: Any, name: str) -> Any:
    descriptor = pool.FindMessageTypeByName(name)
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    # Before protobuf 4.22, as in Debian 12.
    return message_factory.MessageFactory(pool).GetPrototype(descriptor)
