/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * See ptx.h.
 */
#include "ptx.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NAME 128
#define MAX_WORDS 16
/* A kernel that runs longer than this is one that never ends. */
#define MAX_STEPS 4000000000ull

enum operation {
    OP_MOV, OP_LD_PARAM, OP_LD, OP_ST, OP_ADD, OP_SUB, OP_MUL, OP_MAD, OP_DIV, OP_REM, OP_MIN, OP_MAX, OP_AND, OP_OR,
    OP_XOR, OP_NOT, OP_NEG, OP_SHL, OP_SHR, OP_SETP, OP_SELP, OP_BRA, OP_CVT, OP_RET, OP_ATOM, OP_MMA, OP_WARP,
};
enum part { PART_LO, PART_HI, PART_WIDE };
enum comparison { CMP_EQ, CMP_NE, CMP_LT, CMP_LE, CMP_GT, CMP_GE };
enum kind { KIND_UNSIGNED, KIND_SIGNED, KIND_FLOAT, KIND_PREDICATE };
enum operand_kind { OPERAND_NONE, OPERAND_REGISTER, OPERAND_NUMBER, OPERAND_SPECIAL };

struct type {
    enum kind kind;
    unsigned bytes;
};
struct operand {
    enum operand_kind kind;
    int index; /* of a register; of a special one, see `special_names` */
    int64_t number; /* of a number; beside a register in an address, the offset */
};
struct instruction {
    enum operation operation;
    struct type type, from;
    enum part part;
    enum comparison comparison;
    int predicate; /* register, -1 for none */
    bool negated;
    struct operand out, in[3];
    int vectors[4][4]; /* of mma: the registers of D, A, B and C */
    int target;
    char label[MAX_NAME]; /* of a branch, until it is resolved */
    int line;
};
struct name {
    char text[MAX_NAME];
    struct type type;
    int value;
};
struct names {
    struct name *all;
    int count;
};
struct ptx_function {
    char name[MAX_NAME];
    struct names parameters, registers, labels;
    struct instruction *code;
    int length;
    struct ptx_function *next;
};
struct ptx_module {
    struct ptx_function *functions;
};

struct reader {
    const char *at;
    int line;
    int version, target; /* of the file */
    char *log;
    size_t log_size, logged;
    bool wrong; /* something was refused */
    bool failed; /* and nothing further can be read */
    char unknown[1024]; /* what is reported last: the symbols that are nowhere defined */
};

static const char *const special_names[] = {
    "%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z",
    "%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z", "%laneid", "%smid",
};

/* The one matrix instruction that the stand-in has: of a warp, D = A B + C with bfloat16 in and float out. */
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"

/* Instructions of PTX 9.0 that the stand-in does not have, by the first word of their names. */
static const char *const other_instructions[] = {
    "abs", "activemask", "addc", "alloca", "applypriority", "barrier", "bfe", "bfi", "bfind", "bmsk",
    "brev", "brkpt", "brx", "call", "clusterlaunchcontrol", "clz", "cnot", "copysign", "cos", "cp", "createpolicy",
    "discard", "dp2a", "dp4a", "elect", "ex2", "fence", "fns", "getctarank", "griddepcontrol", "isspacep", "istypep",
    "ldmatrix", "ldu", "lg2", "lop3", "mad24", "madc", "mapa", "match", "mbarrier", "membar", "movmatrix",
    "mul24", "multimem", "nanosleep", "pmevent", "popc", "prefetch", "prefetchu", "prmt", "rcp", "red", "redux",
    "rsqrt", "sad", "set", "setmaxnreg", "shf", "shfl", "sin", "slct", "sqrt", "stackrestore", "stacksave", "stmatrix",
    "subc", "suld", "suq", "sured", "sust", "szext", "tanh", "tcgen05", "tensormap", "testp", "tex", "tld4", "trap",
    "txq", "vabsdiff", "vabsdiff2", "vabsdiff4", "vadd", "vadd2", "vadd4", "vavrg2", "vavrg4", "vmad", "vmax", "vmax2",
    "vmax4", "vmin", "vmin2", "vmin4", "vote", "vset", "vset2", "vset4", "vshl", "vshr", "vsub", "vsub2", "vsub4",
    "wgmma", "wmma",
};
static const char *const other_directives[] = {
    ".alias", ".align", ".branchtargets", ".callprototype", ".calltargets", ".common", ".const", ".file", ".func",
    ".global", ".loc", ".local", ".maxclusterrank", ".maxnctapersm", ".maxnreg", ".maxntid", ".minnctapersm",
    ".noreturn", ".param", ".pragma", ".reqntid", ".reqnctapercluster", ".section", ".shared", ".sreg", ".tex",
};
/* The beginnings of their names. */
static const char *const other_specials[] = {
    "%tid", "%ntid", "%ctaid", "%nctaid", "%warpid", "%nwarpid", "%nsmid", "%gridid", "%cluster",
    "%nclusterid", "%is_explicit_cluster", "%lanemask_", "%clock", "%globaltimer", "%pm", "%envreg", "%reserved_smem",
    "%dynamic_smem", "%total_smem", "%aggr_smem", "%current_graph_exec",
};

static bool one_of(const char *const *all, size_t count, const char *text, bool beginning)
{
    for (size_t i = 0; i < count; i++) {
        if (beginning ? strncmp(text, all[i], strlen(all[i])) == 0 : strcmp(text, all[i]) == 0) {
            return true;
        }
    }
    return false;
}
#define ONE_OF(all, text, beginning) one_of(all, sizeof(all) / sizeof((all)[0]), text, beginning)

static void log_text(struct reader *reader, const char *text)
{
    reader->wrong = true;
    if (reader->log != NULL && reader->logged < reader->log_size) {
        const char *between = reader->logged > 0 ? "\n" : "";
        reader->logged += (size_t)snprintf(
            reader->log + reader->logged, reader->log_size - reader->logged, "%s%s", between, text);
    }
}

/* An error in the words of the real compiler, ptxas 13.0; "the stand-in" is named where the real one knows better. */
__attribute__((format(printf, 4, 5))) static void say(
    struct reader *reader, const char *severity, int line, const char *format, ...)
{
    char text[300], whole[400];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    snprintf(whole, sizeof(whole), "ptxas application ptx input, line %d; %s   : %s", line, severity, text);
    log_text(reader, whole);
}

#define complain(reader, ...) say(reader, "error", (reader)->line, __VA_ARGS__)

/* Ends the reading. */
#define give_up(reader, ...) \
    do { \
        if (!(reader)->failed) { \
            say(reader, "fatal", (reader)->line, __VA_ARGS__); \
            (reader)->failed = true; \
        } \
    } while (0)

static void unknown_symbol(struct reader *reader, const char *name, int line)
{
    size_t length = strlen(reader->unknown);
    reader->wrong = true;
    snprintf(reader->unknown + length, sizeof(reader->unknown) - length,
        "%sptxas application ptx input, line %d; error   : Unknown symbol '%s'", length > 0 ? "\n" : "", line, name);
}

static void skip_space(struct reader *reader)
{
    while (*reader->at != '\0') {
        if (strncmp(reader->at, "//", 2) == 0) {
            reader->at += strcspn(reader->at, "\n");
        } else if (strncmp(reader->at, "/*", 2) == 0) {
            const char *end = strstr(reader->at + 2, "*/");
            for (; reader->at < end; reader->at++) {
                reader->line += *reader->at == '\n';
            }
            if (end == NULL) {
                give_up(reader, "Parsing error near '': unexpected EOF while scanning");
                return;
            }
            reader->at += 2;
        } else if (isspace((unsigned char)*reader->at)) {
            reader->line += *reader->at++ == '\n';
        } else {
            return;
        }
    }
}

static bool take(struct reader *reader, char expected)
{
    skip_space(reader);
    if (*reader->at != expected) {
        return false;
    }
    reader->at++;
    return true;
}

static size_t word_length(const char *text)
{
    size_t length = 0;
    while (text[length] != '\0'
        && (isalnum((unsigned char)text[length]) || strchr("._%$", text[length]) != NULL)) {
        length++;
    }
    return length;
}

static void syntax_error(struct reader *reader)
{
    skip_space(reader);
    size_t length = word_length(reader->at);
    give_up(reader, "Parsing error near '%.*s': syntax error", (int)(length > 0 ? length : *reader->at != '\0'),
        reader->at);
}

static void expect(struct reader *reader, char expected)
{
    if (!take(reader, expected)) {
        syntax_error(reader);
    }
}

/* A name with its dots: an opcode with modifiers, a register, a label, a directive, a number. */
static bool word(struct reader *reader, char *out)
{
    skip_space(reader);
    size_t length = word_length(reader->at);
    if (length == 0 || length >= MAX_NAME || reader->failed) {
        syntax_error(reader);
        out[0] = '\0';
        return false;
    }
    memcpy(out, reader->at, length);
    out[length] = '\0';
    reader->at += length;
    return true;
}

static struct name *find_name(const struct names *names, const char *text)
{
    for (int i = 0; i < names->count; i++) {
        if (strcmp(names->all[i].text, text) == 0) {
            return &names->all[i];
        }
    }
    return NULL;
}

static void add_name(
    struct reader *reader, struct names *names, const char *what, const char *text, struct type type, int value)
{
    if (find_name(names, text) != NULL) {
        complain(reader, "Duplicate definition of %s '%s'", what, text);
        return;
    }
    if (names->count % 64 == 0) {
        struct name *more = realloc(names->all, sizeof(*more) * (size_t)(names->count + 64));
        if (more == NULL) {
            give_up(reader, "out of memory");
            return;
        }
        names->all = more;
    }
    snprintf(names->all[names->count].text, MAX_NAME, "%s", text);
    names->all[names->count].type = type;
    names->all[names->count++].value = value;
}

static bool parse_type(const char *text, struct type *out)
{
    static const struct { const char *text; struct type type; } types[] = {
        {"u8", {KIND_UNSIGNED, 1}}, {"u16", {KIND_UNSIGNED, 2}}, {"u32", {KIND_UNSIGNED, 4}},
        {"u64", {KIND_UNSIGNED, 8}},
        {"b8", {KIND_UNSIGNED, 1}}, {"b16", {KIND_UNSIGNED, 2}}, {"b32", {KIND_UNSIGNED, 4}},
        {"b64", {KIND_UNSIGNED, 8}},
        {"s8", {KIND_SIGNED, 1}}, {"s16", {KIND_SIGNED, 2}}, {"s32", {KIND_SIGNED, 4}}, {"s64", {KIND_SIGNED, 8}},
        {"f32", {KIND_FLOAT, 4}}, {"f64", {KIND_FLOAT, 8}}, {"pred", {KIND_PREDICATE, 1}},
    };
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(text, types[i].text) == 0) {
            *out = types[i].type;
            return true;
        }
    }
    return false;
}

/* "mad.lo.s32" in its parts; their number. */
static int split(char *text, char *parts[MAX_WORDS])
{
    int count = 0;
    for (char *part = strtok(text, "."); part != NULL && count < MAX_WORDS; part = strtok(NULL, ".")) {
        parts[count++] = part;
    }
    return count;
}

/* OPERAND_NONE where it is none that is known. */
static struct operand operand(struct reader *reader, const struct ptx_function *function)
{
    struct operand out = {OPERAND_NONE, -1, 0};
    char text[MAX_NAME];
    bool negative = take(reader, '-');
    skip_space(reader);
    if (*reader->at == '{') {
        give_up(reader, "the stand-in does not know vectors");
    }
    if (!word(reader, text)) {
        return out;
    }
    if (isdigit((unsigned char)text[0])) {
        char *end;
        bool real = strncmp(text, "0f", 2) == 0 || strncmp(text, "0F", 2) == 0 || strncmp(text, "0d", 2) == 0
            || strncmp(text, "0D", 2) == 0;
        out.kind = OPERAND_NUMBER;
        out.number = (int64_t)strtoull(real ? text + 2 : text, &end, real ? 16 : 0);
        out.number = negative ? -out.number : out.number;
        if (*end != '\0' && strcmp(end, "U") != 0) {
            give_up(reader, "Parsing error near '%s': syntax error", end);
        }
        return out;
    }
    for (size_t i = 0; i < sizeof(special_names) / sizeof(special_names[0]); i++) {
        if (strcmp(text, special_names[i]) == 0) {
            out.kind = OPERAND_SPECIAL;
            out.index = (int)i;
            return out;
        }
    }
    const struct name *name = find_name(&function->registers, text);
    if (name == NULL) {
        if (ONE_OF(other_specials, text, true)) {
            give_up(reader, "the stand-in does not know '%s'", text);
        }
        unknown_symbol(reader, text, reader->line);
        return out;
    }
    out.kind = OPERAND_REGISTER;
    out.index = name->value;
    return out;
}

/* "[%rd1+8]", or "[param]" with the parameter's place as the index. */
static struct operand address(struct reader *reader, const struct ptx_function *function, bool parameter)
{
    struct operand out = {OPERAND_NONE, -1, 0};
    char text[MAX_NAME];
    expect(reader, '[');
    if (parameter && word(reader, text)) {
        const struct name *name = find_name(&function->parameters, text);
        if (name == NULL) {
            unknown_symbol(reader, text, reader->line);
        } else {
            out.kind = OPERAND_REGISTER;
            out.index = name->value;
        }
        if (take(reader, '+')) {
            give_up(reader, "the stand-in does not know an offset in a parameter");
        }
    } else if (!parameter) {
        out = operand(reader, function);
        if (take(reader, '+')) {
            out.number = operand(reader, function).number;
        }
    }
    expect(reader, ']');
    return out;
}

static bool has_word(char *parts[], int count, const char *word)
{
    for (int i = 1; i < count; i++) {
        if (strcmp(parts[i], word) == 0) {
            return true;
        }
    }
    return false;
}

enum refusal { KNOWN, NO_INSTRUCTION, WRONG_TYPES, NO_COMPARISON, WRONG_COMPARISON, NOT_HERE };

/* Whether the type is one of those that the real compiler takes, as far as the stand-in knows the instruction. */
static bool type_fits(enum operation operation, const char *type)
{
    switch (operation) {
    case OP_ADD: case OP_SUB: case OP_MUL: case OP_MAD: case OP_DIV: case OP_REM: case OP_MIN: case OP_MAX: case OP_NEG:
        return type[0] != 'b';
    case OP_AND: case OP_OR: case OP_XOR: case OP_NOT:
        return type[0] == 'b' || strcmp(type, "pred") == 0;
    case OP_SHL:
        return type[0] == 'b';
    default:
        return true;
    }
}

/* Whether a modifier changes nothing that the stand-in would have to do, or is looked at elsewhere. */
static bool modifier_is_known(const struct instruction *code, const char *name, const char *modifier)
{
    static const char *const of_memory[] = {
        "param", "global", "volatile", "weak", "relaxed", "cta", "gpu", "sys", "ca", "cg", "cs", "lu", "cv", "wb",
        "wt", "nc",
    };
    static const char *const of_products[] = {"lo", "hi", "wide"};
    static const char *const of_floats[] = {"rn", "ftz", "approx", "full"};
    switch (code->operation) {
    case OP_LD: case OP_LD_PARAM: case OP_ST:
        return ONE_OF(of_memory, modifier, false);
    case OP_CVT: case OP_SETP:
        return true;
    case OP_MOV:
        return strcmp(name, "cvta") == 0 && (strcmp(modifier, "to") == 0 || strcmp(modifier, "global") == 0);
    case OP_MUL: case OP_MAD:
        if (code->type.kind != KIND_FLOAT) {
            return ONE_OF(of_products, modifier, false);
        } /* fall through */
    default:
        return code->type.kind == KIND_FLOAT && ONE_OF(of_floats, modifier, false);
    }
}

static enum refusal parse_opcode(struct instruction *code, char *parts[], int count)
{
    static const struct { const char *text; enum operation operation; } operations[] = {
        {"mov", OP_MOV}, {"ld", OP_LD}, {"st", OP_ST}, {"add", OP_ADD}, {"sub", OP_SUB}, {"mul", OP_MUL},
        {"mad", OP_MAD}, {"fma", OP_MAD}, {"div", OP_DIV}, {"rem", OP_REM}, {"min", OP_MIN}, {"max", OP_MAX},
        {"and", OP_AND}, {"or", OP_OR}, {"xor", OP_XOR}, {"not", OP_NOT}, {"neg", OP_NEG}, {"shl", OP_SHL},
        {"shr", OP_SHR}, {"setp", OP_SETP}, {"selp", OP_SELP}, {"bra", OP_BRA}, {"cvt", OP_CVT}, {"cvta", OP_MOV},
        {"ret", OP_RET}, {"exit", OP_RET}, {"atom", OP_ATOM}, {"mma", OP_MMA}, {"bar", OP_WARP},
    };
    static const char *const comparisons[] = {"eq", "ne", "lt", "le", "gt", "ge"};
    static const char *const unsigned_comparisons[] = {"", "", "lo", "ls", "hi", "hs"};
    size_t known = sizeof(operations) / sizeof(operations[0]), place = 0;
    while (place < known && strcmp(parts[0], operations[place].text) != 0) {
        place++;
    }
    if (place == known) {
        return ONE_OF(other_instructions, parts[0], false) ? NOT_HERE : NO_INSTRUCTION;
    }
    code->operation = operations[place].operation;
    if (code->operation == OP_LD && has_word(parts, count, "param")) {
        code->operation = OP_LD_PARAM;
    } else if (code->operation == OP_LD || code->operation == OP_ST) {
        if (has_word(parts, count, "shared") || has_word(parts, count, "local") || has_word(parts, count, "v2")
            || has_word(parts, count, "v4")) {
            return NOT_HERE;
        }
    }
    if (code->operation == OP_BRA || code->operation == OP_RET || code->operation == OP_MMA) {
        return KNOWN;
    }
    /* The lanes of a warp wait for each other; here they do so at every matrix instruction anyway. */
    if (code->operation == OP_WARP) {
        code->type = code->from = (struct type){KIND_UNSIGNED, 4};
        return count == 3 && strcmp(parts[1], "warp") == 0 && strcmp(parts[2], "sync") == 0 ? KNOWN : NOT_HERE;
    }
    if (!parse_type(parts[count - 1], &code->type)) {
        return count == 1 ? WRONG_TYPES : NOT_HERE;
    }
    if (!type_fits(code->operation, parts[count - 1])) {
        return WRONG_TYPES;
    }
    if (code->operation == OP_ATOM) {
        bool known = count == 4 && strcmp(parts[1], "global") == 0 && strcmp(parts[2], "add") == 0;
        code->from = code->type;
        return known && code->type.kind == KIND_UNSIGNED && parts[3][0] == 'u' && code->type.bytes >= 4 ? KNOWN
            : NOT_HERE;
    }
    for (int i = 1; i < count - 1; i++) {
        if (!modifier_is_known(code, parts[0], parts[i])) {
            return NOT_HERE;
        }
    }
    code->from = code->type;
    if (code->operation == OP_CVT) {
        if (count != 3 || !parse_type(parts[count - 2], &code->type) || code->from.kind == KIND_FLOAT
            || code->type.kind == KIND_FLOAT) {
            return NOT_HERE;
        }
    }
    bool whole = code->type.kind == KIND_UNSIGNED || code->type.kind == KIND_SIGNED;
    if (code->operation == OP_MUL || code->operation == OP_MAD) {
        code->part = has_word(parts, count, "wide") ? PART_WIDE : has_word(parts, count, "hi") ? PART_HI : PART_LO;
        if (whole && code->part == PART_LO && !has_word(parts, count, "lo")) {
            return count == 2 ? WRONG_TYPES : NOT_HERE;
        }
    }
    if (code->operation == OP_SETP && count == 2) {
        return NO_COMPARISON;
    }
    if (code->operation == OP_SETP) {
        for (int i = 0; i < 6; i++) {
            if (strcmp(parts[1], comparisons[i]) == 0 || strcmp(parts[1], unsigned_comparisons[i]) == 0) {
                bool of_unsigned = strcmp(parts[1], comparisons[i]) != 0, of_bits = parts[count - 1][0] == 'b';
                if ((of_unsigned && (of_bits || code->type.kind != KIND_UNSIGNED)) || (of_bits && i > 1)) {
                    return WRONG_COMPARISON;
                }
                code->comparison = (enum comparison)i;
                return whole && count == 3 ? KNOWN : NOT_HERE;
            }
        }
        return NOT_HERE;
    }
    return KNOWN;
}

static void skip_operands(struct reader *reader)
{
    for (; *reader->at != '\0' && *reader->at != ';'; reader->at++) {
        reader->line += *reader->at == '\n';
    }
}

/* Whether a register has the width of what the instruction does with it; memory and conversions fill wider ones too. */
static bool width_fits(
    const struct ptx_function *function, const struct operand *operand, struct type type, bool wider)
{
    if (operand->kind != OPERAND_REGISTER) {
        return operand->kind != OPERAND_SPECIAL || type.bytes <= 4;
    }
    struct type has = function->registers.all[operand->index].type;
    if (has.kind == KIND_PREDICATE || type.kind == KIND_PREDICATE) {
        return has.kind == type.kind;
    }
    return has.bytes == type.bytes || (wider && has.bytes > type.bytes);
}

static bool widths_fit(const struct ptx_function *function, const struct instruction *code)
{
    static const struct type predicate = {KIND_PREDICATE, 1}, word = {KIND_UNSIGNED, 4}, address = {KIND_UNSIGNED, 8};
    struct type result = {code->type.kind, code->part == PART_WIDE ? code->type.bytes * 2 : code->type.bytes};
    switch (code->operation) {
    case OP_BRA: case OP_RET: case OP_WARP:
        return true;
    case OP_MMA:
        for (int matrix = 0; matrix < 4; matrix++) {
            for (int i = 0; i < (matrix == 2 ? 2 : 4); i++) {
                struct type has = function->registers.all[code->vectors[matrix][i]].type;
                bool of_floats = matrix == 0 || matrix == 3;
                if (has.bytes != 4 || (has.kind == KIND_FLOAT) != of_floats) {
                    return false;
                }
            }
        }
        return true;
    case OP_ATOM:
        return width_fits(function, &code->out, code->type, false)
            && width_fits(function, &code->in[0], address, false)
            && width_fits(function, &code->in[1], code->type, false);
    case OP_LD_PARAM:
        return width_fits(function, &code->out, code->type, true);
    case OP_LD:
        return width_fits(function, &code->out, code->type, true)
            && width_fits(function, &code->in[0], address, false);
    case OP_ST:
        return width_fits(function, &code->in[0], address, false)
            && width_fits(function, &code->in[1], code->type, true);
    case OP_CVT:
        return width_fits(function, &code->out, code->type, true)
            && width_fits(function, &code->in[0], code->from, true);
    default:
        break;
    }
    bool shift = code->operation == OP_SHL || code->operation == OP_SHR;
    return width_fits(function, &code->out, code->operation == OP_SETP ? predicate : result, false)
        && width_fits(function, &code->in[0], code->type, false)
        && width_fits(function, &code->in[1], shift ? word : code->type, false)
        && width_fits(function, &code->in[2], code->operation == OP_SELP ? predicate : result, false);
}

/* "{%f0, %f1, %f2, %f3}, {%r0, %r1, %r2, %r3}, {%r4, %r5}, {%f0, %f1, %f2, %f3}" */
static void parse_matrices(struct reader *reader, const struct ptx_function *function, struct instruction *code)
{
    for (int matrix = 0; matrix < 4 && !reader->failed; matrix++) {
        if (matrix > 0) {
            expect(reader, ',');
        }
        expect(reader, '{');
        for (int i = 0; i < (matrix == 2 ? 2 : 4) && !reader->failed; i++) {
            if (i > 0) {
                expect(reader, ',');
            }
            struct operand part = operand(reader, function);
            code->vectors[matrix][i] = part.kind == OPERAND_REGISTER ? part.index : 0;
        }
        expect(reader, '}');
    }
}

static void parse_operands(
    struct reader *reader, struct ptx_function *function, struct instruction *code, const char *name)
{
    static const int inputs[] = {
        [OP_MOV] = 1, [OP_ADD] = 2, [OP_SUB] = 2, [OP_MUL] = 2, [OP_MAD] = 3, [OP_DIV] = 2, [OP_REM] = 2, [OP_MIN] = 2,
        [OP_MAX] = 2, [OP_AND] = 2, [OP_OR] = 2, [OP_XOR] = 2, [OP_NOT] = 1, [OP_NEG] = 1, [OP_SHL] = 2, [OP_SHR] = 2,
        [OP_SETP] = 2, [OP_SELP] = 3, [OP_CVT] = 1, [OP_RET] = 0,
    };
    size_t unknown = strlen(reader->unknown);
    bool mismatch = false;
    int given = 0;
    switch (code->operation) {
    case OP_RET:
        break;
    case OP_BRA:
        word(reader, code->label);
        break;
    case OP_LD:
    case OP_LD_PARAM:
        code->out = operand(reader, function);
        expect(reader, ',');
        code->in[0] = address(reader, function, code->operation == OP_LD_PARAM);
        break;
    case OP_ST:
        code->in[0] = address(reader, function, false);
        expect(reader, ',');
        code->in[1] = operand(reader, function);
        break;
    case OP_ATOM:
        code->out = operand(reader, function);
        expect(reader, ',');
        code->in[0] = address(reader, function, false);
        expect(reader, ',');
        code->in[1] = operand(reader, function);
        break;
    case OP_MMA:
        parse_matrices(reader, function, code);
        break;
    case OP_WARP:
        code->in[0] = operand(reader, function);
        break;
    default:
        code->out = operand(reader, function);
        if (take(reader, '|')) {
            give_up(reader, "the stand-in does not know a second result");
        }
        skip_space(reader);
        for (int i = 0; i < inputs[code->operation] && *reader->at != ';'; i++) {
            expect(reader, ',');
            code->in[i] = operand(reader, function);
            skip_space(reader);
            given++;
        }
        mismatch = given != inputs[code->operation] || take(reader, ',');
    }
    if (mismatch) {
        skip_operands(reader);
    }
    expect(reader, ';');
    if (reader->failed) {
        return;
    }
    if (mismatch || !widths_fit(function, code)) {
        complain(reader, "Arguments mismatch for instruction '%s'", name);
    } else if (strlen(reader->unknown) > unknown) {
        bool address = code->in[0].kind == OPERAND_NONE
            && (code->operation == OP_LD || code->operation == OP_LD_PARAM || code->operation == OP_ST);
        complain(reader, address ? "Illegal operand type to instruction '%s'"
                : "Arguments mismatch for instruction '%s'", name);
    } else if (code->operation != OP_MOV && code->operation != OP_CVT
        && (code->in[0].kind == OPERAND_SPECIAL || code->in[1].kind == OPERAND_SPECIAL
            || code->in[2].kind == OPERAND_SPECIAL)) {
        complain(reader, "Special register argument not allowed for instruction '%s'", name);
    } else if (code->operation != OP_RET && code->operation != OP_BRA && code->operation != OP_ST
        && code->operation != OP_MMA && code->operation != OP_WARP && code->out.kind != OPERAND_REGISTER) {
        complain(reader, "Result register required for instruction '%s'", name);
    }
}

static void parse_registers(struct reader *reader, struct ptx_function *function)
{
    char text[MAX_NAME], numbered[MAX_NAME + 16];
    struct type type;
    if (!word(reader, text) || text[0] != '.' || !parse_type(text + 1, &type)) {
        give_up(reader, "Parsing error near '%s': syntax error", text);
        return;
    }
    do {
        if (!word(reader, text)) {
            return;
        }
        if (take(reader, '<')) {
            char digits[MAX_NAME];
            int count = word(reader, digits) ? atoi(digits) : 0;
            expect(reader, '>');
            if (count > 4096) {
                give_up(reader, "the stand-in has no more than 4096 registers of a kind");
            }
            for (int i = 0; i < count && !reader->failed; i++) {
                snprintf(numbered, sizeof(numbered), "%s%d", text, i);
                numbered[MAX_NAME - 1] = '\0';
                add_name(reader, &function->registers, "variable", numbered, type, function->registers.count);
            }
        } else {
            add_name(reader, &function->registers, "variable", text, type, function->registers.count);
        }
    } while (take(reader, ','));
    expect(reader, ';');
}

static void parse_statement(struct reader *reader, struct ptx_function *function)
{
    char text[MAX_NAME], copy[MAX_NAME], *parts[MAX_WORDS];
    struct instruction code = {.predicate = -1, .target = -1, .line = reader->line};
    if (take(reader, '@')) {
        code.negated = take(reader, '!');
        if (!word(reader, text)) {
            return;
        }
        const struct name *name = find_name(&function->registers, text);
        if (name == NULL || name->type.kind != KIND_PREDICATE) {
            complain(reader, "Predicate expression expected");
        }
        if (name == NULL) {
            unknown_symbol(reader, text, reader->line);
        }
        code.predicate = name != NULL ? name->value : 0;
    }
    if (!word(reader, text)) {
        return;
    }
    if (strcmp(text, ".reg") == 0) {
        parse_registers(reader, function);
        return;
    }
    if (code.predicate < 0 && take(reader, ':')) {
        add_name(reader, &function->labels, "label", text, (struct type){KIND_UNSIGNED, 0}, function->length);
        return;
    }
    if (text[0] == '.' && ONE_OF(other_directives, text, false)) {
        give_up(reader, "the stand-in does not know '%s'", text);
        return;
    }
    if (text[0] == '.' || isdigit((unsigned char)text[0])) {
        give_up(reader, "Parsing error near '%s': syntax error", text);
        return;
    }
    strcpy(copy, text);
    int count = split(copy, parts);
    enum refusal refusal = parse_opcode(&code, parts, count);
    if (refusal == KNOWN && code.operation == OP_MMA) {
        refusal = strcmp(text, MMA) == 0 ? KNOWN : NOT_HERE;
        if (refusal == KNOWN && (reader->version < 70 || reader->target < 80)) {
            complain(reader, "the stand-in has mma of bf16 from .version 7.0 and .target sm_80 on");
        }
    }
    if (refusal != KNOWN) {
        if (refusal == NOT_HERE) {
            complain(reader, "the stand-in does not know '%s'", text);
        } else {
            complain(reader, refusal == NO_INSTRUCTION ? "Not a name of any known instruction: '%s'"
                    : refusal == WRONG_COMPARISON ? "Mismatch between instruction type and comparison qualifier"
                    : refusal == WRONG_TYPES ? "Unexpected instruction types specified for '%s'"
                    : "Comparison modifier required for instruction '%s'", parts[0]);
        }
        skip_operands(reader);
        expect(reader, ';');
        return;
    }
    parse_operands(reader, function, &code, parts[0]);
    if (reader->failed) {
        return;
    }
    if (function->length % 64 == 0) {
        struct instruction *more = realloc(function->code, sizeof(code) * (size_t)(function->length + 64));
        if (more == NULL) {
            give_up(reader, "out of memory");
            return;
        }
        function->code = more;
    }
    function->code[function->length++] = code;
}

static void parse_function(struct reader *reader, struct ptx_module *module)
{
    char text[MAX_NAME];
    struct ptx_function *function = calloc(1, sizeof(*function));
    if (function == NULL || !word(reader, function->name)) {
        free(function);
        return;
    }
    if (ptx_find(module, function->name) != NULL) {
        complain(reader, "Duplicate definition of function '%s'", function->name);
    }
    function->next = module->functions;
    module->functions = function;
    if (take(reader, '(') && !take(reader, ')')) {
        do {
            struct type type = {KIND_UNSIGNED, 0};
            if (!word(reader, text) || strcmp(text, ".param") != 0) {
                give_up(reader, "Parsing error near '%s': syntax error", text);
                return;
            }
            /* .ptr .global .align 8 and the like say what the stand-in need not know. */
            while (word(reader, text) && text[0] == '.') {
                if (strcmp(text, ".align") == 0) {
                    word(reader, text);
                } else if (type.bytes == 0) {
                    parse_type(text + 1, &type);
                }
            }
            if (type.bytes == 0 || function->parameters.count == PTX_MAX_PARAMETERS) {
                give_up(reader, "a parameter of a type that the stand-in does not know");
                return;
            }
            add_name(reader, &function->parameters, "variable", text, type, function->parameters.count);
        } while (take(reader, ','));
        expect(reader, ')');
    }
    expect(reader, '{');
    while (!reader->failed && !take(reader, '}')) {
        parse_statement(reader, function);
    }
    for (int i = 0; !reader->failed && i < function->length; i++) {
        if (function->code[i].operation == OP_BRA) {
            const struct name *label = find_name(&function->labels, function->code[i].label);
            if (label == NULL) {
                unknown_symbol(reader, function->code[i].label, function->code[i].line);
            } else {
                function->code[i].target = label->value;
            }
        }
    }
}

struct head {
    int version, target, address_bits;
};

/* The first version of PTX with a target; of others it is not known here. */
static bool version_has(int version, int target)
{
    static const struct { int target, version; } first[] = {
        {20, 20}, {21, 20}, {30, 30}, {32, 40}, {35, 31}, {37, 41}, {50, 40}, {52, 41}, {53, 42}, {60, 50}, {61, 50},
        {62, 50}, {70, 60}, {72, 61}, {75, 63}, {80, 70}, {86, 71}, {87, 74}, {88, 90}, {89, 78}, {90, 78}, {100, 86},
        {101, 86}, {103, 88}, {110, 90}, {120, 87}, {121, 88},
    };
    for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++) {
        if (first[i].target == target) {
            return version >= first[i].version;
        }
    }
    return true;
}

/* ".version 8.4", ".target sm_80, texmode..." and perhaps ".address_size 64". */
static enum ptx_problem parse_head(struct reader *reader, int newest_version, struct head *head)
{
    static const char *const source = "application ptx input";
    char text[MAX_NAME];
    int major = 0, minor = 0;
    skip_space(reader);
    if (word_length(reader->at) != 8 || strncmp(reader->at, ".version", 8) != 0) {
        log_text(reader, "error   : Binary format for key='0', ident='' is not recognized");
        return PTX_IMAGE;
    }
    word(reader, text);
    if (!word(reader, text) || sscanf(text, "%d.%d", &major, &minor) != 2) {
        give_up(reader, "Missing .version directive at start of file '%s'", source);
        return PTX_INVALID;
    }
    head->version = major * 10 + minor;
    if (head->version > newest_version) {
        give_up(reader, "Unsupported .version %d.%d; current version is '%d.%d'", major, minor, newest_version / 10,
            newest_version % 10);
        return PTX_VERSION;
    }
    skip_space(reader);
    if (word_length(reader->at) != 7 || strncmp(reader->at, ".target", 7) != 0) {
        give_up(reader, "Missing .target directive at start of file '%s'", source);
        return PTX_INVALID;
    }
    word(reader, text);
    if (!word(reader, text)
        || (sscanf(text, "sm_%d", &head->target) != 1 && sscanf(text, "compute_%d", &head->target) != 1)) {
        give_up(reader, "Target architecture not defined at start of file '%s'", source);
        return PTX_INVALID;
    }
    if (!version_has(head->version, head->target)) {
        complain(reader, "PTX .version %d.%d does not support .target %s", major, minor, text);
    }
    while (take(reader, ',')) {
        word(reader, text);
    }
    head->address_bits = 64;
    skip_space(reader);
    if (word_length(reader->at) == 13 && strncmp(reader->at, ".address_size", 13) == 0) {
        word(reader, text);
        head->address_bits = word(reader, text) ? atoi(text) : 0;
        if (head->version < 23) {
            complain(reader, "Feature '.address_size directive' requires PTX ISA .version 2.3 or later");
        }
        if (head->address_bits != 32 && head->address_bits != 64) {
            complain(reader, "Illegal value for .address_size directive (must be 32 or 64)");
        }
    }
    return PTX_OK;
}

/* What is wrong with the whole of a file that has no errors of its own. */
static void check_head(struct reader *reader, const struct head *head, int capability)
{
    if (head->target > capability) {
        log_text(reader, "ptxas fatal   : SM version specified by .target is higher than default SM version assumed");
    } else if (head->address_bits == 32) {
        log_text(reader, capability < 90 ? "ptxas fatal   : the stand-in knows 64-bit addresses only"
            : "ptxas fatal   :  32-Bit ABI (--machine 32 or 32-Bit addressing) is not supported on sm_90 or higher "
              "architectures.");
    }
}

static void parse_directives(struct reader *reader, struct ptx_module *module)
{
    char directive[MAX_NAME];
    while (!reader->failed) {
        skip_space(reader);
        if (*reader->at == '\0' || !word(reader, directive)) {
            return;
        }
        if (strcmp(directive, ".visible") == 0 || strcmp(directive, ".extern") == 0) {
            continue;
        }
        if (strcmp(directive, ".entry") == 0) {
            parse_function(reader, module);
        } else if (ONE_OF(other_directives, directive, false)) {
            give_up(reader, "the stand-in does not know '%s'", directive);
        } else {
            give_up(reader, "Parsing error near '%s': syntax error", directive);
        }
    }
}

enum ptx_problem ptx_load(const char *text, int newest_version, int capability, struct ptx_module **out, char *log,
    size_t log_size)
{
    struct reader reader = {.at = text, .line = 1, .log = log, .log_size = log_size};
    struct head head = {0, 0, 0};
    struct ptx_module *module = calloc(1, sizeof(*module));
    enum ptx_problem problem = module != NULL ? parse_head(&reader, newest_version, &head) : PTX_INVALID;
    if (problem == PTX_OK) {
        reader.version = head.version;
        reader.target = head.target;
        parse_directives(&reader, module);
        if (!reader.failed && reader.unknown[0] != '\0') {
            log_text(&reader, reader.unknown);
        }
        if (!reader.wrong) {
            check_head(&reader, &head, capability);
            problem = reader.wrong ? PTX_INVALID : PTX_OK;
        } else {
            problem = PTX_INVALID;
            log_text(&reader, "ptxas fatal   : Ptx assembly aborted due to errors");
        }
    } else if (problem == PTX_INVALID) {
        log_text(&reader, "ptxas fatal   : Ptx assembly aborted due to errors");
    }
    if (problem != PTX_OK) {
        ptx_free(module);
        module = NULL;
    }
    *out = module;
    return problem;
}

void ptx_free(struct ptx_module *module)
{
    while (module != NULL && module->functions != NULL) {
        struct ptx_function *function = module->functions;
        module->functions = function->next;
        free(function->parameters.all);
        free(function->registers.all);
        free(function->labels.all);
        free(function->code);
        free(function);
    }
    free(module);
}

struct ptx_function *ptx_find(struct ptx_module *module, const char *name)
{
    struct ptx_function *function = module->functions;
    while (function != NULL && strcmp(function->name, name) != 0) {
        function = function->next;
    }
    return function;
}

int ptx_parameter_count(const struct ptx_function *function)
{
    return function->parameters.count;
}

/* The value of a type's width, extended as its sign asks. */
static uint64_t fit(uint64_t value, struct type type)
{
    unsigned unused = 64 - 8 * type.bytes;
    if (type.kind == KIND_PREDICATE) {
        return value & 1;
    }
    return type.kind == KIND_SIGNED ? (uint64_t)((int64_t)(value << unused) >> unused) : value << unused >> unused;
}

static uint64_t real_result(enum operation operation, unsigned bytes, uint64_t a, uint64_t b, uint64_t c)
{
    double x[3];
    uint64_t in[3] = {a, b, c};
    for (int i = 0; i < 3; i++) {
        float narrow;
        memcpy(&narrow, &in[i], sizeof(narrow));
        memcpy(&x[i], &in[i], sizeof(x[i]));
        x[i] = bytes == 4 ? (double)narrow : x[i];
    }
    double result = operation == OP_ADD ? x[0] + x[1] : operation == OP_SUB ? x[0] - x[1]
        : operation == OP_MUL ? x[0] * x[1] : operation == OP_DIV ? x[0] / x[1]
        : operation == OP_MIN ? (x[0] < x[1] ? x[0] : x[1])
        : operation == OP_MAX ? (x[0] > x[1] ? x[0] : x[1]) : operation == OP_NEG ? -x[0] : x[0] * x[1] + x[2];
    float narrow = (float)result;
    if (operation == OP_MAD) {
        /* Rounded once, as the real one does it. */
        narrow = fmaf((float)x[0], (float)x[1], (float)x[2]);
        result = fma(x[0], x[1], x[2]);
    }
    uint64_t out = 0;
    memcpy(&out, bytes == 4 ? (void *)&narrow : (void *)&result, bytes);
    return out;
}

static uint64_t whole_result(const struct instruction *code, uint64_t a, uint64_t b, uint64_t c)
{
    bool negative = code->type.kind == KIND_SIGNED;
    int64_t x = (int64_t)a, y = (int64_t)b;
    unsigned bits = 8 * code->type.bytes;
    __int128 product = 0;
    switch (code->operation) {
    case OP_ADD: return a + b;
    case OP_SUB: return a - b;
    case OP_MUL:
    case OP_MAD:
        product = negative ? (__int128)x * y : (__int128)((unsigned __int128)a * b);
        if (code->part == PART_HI) {
            product = negative ? product >> bits : (__int128)((unsigned __int128)product >> bits);
        }
        return (uint64_t)product + (code->operation == OP_MAD ? c : 0);
    case OP_DIV: return b == 0 ? ~0ull : negative ? (uint64_t)(y == -1 ? (int64_t)(0 - a) : x / y) : a / b;
    case OP_REM: return b == 0 ? a : negative ? (uint64_t)(y == -1 ? 0 : x % y) : a % b;
    case OP_MIN: return negative ? (x < y ? a : b) : (a < b ? a : b);
    case OP_MAX: return negative ? (x > y ? a : b) : (a > b ? a : b);
    case OP_AND: return a & b;
    case OP_OR: return a | b;
    case OP_XOR: return a ^ b;
    case OP_NOT: return ~a;
    case OP_NEG: return 0 - a;
    case OP_SHL: return b >= bits ? 0 : a << b;
    case OP_SHR: return b >= bits ? (negative && x < 0 ? ~0ull : 0) : negative ? (uint64_t)(x >> b) : a >> b;
    default: return a;
    }
}

static bool compare(const struct instruction *code, uint64_t a, uint64_t b)
{
    bool less = code->type.kind == KIND_SIGNED ? (int64_t)a < (int64_t)b : a < b;
    switch (code->comparison) {
    case CMP_EQ: return a == b;
    case CMP_NE: return a != b;
    case CMP_LT: return less;
    case CMP_LE: return less || a == b;
    case CMP_GT: return !less && a != b;
    default: return !less;
    }
}

struct thread {
    const struct ptx_function *function;
    struct ptx_launch *launch;
    uint64_t *registers;
    uint32_t special[14];
    long long number;
    int at; /* the next instruction */
};

static uint64_t value_of(const struct thread *thread, const struct operand *operand, struct type type)
{
    switch (operand->kind) {
    case OPERAND_REGISTER: return fit(thread->registers[operand->index], type);
    case OPERAND_SPECIAL: return fit(thread->special[operand->index], type);
    default: return fit((uint64_t)operand->number, type);
    }
}

static enum ptx_end access_memory(struct thread *thread, const struct instruction *code)
{
    static const struct type wide = {KIND_UNSIGNED, 8};
    struct operand base = code->in[0];
    uint64_t at = (uint64_t)base.number + (base.kind == OPERAND_REGISTER ? value_of(thread, &base, wide) : 0);
    if (at % code->type.bytes != 0) {
        return PTX_MISALIGNED;
    }
    void *memory = thread->launch->memory(thread->launch->context, at, code->type.bytes);
    if (memory == NULL) {
        return PTX_ILLEGAL_ADDRESS;
    }
    thread->launch->bytes += code->type.bytes;
    if (code->operation == OP_LD || code->operation == OP_ATOM) {
        uint64_t value = 0;
        memcpy(&value, memory, code->type.bytes);
        thread->registers[code->out.index] = fit(value, code->type);
        if (code->operation == OP_ATOM) {
            value += value_of(thread, &code->in[1], code->type);
            memcpy(memory, &value, code->type.bytes);
        }
        return PTX_DONE;
    }
    uint64_t value = value_of(thread, &code->in[1], code->type);
    if (thread->number == thread->launch->wrong_thread) {
        value ^= 1ull << thread->launch->wrong_bit % (8 * code->type.bytes);
    }
    memcpy(memory, &value, code->type.bytes);
    return PTX_DONE;
}

/* Where the lanes of a warp hold the numbers of a matrix, as PTX ISA says of m16n8k16: the row and the column of number
 * `i` of a lane. A has rows of 16, B has columns of 16, C and D have rows of 8. */
static void place_in_a(int lane, int i, int *row, int *column)
{
    *row = lane / 4 + (i / 2 % 2 == 0 ? 0 : 8);
    *column = lane % 4 * 2 + i % 2 + (i < 4 ? 0 : 8);
}

static void place_in_b(int lane, int i, int *row, int *column)
{
    *row = lane % 4 * 2 + i % 2 + (i < 2 ? 0 : 8);
    *column = lane / 4;
}

static void place_in_c(int lane, int i, int *row, int *column)
{
    *row = lane / 4 + (i < 2 ? 0 : 8);
    *column = lane % 4 * 2 + i % 2;
}

static float real_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* A bfloat16 is the upper half of a float. */
static float half_of(uint64_t two, int which)
{
    return real_of((uint32_t)(which == 0 ? two << 16 : two & 0xffff0000u));
}

static void multiply_matrices(struct thread *warp, const struct instruction *code)
{
    float a[16][16], b[16][8], c[16][8];
    int row, column;
    for (int lane = 0; lane < 32; lane++) {
        const uint64_t *registers = warp[lane].registers;
        for (int i = 0; i < 8; i++) {
            place_in_a(lane, i, &row, &column);
            a[row][column] = half_of(registers[code->vectors[1][i / 2]], i % 2);
        }
        for (int i = 0; i < 4; i++) {
            place_in_b(lane, i, &row, &column);
            b[row][column] = half_of(registers[code->vectors[2][i / 2]], i % 2);
            place_in_c(lane, i, &row, &column);
            c[row][column] = real_of((uint32_t)registers[code->vectors[3][i]]);
        }
    }
    for (int i = 0; i < 16; i++) {
        for (int k = 0; k < 16; k++) {
            for (int j = 0; j < 8; j++) {
                c[i][j] += a[i][k] * b[k][j];
            }
        }
    }
    for (int lane = 0; lane < 32; lane++) {
        for (int i = 0; i < 4; i++) {
            uint32_t bits;
            place_in_c(lane, i, &row, &column);
            memcpy(&bits, &c[row][column], sizeof(bits));
            if (warp[lane].number == warp[lane].launch->wrong_real_thread && i == 0) {
                bits ^= 1u << warp[lane].launch->wrong_bit % 32;
            }
            warp[lane].registers[code->vectors[0][i]] = bits;
        }
    }
}

/* Runs until the thread ends, or comes to an instruction of its whole warp (PTX_WARP). */
static enum ptx_end run_thread(struct thread *thread)
{
    const struct ptx_function *function = thread->function;
    while (thread->at < function->length) {
        const struct instruction *code = &function->code[thread->at++];
        if (++thread->launch->steps > MAX_STEPS) {
            return PTX_TIMEOUT;
        }
        if (code->predicate >= 0 && (thread->registers[code->predicate] & 1) == code->negated) {
            continue;
        }
        enum ptx_end end = PTX_DONE;
        uint64_t result;
        uint64_t a = code->in[0].kind != OPERAND_NONE ? value_of(thread, &code->in[0], code->from) : 0;
        uint64_t b = code->in[1].kind != OPERAND_NONE ? value_of(thread, &code->in[1], code->from) : 0;
        switch (code->operation) {
        case OP_RET:
            return PTX_DONE;
        case OP_WARP:
            continue;
        case OP_MMA:
            /* A tensor core does 16 times what its multiprocessor's other cores do: 128 steps' worth for a warp. */
            thread->launch->steps += 3;
            return PTX_WARP;
        case OP_BRA:
            thread->at = code->target;
            continue;
        case OP_LD:
        case OP_ST:
        case OP_ATOM:
            end = access_memory(thread, code);
            if (end != PTX_DONE) {
                return end;
            }
            continue;
        case OP_LD_PARAM:
            result = 0;
            memcpy(&result, thread->launch->parameters[code->in[0].index], code->type.bytes);
            break;
        case OP_SETP:
            thread->registers[code->out.index] = compare(code, a, b);
            continue;
        case OP_SELP:
            result = thread->registers[code->in[2].index] & 1 ? a : b;
            break;
        case OP_MOV:
        case OP_CVT:
            result = a;
            break;
        default: {
            struct type wide = {code->type.kind, code->part == PART_WIDE ? code->type.bytes * 2 : code->type.bytes};
            uint64_t c = code->in[2].kind != OPERAND_NONE ? value_of(thread, &code->in[2], wide) : 0;
            if (code->type.kind == KIND_FLOAT) {
                result = real_result(code->operation, code->type.bytes, a, b, c);
                if (thread->number == thread->launch->wrong_real_thread) {
                    result ^= 1ull << thread->launch->wrong_bit % (8 * code->type.bytes);
                }
            } else {
                result = whole_result(code, a, b, c);
            }
            thread->registers[code->out.index] = fit(result, wide);
            continue;
        }
        }
        thread->registers[code->out.index] = fit(result, code->type);
    }
    return PTX_DONE;
}

/* The threads of a warp one after the other, from one instruction of all of them to the next. */
static enum ptx_end run_warp(struct thread *warp, int count)
{
    while (true) {
        int waiting = 0;
        for (int lane = 0; lane < count; lane++) {
            enum ptx_end end = run_thread(&warp[lane]);
            if (end != PTX_DONE && end != PTX_WARP) {
                return end;
            }
            waiting += end == PTX_WARP;
        }
        if (waiting == 0) {
            return PTX_DONE;
        }
        for (int lane = 1; lane < count; lane++) {
            if (warp[lane].at != warp[0].at) {
                return PTX_DIVERGED;
            }
        }
        if (waiting != 32) {
            return PTX_DIVERGED;
        }
        multiply_matrices(warp, &warp[0].function->code[warp[0].at - 1]);
    }
}

enum ptx_end ptx_run(const struct ptx_function *function, struct ptx_launch *launch)
{
    enum ptx_end end = PTX_DONE;
    size_t registers = (size_t)function->registers.count + 1;
    struct thread warp[32];
    uint64_t *all = malloc(32 * registers * sizeof(*all));
    unsigned long long blocks = (unsigned long long)launch->grid[0] * launch->grid[1] * launch->grid[2];
    unsigned threads = launch->block[0] * launch->block[1] * launch->block[2];
    for (unsigned long long block = 0; block < blocks && end == PTX_DONE; block++) {
        for (unsigned first = 0; first < threads && end == PTX_DONE; first += 32) {
            int count = threads - first < 32 ? (int)(threads - first) : 32;
            memset(all, 0, 32 * registers * sizeof(*all));
            for (int lane = 0; lane < count; lane++) {
                unsigned i = first + (unsigned)lane;
                warp[lane] = (struct thread){
                    .function = function, .launch = launch, .registers = all + (size_t)lane * registers,
                    .special = {
                        i % launch->block[0], i / launch->block[0] % launch->block[1],
                        i / launch->block[0] / launch->block[1],
                        launch->block[0], launch->block[1], launch->block[2],
                        (uint32_t)(block % launch->grid[0]), (uint32_t)(block / launch->grid[0] % launch->grid[1]),
                        (uint32_t)(block / launch->grid[0] / launch->grid[1]),
                        launch->grid[0], launch->grid[1], launch->grid[2],
                        (uint32_t)lane, (uint32_t)(block % launch->multiprocessors),
                    },
                    .number = (long long)(block * threads + i),
                };
            }
            end = run_warp(warp, count);
        }
    }
    free(all);
    return end;
}
