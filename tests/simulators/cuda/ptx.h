/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Reads PTX and runs its kernels on host memory, as far as kernels on global memory need it: whole and
 * real numbers, additions by atom, one matrix instruction. What it does not
 * know it refuses with a reason, as the driver's compiler refuses bad PTX.
 */
#ifndef SIMULATOR_PTX_H
#define SIMULATOR_PTX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PTX_MAX_PARAMETERS 32

struct ptx_module;
struct ptx_function;

/* PTX_IMAGE: this is no PTX. */
enum ptx_problem { PTX_OK, PTX_IMAGE, PTX_INVALID, PTX_VERSION };

/* `newest_version` is the PTX that the driver knows (84 is 8.4), `capability` what the GPU has (80 is 8.0). */
enum ptx_problem ptx_load(const char *text, int newest_version, int capability, struct ptx_module **out, char *log,
    size_t log_size);
void ptx_free(struct ptx_module *module);
struct ptx_function *ptx_find(struct ptx_module *module, const char *name);
int ptx_parameter_count(const struct ptx_function *function);

struct ptx_launch {
    unsigned grid[3], block[3];
    void **parameters; /* an address for each */
    /* Whether a kernel on this GPU may touch the memory: a pointer to it, or NULL. */
    void *(*memory)(void *context, uint64_t address, size_t size);
    void *context;
    /* One bit of what thread number `wrong_thread` stores is turned; -1 for none. */
    long long wrong_thread;
    /* The same of each real number that thread `wrong_real_thread` computes. */
    long long wrong_real_thread;
    unsigned wrong_bit;
    unsigned multiprocessors; /* over which the blocks are dealt */
    /* What it took: instructions, and bytes of memory. */
    unsigned long long steps, bytes;
};

/* PTX_DIVERGED: a part of a warp alone came to an instruction of the whole warp. PTX_WARP is not returned. */
enum ptx_end { PTX_DONE, PTX_ILLEGAL_ADDRESS, PTX_MISALIGNED, PTX_TIMEOUT, PTX_DIVERGED, PTX_WARP };
enum ptx_end ptx_run(const struct ptx_function *function, struct ptx_launch *launch);

#endif
