/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * See mig.h. The stand-in keeps the state in a file beside the scenario, which scenario_current() lays over it.
 */
#include "mig.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

int mig_lock(void)
{
    char path[PATH_MAX];
    scenario_beside("mig.lock", path, sizeof(path));
    int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock >= 0) {
        flock(lock, LOCK_EX);
    }
    return lock;
}

void mig_unlock(int lock)
{
    if (lock >= 0) {
        close(lock);
    }
}

static void copy_text(const struct json *node, const char *path, char *out, size_t size)
{
    snprintf(out, size, "%s", json_text(node, path, ""));
}

void mig_load(const struct json *device, struct mig_state *out)
{
    memset(out, 0, sizeof(*out));
    out->current = json_true(device, "mig.current");
    out->pending = json_true(device, "mig.pending");
    out->serials = (int)json_integer(device, "mig.serials", 1000);
    const struct json *all = json_get(device, "mig.instances");
    for (int i = 0; all != NULL && i < all->count && i < MOST_INSTANCES; i++) {
        const struct json *one = json_at(all, i), *computes = json_get(one, "compute");
        struct mig_instance *gi = &out->instances[out->count++];
        gi->id = (int)json_integer(one, "id", 0);
        gi->serial = (int)json_integer(one, "serial", 0);
        gi->profile = (int)json_integer(one, "profile_id", 0);
        gi->start = (int)json_integer(one, "placement.0", 0);
        gi->size = (int)json_integer(one, "placement.1", 0);
        gi->slices = (int)json_integer(one, "slices", 1);
        gi->multiprocessors = (int)json_integer(one, "multiprocessors", 0);
        gi->total_mib = json_integer(one, "memory.total_mib", 0);
        gi->reserved_mib = json_integer(one, "memory.reserved_mib", 0);
        gi->used_mib = json_integer(one, "memory.used_mib", 0);
        copy_text(one, "name", gi->name, sizeof(gi->name));
        for (int j = 0; computes != NULL && j < computes->count && j < 8; j++) {
            const struct json *part = json_at(computes, j);
            struct mig_compute *ci = &gi->compute[gi->computes++];
            ci->id = (int)json_integer(part, "id", 0);
            ci->serial = (int)json_integer(part, "serial", 0);
            ci->index = (int)json_integer(part, "index", 0);
            ci->profile = (int)json_integer(part, "profile_id", 0);
            ci->start = (int)json_integer(part, "start", 0);
            ci->slices = (int)json_integer(part, "slices", 1);
            ci->multiprocessors = (int)json_integer(part, "multiprocessors", 0);
            copy_text(part, "uuid", ci->uuid, sizeof(ci->uuid));
            copy_text(part, "name", ci->name, sizeof(ci->name));
        }
    }
}

void mig_remove(struct mig_state *state, int place)
{
    state->count--;
    memmove(&state->instances[place], &state->instances[place + 1],
        (size_t)(state->count - place) * sizeof(state->instances[0]));
}

static void print_state(FILE *file, const struct mig_state *state)
{
    fprintf(file, "{\"current\": %d, \"pending\": %d, \"serials\": %d, \"instances\": [", state->current,
        state->pending, state->serials);
    for (int i = 0; i < state->count; i++) {
        const struct mig_instance *gi = &state->instances[i];
        fprintf(file, "%s{\"id\": %d, \"serial\": %d, \"profile_id\": %d, \"name\": \"%s\", \"placement\": [%d, %d], "
            "\"slices\": %d, \"multiprocessors\": %d, \"copy_engines\": 1, \"memory\": {\"total_mib\": %lld, "
            "\"reserved_mib\": %lld, \"used_mib\": %lld}, \"compute\": [", i ? ", " : "", gi->id, gi->serial,
            gi->profile, gi->name, gi->start, gi->size, gi->slices, gi->multiprocessors, gi->total_mib,
            gi->reserved_mib, gi->used_mib);
        for (int j = 0; j < gi->computes; j++) {
            const struct mig_compute *ci = &gi->compute[j];
            fprintf(file, "%s{\"id\": %d, \"serial\": %d, \"index\": %d, \"profile_id\": %d, \"start\": %d, "
                "\"slices\": %d, \"multiprocessors\": %d, \"uuid\": \"%s\", \"name\": \"%s\"}", j ? ", " : "", ci->id,
                ci->serial, ci->index, ci->profile, ci->start, ci->slices, ci->multiprocessors, ci->uuid, ci->name);
        }
        fprintf(file, "]}");
    }
    fprintf(file, "]}");
}

/* All GPUs that can do MIG; of `device` what `state` says. `at_boot`: what is left of each after the next boot. */
static bool write_states(
    const struct json *scenario, const struct json *device, const struct mig_state *state, const char *name, bool at_boot)
{
    char path[PATH_MAX], fresh[PATH_MAX + 8];
    scenario_beside(name, path, sizeof(path));
    snprintf(fresh, sizeof(fresh), "%s.new", path);
    FILE *file = fopen(fresh, "we");
    if (file == NULL) {
        return false;
    }
    const struct json *devices = json_get(scenario, "devices");
    const char *separator = "{";
    for (int place = 0; devices != NULL && place < devices->count; place++) {
        const struct json *one = json_at(devices, place);
        struct mig_state now;
        if (json_get(one, "mig") == NULL) {
            continue;
        }
        mig_load(one, &now);
        now = one == device ? *state : now;
        if (at_boot) {
            /* The mode lives in the InfoROM of the older GPUs, in the driver of the others; instances live nowhere. */
            now.current = now.pending = now.pending && json_true(one, "mig.kept_in_inforom");
            now.count = 0;
        }
        fprintf(file, "%s\"%s\": ", separator, json_text(one, "uuid", ""));
        print_state(file, &now);
        separator = ",\n ";
    }
    fprintf(file, "}\n");
    chmod(fresh, 0644);
    return fclose(file) == 0 && rename(fresh, path) == 0;
}

static void write_capability(const char *directory, int number)
{
    char path[PATH_MAX];
    mkdir(directory, 0555);
    snprintf(path, sizeof(path), "%s/access", directory);
    FILE *file = fopen(path, "we");
    if (file != NULL) {
        fprintf(file, "DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", number);
        fclose(file);
    }
}

/* The files of the simulated kernel that say which node is the capability of which instance. */
static void show_capabilities(int minor, const struct mig_state *state, bool there)
{
    char top[PATH_MAX / 2], path[PATH_MAX];
    snprintf(top, sizeof(top), "%s/run/proc-driver/nvidia/capabilities/gpu%d", SIMULATOR_DIRECTORY, minor);
    if (there && state->count > 0) {
        mkdir(top, 0555);
        snprintf(path, sizeof(path), "%s/mig", top);
        mkdir(path, 0555);
    }
    for (int i = 0; i < state->count; i++) {
        const struct mig_instance *gi = &state->instances[i];
        int number = 3 + 135 * minor + 9 * gi->id;
        snprintf(path, sizeof(path), "%s/mig/gi%d", top, gi->id);
        if (there) {
            write_capability(path, number);
        }
        for (int j = 0; j < gi->computes; j++) {
            snprintf(path, sizeof(path), "%s/mig/gi%d/ci%d", top, gi->id, gi->compute[j].id);
            if (there) {
                write_capability(path, number + 1 + gi->compute[j].id);
            } else {
                strcat(path, "/access");
                unlink(path);
                *strrchr(path, '/') = '\0';
                rmdir(path);
            }
        }
        if (!there) {
            snprintf(path, sizeof(path), "%s/mig/gi%d/access", top, gi->id);
            unlink(path);
            *strrchr(path, '/') = '\0';
            rmdir(path);
        }
    }
}

bool mig_keep(const struct json *scenario, const struct json *device, const struct mig_state *state)
{
    struct mig_state before;
    mig_load(device, &before);
    int minor = (int)json_integer(device, "minor", 0);
    bool kept = write_states(scenario, device, state, "mig-at-boot", true)
        && write_states(scenario, device, state, "mig", false);
    if (kept && !scenario_alone(scenario)) {
        show_capabilities(minor, &before, false);
        show_capabilities(minor, state, true);
    }
    return kept;
}

void mig_uuid(char *out, size_t size)
{
    unsigned char b[16];
    if (getrandom(b, sizeof(b), 0) != sizeof(b)) {
        abort();
    }
    snprintf(out, size, "MIG-%02x%02x%02x%02x-%02x%02x-5%01x%02x-a%01x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2],
        b[3], b[4], b[5], b[6] & 15, b[7], b[8] & 15, b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

/* Processes that hold the node open, but for this one. */
static int holders_of(const char *node)
{
    int found = 0;
    DIR *processes = opendir("/proc");
    for (struct dirent *entry = processes != NULL ? readdir(processes) : NULL; entry != NULL;
         entry = readdir(processes)) {
        char path[PATH_MAX], link[PATH_MAX];
        int pid = atoi(entry->d_name);
        if (pid <= 0 || pid == getpid()) {
            continue;
        }
        snprintf(path, sizeof(path), "/proc/%d/fd", pid);
        DIR *files = opendir(path);
        for (struct dirent *file = files != NULL ? readdir(files) : NULL; file != NULL; file = readdir(files)) {
            snprintf(path, sizeof(path), "/proc/%d/fd/%.32s", pid, file->d_name);
            ssize_t length = readlink(path, link, sizeof(link) - 1);
            link[length > 0 ? length : 0] = '\0';
            if (strcmp(link, node) == 0) {
                found++;
                break;
            }
        }
        if (files != NULL) {
            closedir(files);
        }
    }
    if (processes != NULL) {
        closedir(processes);
    }
    return found;
}

int mig_clients(const struct json *scenario, const struct json *device, int gpu_instance, int compute_instance)
{
    const struct json *processes = json_get(device, "processes");
    int found = 0, minor = (int)json_integer(device, "minor", 0);
    for (int i = 0; processes != NULL && i < processes->count; i++) {
        const struct json *one = json_at(processes, i);
        found += (gpu_instance < 0 || json_integer(one, "gpu_instance", -1) == gpu_instance)
            && (compute_instance < 0 || json_integer(one, "compute_instance", 0) == compute_instance);
    }
    if (!scenario_alone(scenario)) {
        char node[64];
        if (gpu_instance < 0) {
            snprintf(node, sizeof(node), "/dev/nvidia%d", minor);
        } else {
            scenario_capability(minor, gpu_instance, compute_instance, node, sizeof(node));
        }
        found += holders_of(node);
    }
    return found;
}
