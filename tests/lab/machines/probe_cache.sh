#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Stands before ccache as the compiler of kernel modules in a machine of the lab. A driver's build begins with hundreds
# of programs of a few lines (conftest1234.c), to learn what the kernel has. Each is called after the number of a process,
# so that ccache never knows it again; and most fail, which ccache does not keep. Here they are known by what is in them,
# and what became of them is kept either way. They are asked for their exit status and object file only.
set -u

compiler=${0##*/}
export PATH="${PATH#"${0%/*}":}" # or ccache would take this for the compiler
probe=
compiles=
headers=
for word; do
    case $word in
    conftest[0-9]*.c) probe=$word ;;
    -c) compiles=yes ;;
    */generated/autoconf.h) headers=$word ;;
    esac
done
# Not by ccache's link of the compiler's name: it comes only after all packages are configured, drivers among them.
if [ -z "$compiles" ] || [ ! -f "$probe" ] || [ ! -f "$headers" ]; then
    exec ccache "$compiler" "$@"
fi

object=${probe%.c}.o
# Another compiler, other headers of the kernel, other options or another program make it another probe.
key=$({
    stat --dereference --format "%n %s %Y" "/usr/bin/$compiler" "$headers"
    printf "%s\n" "$PWD" "$@" | sed "s/conftest[0-9]*/conftest/g"
    cat "$probe" conftest/*.h
} 2>/dev/null | sha256sum)
kept=$(ccache --get-config cache_dir)/probes/${key%% *}
if [ -e "$kept.o" ]; then
    exec cp "$kept.o" "$object"
fi
if [ -e "$kept.failed" ]; then
    exit 1
fi

said=$(mktemp)
ccache "$compiler" "$@" 2>"$said"
status=$?
cat "$said" >&2
mkdir -p "${kept%/*}"
if [ "$status" = 0 ] && [ -e "$object" ]; then
    # Another machine may write the same at the same time.
    cp "$object" "$kept.$$.part" && mv "$kept.$$.part" "$kept.o"
elif grep -Eq "[0-9]: (fatal )?error: " "$said"; then
    # A line of the program is wrong; a compiler that was killed, or found the disk full, names none.
    : >"$kept.failed"
fi
rm "$said"
exit "$status"
