// SPDX-License-Identifier: GPL-3.0-or-later
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
//
// Put every GPU of this host through a copy and a kernel, with the CUDA runtime. It asks what cuda_driver.py asks
// through the driver API, and tells it in the same lines: one JSON object for each step before it is taken and for
// each GPU as soon as it is done, so that a GPU which never answers can be named.
//
// Whatever cudaDeviceProp lost in CUDA 13 is asked for as an attribute, so that every CUDA since 10 compiles it.

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

struct Failure {
    std::string call;
    bool has_code;
    int code;
    std::string name;
    std::string text;
};

void check(cudaError_t status, const char *call)
{
    if (status != cudaSuccess)
        throw Failure{call, true, static_cast<int>(status), cudaGetErrorName(status), cudaGetErrorString(status)};
}

#define CHECK(function, ...) check(function(__VA_ARGS__), #function)

std::string quoted(const std::string &text)
{
    std::string out = "\"";
    for (unsigned char character : text) {
        if (character == '"' || character == '\\') {
            out += '\\';
            out += static_cast<char>(character);
        } else if (character < 0x20) {
            char escape[8];
            std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(character));
            out += escape;
        } else {
            out += static_cast<char>(character);
        }
    }
    return out + "\"";
}

std::string format(const char *pattern, double value)
{
    char text[64];
    std::snprintf(text, sizeof text, pattern, value);
    return text;
}

std::string json(const Failure &failure)
{
    return "{\"call\": " + quoted(failure.call) + ", \"code\": " +
           (failure.has_code ? std::to_string(failure.code) : "null") + ", \"name\": " + quoted(failure.name) +
           ", \"text\": " + quoted(failure.text) + "}";
}

void tell(const std::string &line)
{
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
}

void tell_stage(int index, const char *stage)
{
    const std::string where = index < 0 ? "null" : std::to_string(index);
    tell("{\"event\": \"stage\", \"index\": " + where + ", \"stage\": " + quoted(stage) + "}");
}

struct Options {
    std::size_t copy_mib = 64;
    int repeats = 5;
    unsigned elements = 1u << 18;
    std::vector<int> devices;
};

int attribute(cudaDeviceAttr which, int device)
{
    int value = 0;
    CHECK(cudaDeviceGetAttribute, &value, which, device);
    return value;
}

std::string properties(int device)
{
    cudaDeviceProp found;
    CHECK(cudaGetDeviceProperties, &found, device);
    char uuid[41], address[32];
    const unsigned char *raw = reinterpret_cast<const unsigned char *>(found.uuid.bytes);
    std::snprintf(uuid, sizeof uuid, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", raw[0],
                  raw[1], raw[2], raw[3], raw[4], raw[5], raw[6], raw[7], raw[8], raw[9], raw[10], raw[11], raw[12],
                  raw[13], raw[14], raw[15]);
    std::snprintf(address, sizeof address, "%04x:%02x:%02x.0", static_cast<unsigned>(found.pciDomainID),
                  static_cast<unsigned>(found.pciBusID), static_cast<unsigned>(found.pciDeviceID));
    const int mode = attribute(cudaDevAttrComputeMode, device);
    const char *modes[] = {"default", "exclusive", "prohibited", "exclusive_process"};
    const std::string mode_name = mode >= 0 && mode < 4 ? modes[mode] : std::to_string(mode);
    const auto number = [&](const char *name, cudaDeviceAttr which, int divisor) {
        return ", " + quoted(name) + ": " + std::to_string(attribute(which, device) / divisor);
    };
    return "\"name\": " + quoted(found.name) + ", \"uuid\": " + quoted(uuid) + ", \"pci_address\": " + quoted(address) +
           ", \"compute_capability\": \"" + std::to_string(found.major) + "." + std::to_string(found.minor) + "\"" +
           ", \"memory_mib\": " + std::to_string(found.totalGlobalMem >> 20) +
           ", \"ecc\": " + (attribute(cudaDevAttrEccEnabled, device) ? "true" : "false") +
           ", \"compute_mode\": " + quoted(mode_name) +
           number("multiprocessors", cudaDevAttrMultiProcessorCount, 1) +
           number("clock_mhz", cudaDevAttrClockRate, 1000) +
           number("memory_clock_mhz", cudaDevAttrMemoryClockRate, 1000) +
           number("memory_bus_bits", cudaDevAttrGlobalMemoryBusWidth, 1) +
           number("l2_cache_kib", cudaDevAttrL2CacheSize, 1024) + number("warp_size", cudaDevAttrWarpSize, 1) +
           number("max_threads_per_block", cudaDevAttrMaxThreadsPerBlock, 1) +
           number("async_engines", cudaDevAttrAsyncEngineCount, 1);
}

// Memory that is given back on every way out. What fails then failed before, and that is told.
struct DeviceMemory {
    void *pointer = nullptr;
    explicit DeviceMemory(std::size_t size) { CHECK(cudaMalloc, &pointer, size); }
    ~DeviceMemory() { cudaFree(pointer); }
    DeviceMemory(const DeviceMemory &) = delete;
    DeviceMemory &operator=(const DeviceMemory &) = delete;
};

struct PinnedMemory {
    void *pointer = nullptr;
    explicit PinnedMemory(std::size_t size) { CHECK(cudaHostAlloc, &pointer, size, cudaHostAllocPortable); }
    ~PinnedMemory() { cudaFreeHost(pointer); }
    PinnedMemory(const PinnedMemory &) = delete;
    PinnedMemory &operator=(const PinnedMemory &) = delete;
};

struct Event {
    cudaEvent_t handle = nullptr;
    Event() { CHECK(cudaEventCreate, &handle); }
    ~Event() { cudaEventDestroy(handle); }
    Event(const Event &) = delete;
    Event &operator=(const Event &) = delete;
};

std::string rate(void *to, const void *from, std::size_t size, cudaMemcpyKind kind, int repeats)
{
    CHECK(cudaMemcpyAsync, to, from, size, kind);
    Event start, stop;
    CHECK(cudaEventRecord, start.handle);
    for (int repeat = 0; repeat < repeats; ++repeat)
        CHECK(cudaMemcpyAsync, to, from, size, kind);
    CHECK(cudaEventRecord, stop.handle);
    CHECK(cudaEventSynchronize, stop.handle);
    float milliseconds = 0;
    CHECK(cudaEventElapsedTime, &milliseconds, start.handle, stop.handle);
    const double least = 1e-6;
    return format("%.2f", static_cast<double>(size) * repeats / (milliseconds > least ? milliseconds : least) / 1e6);
}

std::string check_copies(const Options &options)
{
    std::size_t free_bytes = 0, total = 0;
    CHECK(cudaMemGetInfo, &free_bytes, &total);
    const std::size_t most = free_bytes / 4 > (1u << 20) ? free_bytes / 4 : (1u << 20);
    const std::size_t size = (options.copy_mib << 20) < most ? options.copy_mib << 20 : most;
    PinnedMemory source(size), back(size);
    DeviceMemory first(size), second(size);
    std::uint32_t state = 2463534242u;
    auto *words = static_cast<std::uint32_t *>(source.pointer);
    for (std::size_t word = 0; word < size / 4; ++word) {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        words[word] = state;
    }
    std::memset(back.pointer, 0, size);
    CHECK(cudaMemset, second.pointer, 0, size);
    const std::string in = rate(first.pointer, source.pointer, size, cudaMemcpyHostToDevice, options.repeats);
    const std::string across = rate(second.pointer, first.pointer, size, cudaMemcpyDeviceToDevice, options.repeats);
    const std::string out = rate(back.pointer, second.pointer, size, cudaMemcpyDeviceToHost, options.repeats);
    CHECK(cudaDeviceSynchronize);
    if (std::memcmp(source.pointer, back.pointer, size / 4 * 4) != 0)
        throw Failure{"copy", false, 0, "WRONG_RESULT", std::to_string(size) + " bytes came back from the device changed"};
    return "{\"mib\": " + std::to_string(size >> 20) + ", \"host_to_device_gb_s\": " + in +
           ", \"device_to_device_gb_s\": " + across + ", \"device_to_host_gb_s\": " + out + ", \"ok\": true}";
}

__global__ void gpu_query_vector_add(const std::uint32_t *left, const std::uint32_t *right, std::uint32_t *out,
                                     unsigned count)
{
    const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count)
        out[index] = left[index] + right[index];
}

std::string check_kernel(const Options &options)
{
    const unsigned count = options.elements;
    const std::size_t size = std::size_t{count} * sizeof(std::uint32_t);
    std::vector<std::uint32_t> left(count), right(count), answer(count);
    for (unsigned index = 0; index < count; ++index) {
        left[index] = index * 2654435761u;
        right[index] = index * 40503u + 4000000007u;
    }
    DeviceMemory a(size), b(size), out(size);
    CHECK(cudaMemcpy, a.pointer, left.data(), size, cudaMemcpyHostToDevice);
    CHECK(cudaMemcpy, b.pointer, right.data(), size, cudaMemcpyHostToDevice);
    CHECK(cudaMemset, out.pointer, 0xA5, size);
    Event start, stop;
    CHECK(cudaEventRecord, start.handle);
    gpu_query_vector_add<<<(count + 255) / 256, 256>>>(
        static_cast<const std::uint32_t *>(a.pointer), static_cast<const std::uint32_t *>(b.pointer),
        static_cast<std::uint32_t *>(out.pointer), count);
    CHECK(cudaGetLastError);
    CHECK(cudaEventRecord, stop.handle);
    CHECK(cudaEventSynchronize, stop.handle);
    float milliseconds = 0;
    CHECK(cudaEventElapsedTime, &milliseconds, start.handle, stop.handle);
    CHECK(cudaMemcpy, answer.data(), out.pointer, size, cudaMemcpyDeviceToHost);
    unsigned wrong = 0, first = 0;
    for (unsigned index = 0; index < count; ++index) {
        if (answer[index] != left[index] + right[index] && wrong++ == 0)
            first = index;
    }
    if (wrong) {
        throw Failure{"gpu_query_vector_add", false, 0, "WRONG_RESULT",
                      std::to_string(wrong) + " of " + std::to_string(count) + " elements are wrong, first element " +
                          std::to_string(first) + ": " + std::to_string(answer[first]) + " instead of " +
                          std::to_string(left[first] + right[first])};
    }
    return "{\"entry\": \"gpu_query_vector_add\", \"elements\": " + std::to_string(count) + ", \"wrong\": 0, \"ms\": " +
           format("%.3f", milliseconds) + ", \"ok\": true}";
}

bool query_device(int index, const Options &options)
{
    std::string known, copy = "null", kernel = "null", error = "null";
    bool ok = false;
    try {
        tell_stage(index, "properties");
        known = ", " + properties(index);
        tell_stage(index, "context");
        CHECK(cudaSetDevice, index);
        CHECK(cudaFree, nullptr);
        tell_stage(index, "copy");
        copy = check_copies(options);
        tell_stage(index, "kernel");
        kernel = check_kernel(options);
        ok = true;
    } catch (const Failure &failure) {
        error = json(failure);
    }
    cudaDeviceReset();
    tell("{\"event\": \"device\", \"device\": {\"index\": " + std::to_string(index) + ", \"ok\": " +
         (ok ? "true" : "false") + known + ", \"copy\": " + copy + ", \"kernel\": " + kernel + ", \"error\": " + error +
         "}}");
    return ok;
}

bool parse(int count, char **arguments, Options &options)
{
    for (int at = 1; at < count; at += 2) {
        if (at + 1 == count)
            return false;
        const std::string name = arguments[at];
        char *value = arguments[at + 1];
        if (name == "--copy-mib")
            options.copy_mib = std::strtoul(value, nullptr, 10);
        else if (name == "--repeats")
            options.repeats = std::atoi(value);
        else if (name == "--elements")
            options.elements = static_cast<unsigned>(std::strtoul(value, nullptr, 10));
        else if (name == "--devices")
            for (char *one = std::strtok(value, ","); one; one = std::strtok(nullptr, ","))
                options.devices.push_back(std::atoi(one));
        else
            return false;
    }
    return options.copy_mib > 0 && options.repeats > 0 && options.elements > 0;
}

}  // namespace

int main(int count, char **arguments)
{
    Options options;
    if (!parse(count, arguments, options)) {
        std::fprintf(stderr, "usage: %s [--copy-mib N] [--repeats N] [--elements N] [--devices 0,1]\n", arguments[0]);
        return 2;
    }
    try {
        tell_stage(-1, "init");
        int devices = 0, driver = 0;
        CHECK(cudaDriverGetVersion, &driver);
        CHECK(cudaGetDeviceCount, &devices);
        tell("{\"event\": \"counted\", \"count\": " + std::to_string(devices) + ", \"cuda\": \"" +
             std::to_string(driver / 1000) + "." + std::to_string(driver % 1000 / 10) + "\"}");
        if (options.devices.empty())
            for (int index = 0; index < devices; ++index)
                options.devices.push_back(index);
    } catch (const Failure &failure) {
        tell("{\"event\": \"failed\", \"error\": " + json(failure) + "}");
        return 1;
    }
    // After some errors every further call of the process answers the same, also on other GPUs: whoever reads this asks
    // for those that are left in a process of their own.
    for (int index : options.devices)
        if (!query_device(index, options))
            break;
    tell("{\"event\": \"end\"}");
    return 0;
}
