/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * See scenario.h.
 */
#include "scenario.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* By this the installer tells a stand-in from NVIDIA's own library. */
__attribute__((used)) static const char marker[] = "baremetal-gpu simulator: a stand-in, not NVIDIA's library";

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct json *current;
/* Of the scenario and of what is laid over it. */
static const char *const overlays[] = {"mig-at-boot", "mig"};
static struct stat current_stat, overlay_stat[2];

/* Calls counted for "after" and "times" of a fault: by the fault's place in the list, since the last re-reading. */
#define MAX_FAULTS 256
static long fault_calls[MAX_FAULTS];

void scenario_lock(void)
{
    pthread_mutex_lock(&lock);
}

void scenario_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

/* A child that is forked while another thread holds the lock must not wait for it for ever. */
static void after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
}

__attribute__((constructor)) static void prepare(void)
{
    pthread_atfork(NULL, NULL, after_fork);
}

static const char *scenario_path(void)
{
    static const char *const places[] = {
        "/opt/baremetal-gpu-simulators/scenario.json", SIMULATOR_DIRECTORY "/scenario.json",
    };
    const char *path = getenv("NVML_SIMULATOR_SCENARIO");
    if (path != NULL && *path != '\0') {
        return path;
    }
    /* In a container that was given the host's /usr only the second is there. */
    return access(places[0], R_OK) == 0 ? places[0] : places[1];
}

void scenario_beside(const char *name, char *out, size_t size)
{
    const char *scenario = getenv("NVML_SIMULATOR_SCENARIO");
    bool kept = strcmp(name, "mig-at-boot") == 0;
    if (scenario != NULL && *scenario != '\0') {
        snprintf(out, size, "%s.%s", scenario, name);
    } else {
        snprintf(out, size, "%s%s%s", SIMULATOR_DIRECTORY, kept ? "/" : "/run/", name);
    }
}

static char *read_file(const char *path, struct stat *status)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, status) != 0) {
        if (fd >= 0) {
            close(fd);
        }
        return NULL;
    }
    size_t capacity = (size_t)status->st_size + 4096, length = 0;
    char *text = malloc(capacity);
    while (text != NULL) {
        ssize_t got = read(fd, text + length, capacity - length - 1);
        if (got <= 0) {
            text[length] = '\0';
            break;
        }
        length += (size_t)got;
        if (capacity - length < 2) {
            char *more = realloc(text, capacity *= 2);
            if (more == NULL) {
                free(text);
            }
            text = more;
        }
    }
    close(fd);
    return text;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_size == b->st_size
        && a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* {UUID: {"current", "pending", "instances"}} takes the place of what the scenario says of MIG: the first of a name
 * counts. */
static void lay_over(struct json *scenario, const char *name, struct stat *status)
{
    char path[PATH_MAX], problem[200];
    scenario_beside(name, path, sizeof(path));
    memset(status, 0, sizeof(*status));
    char *text = read_file(path, status);
    struct json *over = text != NULL ? json_parse(text, problem, sizeof(problem)) : NULL;
    free(text);
    const struct json *devices = json_get(scenario, "devices");
    for (int place = 0; over != NULL && devices != NULL && place < devices->count; place++) {
        const struct json *device = json_at(devices, place);
        struct json *mig = (struct json *)json_get(device, "mig");
        struct json *own = (struct json *)json_get(over, json_text(device, "uuid", "?"));
        if (mig != NULL && own != NULL && own->first != NULL) {
            struct json *last = own->first;
            while (last->next != NULL) {
                last = last->next;
            }
            last->next = mig->first;
            mig->first = own->first;
            mig->count += own->count;
            own->first = NULL;
        }
    }
    json_free(over);
}

static bool overlays_unchanged(void)
{
    for (size_t i = 0; i < sizeof(overlays) / sizeof(overlays[0]); i++) {
        char path[PATH_MAX];
        struct stat status = {0};
        scenario_beside(overlays[i], path, sizeof(path));
        if (stat(path, &status) != 0) {
            memset(&status, 0, sizeof(status));
        }
        if (!same_file(&status, &overlay_stat[i])) {
            return false;
        }
    }
    return true;
}

const struct json *scenario_current(void)
{
    const char *path = scenario_path();
    struct stat status;
    if (stat(path, &status) != 0) {
        if (current == NULL) {
            fprintf(stderr, "simulator: no scenario at %s: %s\n", path, strerror(errno));
        }
        return current;
    }
    bool same = current != NULL && same_file(&status, &current_stat);
    if (same && overlays_unchanged()) {
        return current;
    }
    char *text = read_file(path, &status);
    if (text == NULL) {
        return current;
    }
    char problem[200];
    struct json *fresh = json_parse(text, problem, sizeof(problem));
    free(text);
    if (fresh == NULL) {
        /* A file that is being written: what was read before holds until it is whole. */
        fprintf(stderr, "simulator: %s: %s\n", path, problem);
        return current;
    }
    for (size_t i = 0; i < sizeof(overlays) / sizeof(overlays[0]); i++) {
        lay_over(fresh, overlays[i], &overlay_stat[i]);
    }
    json_free(current);
    current = fresh;
    current_stat = status;
    if (!same) {
        memset(fault_calls, 0, sizeof(fault_calls));
    }
    return current;
}

const struct json *scenario_compute(
    const struct json *device, const char *uuid, long long serial, const struct json **instance)
{
    const struct json *instances = json_true(device, "mig.current") ? json_get(device, "mig.instances") : NULL;
    for (int i = 0; instances != NULL && i < instances->count; i++) {
        const struct json *owner = json_at(instances, i), *all = json_get(owner, "compute");
        for (int j = 0; all != NULL && j < all->count; j++) {
            const struct json *one = json_at(all, j);
            if (uuid != NULL ? strcmp(json_text(one, "uuid", ""), uuid) == 0
                             : serial < 0 || json_integer(one, "serial", -1) == serial) {
                *instance = owner;
                return one;
            }
        }
    }
    return NULL;
}

void scenario_capability(int minor, int gpu_instance, int compute_instance, char *out, size_t size)
{
    int number = 3 + 135 * minor + 9 * gpu_instance + (compute_instance < 0 ? 0 : 1 + compute_instance);
    snprintf(out, size, "/dev/nvidia-caps/nvidia-cap%d", number);
}

bool scenario_alone(const struct json *scenario)
{
    return strcmp(json_text(scenario, "kernel", "stand-in"), "assume-loaded") == 0;
}

/* The first word of the text that looks like 550.163.01. */
static bool find_version(const char *text, char *out, size_t size)
{
    for (const char *at = text; *at != '\0'; at++) {
        size_t length = strspn(at, "0123456789.");
        if (length >= 5 && at[3] == '.' && strspn(at, "0123456789") == 3 && length < size
            && (at == text || strchr(" \t.", at[-1]) != NULL)) {
            memcpy(out, at, length);
            out[length] = '\0';
            return true;
        }
        if (length > 0) {
            at += length - 1;
        }
    }
    return false;
}

bool scenario_module_version(const struct json *scenario, char *out, size_t size)
{
    if (scenario_alone(scenario)) {
        const char *version = json_text(scenario, "driver.version", NULL);
        if (version != NULL) {
            snprintf(out, size, "%s", version);
        }
        return version != NULL;
    }
    /* In a container /proc is the kernel's own, which knows of no stand-in: hence the second place. */
    static const char *const places[] = {
        "/proc/driver/nvidia/version", SIMULATOR_DIRECTORY "/run/proc-driver/nvidia/version",
    };
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        struct stat status;
        char *text = read_file(places[i], &status);
        bool known = text != NULL && find_version(text, out, size);
        free(text);
        if (known) {
            return true;
        }
    }
    return false;
}

bool scenario_has_character_device(const char *name)
{
    static const char *const places[] = {SIMULATOR_DIRECTORY "/run/proc-devices", "/proc/devices"};
    struct stat status;
    char line[64];
    snprintf(line, sizeof(line), " %s\n", name);
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        char *text = read_file(places[i], &status);
        bool listed = text != NULL && strstr(text, line) != NULL;
        free(text);
        if (listed) {
            return true;
        }
    }
    return false;
}

void scenario_library_version(const struct json *scenario, const void *self, char *out, size_t size)
{
    const char *set = json_text(scenario, "driver.library_version", NULL);
    if (set == NULL && scenario_alone(scenario)) {
        set = json_text(scenario, "driver.version", "");
    }
    if (set != NULL) {
        snprintf(out, size, "%s", set);
        return;
    }
    Dl_info info;
    char path[PATH_MAX];
    out[0] = '\0';
    if (dladdr(self, &info) != 0 && info.dli_fname != NULL && realpath(info.dli_fname, path) != NULL) {
        const char *name = strstr(strrchr(path, '/'), ".so.");
        if (name != NULL && find_version(name + 4, out, size)) {
            return;
        }
    }
    /* A file without a version in its name is nobody's installed library: it agrees with what is loaded. */
    if (!scenario_module_version(scenario, out, size)) {
        out[0] = '\0';
    }
}

int scenario_branch(const char *version)
{
    return atoi(version);
}

int scenario_cuda_version(const struct json *scenario, const char *driver_version)
{
    static const struct { int branch, cuda; } newest[] = {
        {610, 13030}, {595, 13020}, {590, 13010}, {580, 13000}, {575, 12090}, {570, 12080}, {565, 12070},
        {560, 12060}, {555, 12050}, {550, 12040}, {545, 12030}, {535, 12020}, {530, 12010}, {525, 12000},
        {520, 11080}, {515, 11070}, {510, 11060}, {495, 11050}, {470, 11040}, {465, 11030}, {460, 11020},
        {455, 11010}, {450, 11000}, {440, 10020}, {418, 10010}, {410, 10000}, {390, 9010}, {0, 8000},
    };
    int set = (int)json_integer(scenario, "driver.cuda_version", 0);
    int branch = scenario_branch(driver_version), i = 0;
    while (newest[i].branch > branch) {
        i++;
    }
    return set != 0 ? set : newest[i].cuda;
}

bool scenario_driver_knows(const struct json *device, const char *driver_version)
{
    int branch = scenario_branch(driver_version);
    return branch >= json_integer(device, "driver_branches.0", 0)
        && branch <= json_integer(device, "driver_branches.1", INT_MAX);
}

static struct { char path[64]; int fd; } held[64];

void scenario_release_nodes(void)
{
    for (size_t i = 0; i < sizeof(held) / sizeof(held[0]) && held[i].path[0] != '\0'; i++) {
        close(held[i].fd);
        held[i].path[0] = '\0';
    }
}

static bool ask_nvidia_modprobe(int minor)
{
    static const char helper[] = "/usr/bin/nvidia-modprobe";
    char number[16];
    char *const words[] = {"nvidia-modprobe", "-c", number, NULL};
    char *const environment[] = {NULL};
    pid_t child;
    int status = -1;
    snprintf(number, sizeof(number), "%d", minor);
    return access(helper, X_OK) == 0 && posix_spawn(&child, helper, NULL, NULL, words, environment) == 0
        && waitpid(child, &status, 0) == child && status == 0;
}

bool scenario_make_node(const char *path, int minor)
{
    struct stat status;
    char *parameters = read_file("/proc/driver/nvidia/params", &status);
    bool allowed = parameters != NULL && strstr(parameters, "ModifyDeviceFiles: 0") == NULL;
    free(parameters);
    if (!allowed) {
        return false;
    }
    if (geteuid() != 0) {
        return ask_nvidia_modprobe(minor);
    }
    return mknod(path, S_IFCHR | 0666, (dev_t)makedev(195, (unsigned)minor)) == 0 && chmod(path, 0666) == 0;
}

int scenario_open_node(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 && errno != ENXIO && errno != ENODEV) {
        return errno;
    }
    if (fd >= 0) {
        struct stat status;
        bool device = fstat(fd, &status) == 0 && S_ISCHR(status.st_mode);
        close(fd);
        if (!device) {
            return ENODEV;
        }
    }
    for (size_t i = 0; i < sizeof(held) / sizeof(held[0]); i++) {
        if (strcmp(held[i].path, path) == 0) {
            break;
        }
        if (held[i].path[0] == '\0') {
            held[i].fd = open(path, O_PATH | O_CLOEXEC);
            snprintf(held[i].path, sizeof(held[i].path), "%s", path);
            break;
        }
    }
    return 0;
}

struct fault scenario_fault(const struct json *scenario, const char *call, int device)
{
    struct fault fault = {0};
    const struct json *rule = json_get(scenario, "faults");
    int number = 0;
    for (rule = rule != NULL ? rule->first : NULL; rule != NULL; rule = rule->next, number++) {
        const struct json *which = json_get(rule, "device");
        if (fnmatch(json_text(rule, "call", "*"), call, 0) != 0 || (which != NULL && which->integer != device)) {
            continue;
        }
        long seen = number < MAX_FAULTS ? fault_calls[number]++ : 0;
        long after = (long)json_integer(rule, "after", 0), times = (long)json_integer(rule, "times", LONG_MAX);
        if (seen < after || seen - after >= times) {
            continue;
        }
        fault.ordered = true;
        fault.error = (int)json_integer(rule, "error", fault.error);
        fault.delay_ms += (long)json_integer(rule, "delay_ms", 0);
        fault.hang |= json_true(rule, "hang");
        fault.crash |= json_true(rule, "crash");
        fault.garbage |= json_true(rule, "garbage");
    }
    return fault;
}

void scenario_suffer(const struct fault *fault)
{
    if (fault->delay_ms > 0) {
        struct timespec rest = {fault->delay_ms / 1000, fault->delay_ms % 1000 * 1000000};
        while (nanosleep(&rest, &rest) != 0 && errno == EINTR) {
        }
    }
    if (fault->crash) {
        abort();
    }
    while (fault->hang) {
        pause();
    }
}

void scenario_fill_garbage(void *out, size_t size)
{
    static unsigned state = 2463534242u;
    unsigned char *bytes = out;
    for (size_t i = 0; i < size; i++) {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        bytes[i] = (unsigned char)state;
    }
}
