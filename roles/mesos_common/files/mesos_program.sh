#!/bin/sh
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Becomes a program of Mesos: mesos-program PREFIX NAME ARGUMENTS. Some install it to sbin, others to bin.
prefix=$1 name=$2
shift 2
for directory in sbin bin; do
    if [ -x "$prefix/$directory/$name" ]; then
        exec "$prefix/$directory/$name" "$@"
    fi
done
echo "$name is neither in $prefix/sbin nor in $prefix/bin" >&2
exit 127
