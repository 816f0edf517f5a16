#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# A next version of Ceph for a machine that has one: its own packages, packed again under higher numbers, in a repository
# on the machine. The programs do the same as before, but are other files; what packages do to each other when they are
# upgraded is real. Usage: next_version.sh DIRECTORY
set -eu
directory=$1

mkdir -p "$directory"
cd "$directory"
packages=$(dpkg-query -Wf '${db:Status-Abbrev}|${source:Package}|${Package}\n' | sed -n 's/^ii |ceph|//p')
# shellcheck disable=SC2086 # they are words
apt-get -qq download $packages

# The packages of a version want each other in that very version.
renumbered='s/^(Version: .*)/\1+next1/'
for name in $packages; do
    renumbered="$renumbered;s/\\b$name \\(= ([^)]*)\\)/$name (= \\1+next1)/g"
done
for package in *.deb; do
    dpkg-deb --raw-extract "$package" tree
    rm "$package"
    sed -E -i "$renumbered" tree/DEBIAN/control
    dpkg-deb -Znone --build tree . >/dev/null
    rm -r tree
done

for package in *.deb; do
    dpkg-deb --field "$package"
    echo "Filename: ./$package"
    echo "Size: $(stat --format %s "$package")"
    echo "SHA256: $(sha256sum "$package" | cut -d ' ' -f 1)"
    echo
done >Packages
echo "deb [trusted=yes lang=none] file:$directory ./" >/etc/apt/sources.list.d/next-version.list
