# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A gRPC server at a socket, from a table of its methods."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes import protobuf

try:
    import grpc

    WHY_NOT = protobuf.WHY_NOT
except ImportError as missing:
    WHY_NOT = f"the Python library grpcio is not here ({missing})"

# Method -> (what it does, message that it gets, message that it gives; in a list it gives many).
Methods = Mapping[str, "tuple[Callable[[Any, Any], Any], str, str | list[str]]"]


def serve(path: str, services: Mapping[str, tuple[Mapping[str, Any], Methods]]) -> Any:
    """Listen at a socket, which replaces one that is there. Raises OSError where it cannot be made.

    :param services: the name of each, with its messages and its methods.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    server = grpc.server(ThreadPoolExecutor(8))
    for name, (types, methods) in services.items():
        handlers = {method: _handler(types, *row) for method, row in methods.items()}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
    try:
        is_bound = bool(server.add_insecure_port(f"unix://{path}"))
    except RuntimeError:
        is_bound = False
    if not is_bound:
        raise OSError(f"{path} cannot be listened on")
    server.start()
    os.chmod(path, 0o600)
    return server


def _handler(types: Mapping[str, Any], does: Callable[[Any, Any], Any], request: str, response: str | list[str]) -> Any:
    many = isinstance(response, list)
    makes = grpc.unary_stream_rpc_method_handler if many else grpc.unary_unary_rpc_method_handler
    writes = types[response[0] if isinstance(response, list) else response].SerializeToString
    return makes(does, request_deserializer=types[request].FromString, response_serializer=writes)


def call(path: str, method: str, request: Any, response: Any, timeout_s: float) -> Any:
    """Call a method of the server at a socket. Raises grpc.RpcError."""
    with grpc.insecure_channel(f"unix://{path}") as channel:
        does = channel.unary_unary(
            method, request_serializer=type(request).SerializeToString, response_deserializer=response.FromString
        )
        return does(request, timeout=timeout_s)
