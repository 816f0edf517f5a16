#!/bin/sh
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Before a program of Mesos starts: mesos-show PREFIX [LINK]. The loader is shown the libraries of this program, where
# the module mesos_libraries has made links to them, and no others of a program that was there before.
links=$1/baremetal-gpu-lib shown=${2:-/opt/mesos/lib}
if [ -d "$links" ]; then
    [ "$(readlink "$shown")" = "$links" ] || ln -sfnT "$links" "$shown"
elif [ -L "$shown" ]; then
    rm -f "$shown"
else
    exit 0
fi
exec ldconfig
