# SPDX-License-Identifier: GPL-3.0-or-later
"""What the host computes so that the GPU's results can be compared with it."""

from __future__ import annotations

import struct
from fractions import Fraction

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.accept import kernels


def test_the_complement_of_a_pattern_is_one():
    for _name, step, seed in kernels.PATTERNS:
        turned = kernels.complement(step, seed)
        for index in (0, 1, 2, 12345, 1 << 33):
            assert kernels.word(index, *turned) == kernels.word(index, step, seed) ^ kernels.MASK


@pytest.mark.parametrize("real", [kernels.FP32, kernels.FP64], ids=lambda real: real.kind)
def test_no_chain_leaves_its_bounds_and_no_two_ends_are_alike(real):
    starts, ends = (
        struct.unpack(f"<{kernels.LANES * kernels.CHAINS}{real.format}", part) for part in kernels.real_data(real)
    )
    assert len(set(ends)) == len(ends)
    assert max(map(abs, (*starts, *ends))) < 1.001


def test_numbers_are_rounded_once_and_to_even():
    assert kernels.rounded(0b10001, 4) == 0b10000
    assert kernels.rounded(0b10011, 4) == 0b10100
    assert kernels.rounded(-0b10001, 4) == -0b10000
    for value in (3**80, -(7**70), 10**30 + 1):
        assert kernels.rounded(value, 53) == Fraction(float(value))


def test_a_wrong_bit_in_a_chain_gives_a_wrong_end_in_most_cases():
    changed = 0
    for start in kernels.seeds(kernels.FP64):
        bits = struct.unpack("<Q", struct.pack("<d", start))[0] ^ 1
        other = struct.unpack("<d", struct.pack("<Q", bits))[0]
        changed += kernels.chain(kernels.FP64, start) != kernels.chain(kernels.FP64, other)
    assert changed > 0.5 * kernels.LANES * kernels.CHAINS


def test_every_number_of_a_matrix_is_in_one_lane():
    for place, count, shape in (
        (kernels.place_in_a, 8, (kernels.ROWS, kernels.DEPTH)),
        (kernels.place_in_b, 4, (kernels.DEPTH, kernels.COLUMNS)),
        (kernels.place_in_c, 4, (kernels.ROWS, kernels.COLUMNS)),
    ):
        seen = [place(lane, element) for lane in range(kernels.LANES) for element in range(count)]
        assert sorted(seen) == [(row, column) for row in range(shape[0]) for column in range(shape[1])]


def test_sums_of_products_are_exact_whatever_their_order():
    results = struct.unpack(f"<{kernels.SETS * kernels.ROWS * kernels.COLUMNS}f", kernels.bf16_data()[2])
    assert all(value == int(value) for value in results)
    # Of every partial sum, too.
    assert kernels.PRODUCTS * kernels.DEPTH * kernels.LARGEST**2 < 1 << 20


def test_reports_are_read():
    report = struct.pack("<I12x", 2) + struct.pack("<QQ", 77, 8) + struct.pack("<QQ", 99, 1) + bytes(14 * 16)
    assert kernels.memory_errors(report) == (2, [(77, 8), (99, 1)])
    report = struct.pack("<I12x", 3) + struct.pack("<IIIx3x", 5, 4, 3) + bytes(15 * 16)
    assert kernels.compute_errors(report) == (3, [5])
