# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes files without end and keeps, on the host's own disk, a journal of those that were acknowledged.

A file is in the journal only after it and its directory were synced, with the SHA-256 of what was written.
"""

import hashlib
import os
import sys
import time

place, journal = sys.argv[1:]
os.makedirs(place, exist_ok=True)
directory = os.open(place, os.O_RDONLY)
with open(journal, "a", encoding="ascii") as acknowledged:
    number = 0
    while True:
        content = os.urandom(16384)
        try:
            with open(os.path.join(place, str(number)), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.fsync(directory)
        except OSError:
            # It was refused, and is no promise; a cluster that was full may take it later.
            time.sleep(1)
            continue
        acknowledged.write(f"{hashlib.sha256(content).hexdigest()}  {number}\n")
        acknowledged.flush()
        os.fsync(acknowledged.fileno())
        number += 1
        time.sleep(0.1)
