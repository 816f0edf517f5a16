# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernels that put a GPU under load, as PTX text, and the results that they must have.

Every result is exact. The host computes it with whole numbers, and a thread of the GPU compares each of its results
with it, so that a single wrong bit in hours of work is counted and has a place.

A kernel reports into a buffer: the number of errors as u32, then from byte 16 on the first REPORTED of them, 16 bytes
each. PTX ISA has the meaning of every instruction: https://docs.nvidia.com/cuda/parallel-thread-execution/
"""

from __future__ import annotations

import functools
import math
import struct
from dataclasses import dataclass

REPORTED = 16
REPORT_BYTES = 16 * (REPORTED + 1)
MASK = (1 << 64) - 1
LANES = 32

# --- Memory -----------------------------------------------------------------------------------------------------------

FILL, CHECK = "accept_fill", "accept_check"

# Word i of the memory is i * step + seed: a pattern of one word where the step is 0, and one that tells every address
# from every other where it is odd. The complement of such a pattern is one too.
ADDRESS_STEP = 0x9E3779B97F4A7C15
PATTERNS = (
    ("zeros and ones", 0, 0),
    ("0x55 and 0xAA", 0, 0x5555555555555555),
    ("0x33 and 0xCC", 0, 0x3333333333333333),
    ("address", ADDRESS_STEP, 0x0123456789ABCDEF),
)


def word(index: int, step: int, seed: int) -> int:
    return (index * step + seed) & MASK


def complement(step: int, seed: int) -> tuple[int, int]:
    """The pattern that CHECK leaves: every bit of (step, seed) turned."""
    return -step & MASK, ~seed & MASK


# Each thread takes one word of a stretch, and goes on by the width of the grid.
_EACH_WORD = """
    ld.param.u64 %rd1, [param_base];
    ld.param.u64 %rd2, [param_words];
    ld.param.u64 %rd3, [param_step];
    ld.param.u64 %rd4, [param_seed];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mov.u32 %r4, %nctaid.x;
    mul.wide.u32 %rd5, %r1, %r2;
    cvt.u64.u32 %rd6, %r3;
    add.u64 %rd5, %rd5, %rd6;
    mul.wide.u32 %rd7, %r4, %r2;
LOOP:
    setp.ge.u64 %p1, %rd5, %rd2;
    @%p1 bra DONE;
    mad.lo.u64 %rd8, %rd5, %rd3, %rd4;
    shl.b64 %rd9, %rd5, 3;
    add.u64 %rd9, %rd1, %rd9;
"""
_PATTERN = ".param .u64 param_base, .param .u64 param_words, .param .u64 param_step, .param .u64 param_seed"
_REGISTERS = ".reg .pred %p<8>;\n    .reg .b32 %r<16>;\n    .reg .b64 %rd<24>;"

MEMORY = f"""
.address_size 64

.visible .entry {FILL}({_PATTERN})
{{
    {_REGISTERS}
{_EACH_WORD}
    st.global.u64 [%rd9], %rd8;
    add.u64 %rd5, %rd5, %rd7;
    bra LOOP;
DONE:
    ret;
}}

.visible .entry {CHECK}({_PATTERN}, .param .u64 param_report)
{{
    {_REGISTERS}
    ld.param.u64 %rd10, [param_report];
    cvta.to.global.u64 %rd10, %rd10;
{_EACH_WORD}
    ld.global.u64 %rd11, [%rd9];
    not.b64 %rd12, %rd8;
    st.global.u64 [%rd9], %rd12;
    setp.eq.u64 %p2, %rd11, %rd8;
    @%p2 bra NEXT;
    atom.global.add.u32 %r5, [%rd10], 1;
    setp.ge.u32 %p3, %r5, {REPORTED};
    @%p3 bra NEXT;
    xor.b64 %rd13, %rd11, %rd8;
    mul.wide.u32 %rd14, %r5, 16;
    add.u64 %rd14, %rd10, %rd14;
    st.global.u64 [%rd14+16], %rd5;
    st.global.u64 [%rd14+24], %rd13;
NEXT:
    add.u64 %rd5, %rd5, %rd7;
    bra LOOP;
DONE:
    ret;
}}
"""

# --- FP32 and FP64 ----------------------------------------------------------------------------------------------------

# Each lane of a warp computes CHAINS chains of x' = (FACTOR x + OFFSET) x + 1. This map is chaotic: even
# the last bit that is wrong somewhere in a chain gives a wrong end of it in most cases, and every round is another one.
# Two fused multiply-adds a step, each rounded once.
CHAINS, STEPS = 4, 64
FACTOR, OFFSET = -1.9, 0.05


@dataclass(frozen=True)
class Real:
    """A kind of numbers: its names in PTX, how `struct` writes it, and how many binary digits it has."""

    entry: str
    kind: str
    bits: str
    register: str
    format: str
    digits: int
    size: int
    constant: str


FP32 = Real("accept_fp32", "f32", "u32", "%r", "f", 24, 4, "0f")
FP64 = Real("accept_fp64", "f64", "u64", "%rd", "d", 53, 8, "0d")

# Numbers are computed as whole ones, in units of 2**-UNIT. None in a chain is so small that this is not exact.
UNIT = 160


def rounded(value: int, digits: int) -> int:
    """The nearest number that has so many binary digits, the even one of two."""
    drop = abs(value).bit_length() - digits
    if drop <= 0:
        return value
    quotient, rest = divmod(value, 1 << drop)
    half = 1 << (drop - 1)
    quotient += rest > half or (rest == half and quotient & 1)
    return quotient << drop


def _units(value: float) -> int:
    numerator, denominator = value.as_integer_ratio()
    return (numerator << UNIT) // denominator


def _constant(real: Real, value: float) -> float:
    """The constant as numbers of this kind have it."""
    return float(struct.unpack(real.format, struct.pack(real.format, value))[0])


def _fused(real: Real, a: int, b: int, c: int) -> int:
    """a b + c, rounded once."""
    return rounded(a * b + (c << UNIT), real.digits) >> UNIT if a * b + (c << UNIT) else 0


def chain(real: Real, start: float, steps: int = STEPS) -> float:
    """The end of a chain."""
    factor, offset, one = (_units(_constant(real, value)) for value in (FACTOR, OFFSET, 1.0))
    x = _units(start)
    for _step in range(steps):
        x = _fused(real, _fused(real, x, factor, offset), x, one)
    return math.ldexp(float(x), -UNIT)


def seeds(real: Real) -> list[float]:
    """Where the chains begin: lane by lane, those of a lane one after the other. No chain leaves -1 to 1.001."""
    count = LANES * CHAINS
    return [_constant(real, 0.9 * ((2 * number + 1) / count - 1.0)) for number in range(count)]


@functools.cache
def real_data(real: Real) -> tuple[bytes, bytes]:
    """The seeds and the ends, as the GPU's memory has them."""
    starts = seeds(real)
    form = f"<{len(starts)}{real.format}"
    return struct.pack(form, *starts), struct.pack(form, *(chain(real, start) for start in starts))


def _literal(real: Real, value: float) -> str:
    return real.constant + struct.pack(f">{real.format}", value).hex().upper()


# Of a kernel that compares: what it does with a number of errors, of its round, in %r10.
_TELL = f"""
    setp.eq.u32 %p3, %r10, 0;
    @%p3 bra NEXT;
    atom.global.add.u32 %r11, [%rd10], %r10;
    setp.ge.u32 %p4, %r11, {REPORTED};
    @%p4 bra NEXT;
    mul.wide.u32 %rd14, %r11, 16;
    add.u64 %rd14, %rd10, %rd14;
    mov.u32 %r12, %smid;
    st.global.u32 [%rd14+16], %r12;
    st.global.u32 [%rd14+20], %r3;
    st.global.u32 [%rd14+24], %r10;
NEXT:
    add.u32 %r9, %r9, 1;
    bra LOOP;
DONE:
    ret;
"""


def real_kernel(real: Real) -> str:
    """Rounds of chains. The seeds are read anew in each, so that no compiler can do the work once for all rounds."""
    x, t = f"%x{real.kind}", f"%t{real.kind}"
    fma = f"fma.rn.{real.kind}"
    lines = [f"ld.volatile.global.{real.kind} {x}{number}, [%rd11+{number * real.size}];" for number in range(CHAINS)]
    for _step in range(STEPS):
        lines += [f"{fma} {t}{number}, {x}{number}, %factor, %offset;" for number in range(CHAINS)]
        lines += [f"{fma} {x}{number}, {t}{number}, {x}{number}, %one;" for number in range(CHAINS)]
    lines.append("mov.u32 %r10, 0;")
    found, wanted = f"{real.register}20", f"{real.register}21"
    for number in range(CHAINS):
        lines += [
            f"mov.b{8 * real.size} {found}, {x}{number};",
            f"ld.volatile.global.{real.bits} {wanted}, [%rd12+{number * real.size}];",
            f"setp.ne.{real.bits} %p2, {found}, {wanted};",
            "@%p2 add.u32 %r10, %r10, 1;",
        ]
    body = "\n    ".join(lines)
    return f"""
.address_size 64

.visible .entry {real.entry}(
    .param .u64 param_seeds, .param .u64 param_ends, .param .u32 param_rounds, .param .u64 param_report)
{{
    .reg .pred %p<8>;
    .reg .b32 %r<24>;
    .reg .b64 %rd<24>;
    .reg .{real.kind} {x}<{CHAINS}>;
    .reg .{real.kind} {t}<{CHAINS}>;
    .reg .{real.kind} %factor, %offset, %one;
    mov.{real.kind} %factor, {_literal(real, FACTOR)};
    mov.{real.kind} %offset, {_literal(real, OFFSET)};
    mov.{real.kind} %one, {_literal(real, 1.0)};
    ld.param.u64 %rd11, [param_seeds];
    ld.param.u64 %rd12, [param_ends];
    ld.param.u32 %r8, [param_rounds];
    ld.param.u64 %rd10, [param_report];
    cvta.to.global.u64 %rd11, %rd11;
    cvta.to.global.u64 %rd12, %rd12;
    cvta.to.global.u64 %rd10, %rd10;
    mov.u32 %r3, %tid.x;
    and.b32 %r4, %r3, {LANES - 1};
    mul.wide.u32 %rd13, %r4, {CHAINS * real.size};
    add.u64 %rd11, %rd11, %rd13;
    add.u64 %rd12, %rd12, %rd13;
    mov.u32 %r9, 0;
LOOP:
    setp.ge.u32 %p1, %r9, %r8;
    @%p1 bra DONE;
    {body}
{_TELL}}}
"""


def real_flop(threads: int, rounds: int) -> int:
    return threads * rounds * CHAINS * STEPS * 2 * 2


# --- BF16 on tensor cores ---------------------------------------------------------------------------------------------

# D = A B + C of 16 x 8 with k = 16, by the warp, since compute capability 8.0. The numbers in A and B are whole and
# small, so that every sum is a whole number below 2**20 and exact in whatever order it is made.
BF16 = "accept_bf16"
BF16_TARGETS = (("7.0", "sm_80"),)
BF16_CAPABILITY = (8, 0)
ROWS, COLUMNS, DEPTH = 16, 8, 16
SETS, PRODUCTS = 4, 64
LARGEST = 31


def _numbers(count: int, seed: int) -> list[int]:
    """Whole numbers from -LARGEST to LARGEST, the same ones every time."""
    found, state = [], seed
    for _number in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) & MASK
        found.append((state >> 40) % (2 * LARGEST + 1) - LARGEST)
    return found


def matrices() -> tuple[list[list[int]], list[list[list[int]]]]:
    """A, and a B for each of the SETS."""
    flat = _numbers(ROWS * DEPTH, 1)
    first = [flat[row * DEPTH : (row + 1) * DEPTH] for row in range(ROWS)]
    second = []
    for number in range(SETS):
        flat = _numbers(DEPTH * COLUMNS, 2 + number)
        second.append([flat[row * COLUMNS : (row + 1) * COLUMNS] for row in range(DEPTH)])
    return first, second


def _bf16(value: int) -> int:
    """A bfloat16 is the upper half of a float."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0]) >> 16


def place_in_a(lane: int, element: int) -> tuple[int, int]:
    """Row and column in A of one of the eight numbers that a lane holds (PTX ISA, m16n8k16)."""
    row = lane // 4 + (0 if element // 2 % 2 == 0 else 8)
    return row, lane % 4 * 2 + element % 2 + (0 if element < 4 else 8)


def place_in_b(lane: int, element: int) -> tuple[int, int]:
    """The same in B, of four."""
    return lane % 4 * 2 + element % 2 + (0 if element < 2 else 8), lane // 4


def place_in_c(lane: int, element: int) -> tuple[int, int]:
    """The same in C and D, of four."""
    return lane // 4 + (0 if element < 2 else 8), lane % 4 * 2 + element % 2


def _pairs(numbers: list[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}H", *map(_bf16, numbers))


@functools.cache
def bf16_data() -> tuple[bytes, bytes, bytes]:
    """A, all B and all results, each lane by lane as the instruction wants them."""
    first, second = matrices()
    a = b"".join(
        _pairs([first[row][column] for row, column in (place_in_a(lane, element) for element in range(8))])
        for lane in range(LANES)
    )
    b, results = b"", b""
    for matrix in second:
        for lane in range(LANES):
            b += _pairs([matrix[row][column] for row, column in (place_in_b(lane, element) for element in range(4))])
            for row, column in (place_in_c(lane, element) for element in range(4)):
                product = sum(first[row][k] * matrix[k][column] for k in range(DEPTH))
                results += struct.pack("<f", PRODUCTS * product)
    return a, b, results


def bf16_kernel() -> str:
    """Rounds of PRODUCTS products added up, in SETS sums that do not wait for each other."""
    # A lane that has told of an error comes later, and the products are those of the whole warp.
    lines = ["bar.warp.sync 0xffffffff;"]
    lines += [f"ld.volatile.global.u32 %a{part}, [%rd11+{4 * part}];" for part in range(4)]
    for number in range(SETS):
        lines += [
            f"ld.volatile.global.u32 %b{2 * number + part}, [%rd12+{8 * LANES * number + 4 * part}];"
            for part in range(2)
        ]
        lines += [f"mov.f32 %d{4 * number + part}, 0f00000000;" for part in range(4)]
    for _product in range(PRODUCTS):
        for number in range(SETS):
            sums = ", ".join(f"%d{4 * number + part}" for part in range(4))
            lines.append(
                "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                f"{{{sums}}}, {{%a0, %a1, %a2, %a3}}, {{%b{2 * number}, %b{2 * number + 1}}}, {{{sums}}};"
            )
    lines.append("mov.u32 %r10, 0;")
    for number in range(SETS):
        for part in range(4):
            lines += [
                f"mov.b32 %r20, %d{4 * number + part};",
                f"ld.volatile.global.u32 %r21, [%rd13+{16 * LANES * number + 4 * part}];",
                "setp.ne.u32 %p2, %r20, %r21;",
                "@%p2 add.u32 %r10, %r10, 1;",
            ]
    body = "\n    ".join(lines)
    return f"""
.address_size 64

.visible .entry {BF16}(
    .param .u64 param_a, .param .u64 param_b, .param .u64 param_results,
    .param .u32 param_rounds, .param .u64 param_report)
{{
    .reg .pred %p<8>;
    .reg .b32 %r<24>;
    .reg .b64 %rd<24>;
    .reg .b32 %a<4>;
    .reg .b32 %b<{2 * SETS}>;
    .reg .f32 %d<{4 * SETS}>;
    ld.param.u64 %rd11, [param_a];
    ld.param.u64 %rd12, [param_b];
    ld.param.u64 %rd13, [param_results];
    ld.param.u32 %r8, [param_rounds];
    ld.param.u64 %rd10, [param_report];
    cvta.to.global.u64 %rd11, %rd11;
    cvta.to.global.u64 %rd12, %rd12;
    cvta.to.global.u64 %rd13, %rd13;
    cvta.to.global.u64 %rd10, %rd10;
    mov.u32 %r3, %tid.x;
    and.b32 %r4, %r3, {LANES - 1};
    mul.wide.u32 %rd15, %r4, 16;
    add.u64 %rd11, %rd11, %rd15;
    add.u64 %rd13, %rd13, %rd15;
    mul.wide.u32 %rd15, %r4, 8;
    add.u64 %rd12, %rd12, %rd15;
    mov.u32 %r9, 0;
LOOP:
    setp.ge.u32 %p1, %r9, %r8;
    @%p1 bra DONE;
    {body}
{_TELL}}}
"""


def bf16_flop(threads: int, rounds: int) -> int:
    return threads // LANES * rounds * SETS * PRODUCTS * ROWS * COLUMNS * DEPTH * 2


# --- What a kernel reported -------------------------------------------------------------------------------------------


def memory_errors(report: bytes) -> tuple[int, list[tuple[int, int]]]:
    """How many words were wrong, and of the first of them their number and the bits that were wrong."""
    count = struct.unpack_from("<I", report)[0]
    rows = [struct.unpack_from("<QQ", report, 16 * (row + 1)) for row in range(min(count, REPORTED))]
    return count, [(int(index), int(bits)) for index, bits in rows]


def compute_errors(report: bytes) -> tuple[int, list[int]]:
    """How many results were wrong, and the multiprocessors of the first of them."""
    count = struct.unpack_from("<I", report)[0]
    rows = (struct.unpack_from("<III", report, 16 * (row + 1)) for row in range(min(count, REPORTED)))
    # A thread that counted several errors at once has a row for the first.
    return count, sorted({int(multiprocessor) for multiprocessor, _thread, errors in rows if errors})
