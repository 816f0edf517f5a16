# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What PAM says of an account. Of the accounts of others it tells the truth to root alone."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

LIBRARY = "libpam.so.0"
# Numbers of libpam's headers.
SUCCESS, PERMISSION_DENIED, ACCOUNT_EXPIRED = 0, 6, 13
_CONVERSATION_FAILED = 19
_ECHO_OFF, _ERROR_TEXT, _INFO_TEXT = 1, 3, 4
_FAIL_DELAY = 10
_NO_EMPTY_PASSWORD = 1


class Answer(NamedTuple):
    """:ivar text: what it means, in PAM's words."""

    status: int
    text: str


class _Message(ctypes.Structure):
    _fields_ = (("style", ctypes.c_int), ("text", ctypes.c_char_p))


class _Response(ctypes.Structure):
    _fields_ = (("text", ctypes.c_void_p), ("unused", ctypes.c_int))


_Converse = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int,
    ctypes.POINTER(ctypes.POINTER(_Message)),
    ctypes.POINTER(ctypes.POINTER(_Response)),
    ctypes.c_void_p,
)
_Delay = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p)


class _Conversation(ctypes.Structure):
    _fields_ = (("converse", _Converse), ("data", ctypes.c_void_p))


def check(service: str, user: str, password: str | None = None) -> Answer:
    """Whether somebody may log in at present; with a password, whether it is theirs, too.

    :param service: the name of the file in /etc/pam.d.
    :raises OSError: if the host has no PAM.
    """
    pam, libc = ctypes.CDLL(LIBRARY), ctypes.CDLL(None)
    libc.calloc.restype, libc.strdup.restype = ctypes.c_void_p, ctypes.c_void_p
    libc.calloc.argtypes, libc.strdup.argtypes = [ctypes.c_size_t, ctypes.c_size_t], [ctypes.c_char_p]
    pam.pam_strerror.restype = ctypes.c_char_p

    def converse(count: int, messages: Any, responses: Any, _data: Any) -> int:
        """PAM frees what it is given here."""
        styles = [messages[number].contents.style for number in range(count)]
        if any(style not in (_ECHO_OFF, _ERROR_TEXT, _INFO_TEXT) for style in styles):
            return _CONVERSATION_FAILED
        rows = ctypes.cast(libc.calloc(count, ctypes.sizeof(_Response)), ctypes.POINTER(_Response))
        for number, style in enumerate(styles):
            if style == _ECHO_OFF:
                rows[number].text = libc.strdup((password or "").encode())
        responses[0] = rows
        return SUCCESS

    def no_delay(_status: int, _microseconds: int, _data: Any) -> None:
        """Who asks waits, and in the same way whatever was wrong."""

    # They have to outlive the calls.
    answers, delay = _Converse(converse), _Delay(no_delay)
    handle, conversation = ctypes.c_void_p(), _Conversation(answers, None)
    status = pam.pam_start(service.encode(), user.encode(), ctypes.byref(conversation), ctypes.byref(handle))
    if status != SUCCESS:
        return Answer(status, f"PAM cannot begin with {service}")
    pam.pam_set_item(handle, _FAIL_DELAY, ctypes.cast(delay, ctypes.c_void_p))
    if password is not None:
        status = pam.pam_authenticate(handle, _NO_EMPTY_PASSWORD)
    if status == SUCCESS:
        status = pam.pam_acct_mgmt(handle, _NO_EMPTY_PASSWORD)
    text = (pam.pam_strerror(handle, status) or b"").decode("utf-8", "replace")
    pam.pam_end(handle, status)
    return Answer(status, text)
